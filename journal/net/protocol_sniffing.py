"""Recognises a peer's protocol by its first bytes. Pure; used by server and client.

A frame of the native protocol cannot begin with these bytes before the end of HELLO: its first four bytes are its
length, which is then at most 64 KiB.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

ENOUGH_BYTES: Final = 8
"""Number of bytes that are examined at most."""

LEAST_BYTES: Final = 3
"""Number of bytes that are needed at least."""

_HANDSHAKE: Final = 0x16
_ALERT: Final = 0x15
_TLS_MAJOR: Final = 3
_CONNECT: Final = b"\x10"
_CONNACK: Final = b"\x20"
_CONNACK_BYTES: Final = 4
_HELLO_BEGINS: Final = struct.Struct("<IH")
_HELLO_OP: Final = 1
_HELLO_MAX_BYTES: Final = 64 * 1024
_HTTP: Final = (b"HTTP/", b"GET ", b"POST ", b"PUT ", b"HEAD ", b"PATCH ", b"DELETE ", b"OPTIONS ", b"PRI ")


class SniffedProtocol(enum.Enum):
    """A protocol that is recognised by its first bytes."""

    TLS = "TLS"
    HTTP = "HTTP"
    MQTT = "MQTT"
    OTHER = "something else"


def spoken_in(first: bytes) -> SniffedProtocol:
    """The protocol that begins with these bytes."""
    if len(first) >= LEAST_BYTES and first[0] in (_HANDSHAKE, _ALERT) and first[1] == _TLS_MAJOR and first[2]:
        return SniffedProtocol.TLS
    if first.startswith(_HTTP):
        return SniffedProtocol.HTTP
    if _is_connect(first) or _is_refusing_connack(first):
        return SniffedProtocol.MQTT
    return SniffedProtocol.OTHER


def _is_connect(first: bytes) -> bool:
    """Whether these bytes begin a CONNECT of MQTT, with a name of the protocol that begins with ``MQ``."""
    return first[:1] == _CONNECT and b"MQ" in first[4:ENOUGH_BYTES]


def _is_refusing_connack(first: bytes) -> bool:
    """Whether they begin a CONNACK with a reason other than 0. As the length of a frame it would be over 16 MiB."""
    return first[:1] == _CONNACK and len(first) >= _CONNACK_BYTES and first[2] <= 1 and first[3] != 0


def is_accepting_connack(answer: bytes) -> bool:
    """Whether the answer to a CONNECT of MQTT 3.1.1 accepts it."""
    return answer == b"\x20\x02\x00\x00"


def is_hello(first: bytes) -> bool:
    """Whether these bytes begin a HELLO of the native protocol."""
    if len(first) < _HELLO_BEGINS.size:
        return False
    length: int
    length, op = _HELLO_BEGINS.unpack_from(first)
    return bool(op == _HELLO_OP) and length <= _HELLO_MAX_BYTES


def is_binary(first: bytes) -> bool:
    """Whether these bytes in the clear are no text, so no HTTP: the length of a greeting's frame has zeros in it."""
    return b"\0" in first[:ENOUGH_BYTES]
