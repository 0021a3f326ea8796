"""What a peer speaks, by the first bytes that come from it. Pure: server and client ask it of each other.

No frame before the end of HELLO is as long as these bytes would make it: there the first four are its length, of at
most 64 KiB.
"""

from __future__ import annotations

import enum
from typing import Final

ENOUGH_BYTES: Final = 8
"""Of more nothing is looked at."""

LEAST_BYTES: Final = 3
"""Of fewer nothing can be said."""

_HANDSHAKE: Final = 0x16
_ALERT: Final = 0x15
_TLS_MAJOR: Final = 3
_HTTP: Final = (b"HTTP/", b"GET ", b"POST ", b"PUT ", b"HEAD ", b"PATCH ", b"DELETE ", b"OPTIONS ", b"PRI ")


class SniffedProtocol(enum.Enum):
    """A protocol that can be told by its first bytes."""

    TLS = "TLS"
    HTTP = "HTTP"
    OTHER = "something else"


def spoken_in(first: bytes) -> SniffedProtocol:
    """What begins with these bytes."""
    if len(first) >= LEAST_BYTES and first[0] in (_HANDSHAKE, _ALERT) and first[1] == _TLS_MAJOR and first[2]:
        return SniffedProtocol.TLS
    if first.startswith(_HTTP):
        return SniffedProtocol.HTTP
    return SniffedProtocol.OTHER


def is_binary(first: bytes) -> bool:
    """Whether these bytes in the clear are no text, so no HTTP: the length of a greeting's frame has zeros in it."""
    return b"\0" in first[:ENOUGH_BYTES]
