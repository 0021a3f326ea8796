"""Recognises a peer's protocol by its first bytes. Pure; used by server and client.

A frame of the native protocol cannot begin with these bytes before the end of HELLO: its first four bytes are its
length, which is then at most 64 KiB.
"""

from __future__ import annotations

import enum
from typing import Final

ENOUGH_BYTES: Final = 8
"""Number of bytes that are examined at most."""

LEAST_BYTES: Final = 3
"""Number of bytes that are needed at least."""

_HANDSHAKE: Final = 0x16
_ALERT: Final = 0x15
_TLS_MAJOR: Final = 3
_HTTP: Final = (b"HTTP/", b"GET ", b"POST ", b"PUT ", b"HEAD ", b"PATCH ", b"DELETE ", b"OPTIONS ", b"PRI ")


class SniffedProtocol(enum.Enum):
    """A protocol that is recognised by its first bytes."""

    TLS = "TLS"
    HTTP = "HTTP"
    OTHER = "something else"


def spoken_in(first: bytes) -> SniffedProtocol:
    """The protocol that begins with these bytes."""
    if len(first) >= LEAST_BYTES and first[0] in (_HANDSHAKE, _ALERT) and first[1] == _TLS_MAJOR and first[2]:
        return SniffedProtocol.TLS
    if first.startswith(_HTTP):
        return SniffedProtocol.HTTP
    return SniffedProtocol.OTHER


def is_mqtt(first: bytes) -> bool:
    """Whether these bytes begin a CONNECT of MQTT, with a name of the protocol that begins with ``MQ``."""
    return first[:1] == b"\x10" and b"MQ" in first[4:ENOUGH_BYTES]


def is_binary(first: bytes) -> bool:
    """Whether these bytes in the clear are no text, so no HTTP: the length of a greeting's frame has zeros in it."""
    return b"\0" in first[:ENOUGH_BYTES]
