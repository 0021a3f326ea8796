"""The packets that the cluster's test clients speak, MQTT 3.1.1 and 5, as bytes in and out.

Written apart from the product's codec, so that a fault there does not cancel out here. Properties that brokers send are
skipped; of those that are sent there are the session's and a message's expiry and the delay of a will.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

V311, V5 = 4, 5

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, PINGRESP, DISCONNECT = 2, 3, 4, 5, 6, 7, 9, 13, 14
_SESSION_EXPIRY_S: Final = 3600
_U16: Final = struct.Struct(">H")


@attrs.frozen
class Packet:
    """A packet that a broker sent; fields are 0 or empty where its kind has none.

    Attributes:
        code: Return or reason code.
        session_present: Of a CONNACK.
    """

    kind: int
    packet_id: int = 0
    code: int = 0
    session_present: bool = False
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    dup: bool = False
    retain: bool = False


@attrs.frozen
class Will:
    """What a broker is to publish when the connection of a client is lost.

    Attributes:
        delay_s: Seconds after which it does; for MQTT 5 alone.
    """

    topic: str
    payload: bytes
    qos: int
    delay_s: int = 0


def connect(
    version: int,
    client_id: str,
    *,
    clean_start: bool,
    keep_alive_s: int = 300,
    is_durable: bool = False,
    receive_maximum: int = 0,
    expiry_s: int | None = None,
    will: Will | None = None,
) -> bytes:
    """A CONNECT. The session outlives the connection unless it starts clean, in MQTT 5 also if it is to be durable.

    A receive maximum is for MQTT 5 alone, and so is the session's expiry in seconds, which then decides alone how long
    it outlives the connection.
    """
    properties = b""
    if version == V5:
        if expiry_s is None:
            expiry_s = _SESSION_EXPIRY_S if is_durable or not clean_start else 0
        content = b"\x11" + struct.pack(">I", expiry_s) if expiry_s else b""
        content += b"\x21" + _U16.pack(receive_maximum) if receive_maximum else b""
        properties = bytes((len(content),)) + content
    flags = (2 if clean_start else 0) | (0 if will is None else 4 | will.qos << 3)
    head = _text("MQTT") + bytes((version, flags)) + _U16.pack(keep_alive_s)
    return _packet(0x10, head + properties + _text(client_id) + (b"" if will is None else _will(version, will)))


def subscribe(version: int, packet_id: int, topic_filter: str, qos: int) -> bytes:
    """A SUBSCRIBE of one filter."""
    return _packet(0x82, _U16.pack(packet_id) + _properties(version) + _text(topic_filter) + bytes((qos,)))


def publish(
    version: int,
    packet_id: int,
    topic: str,
    payload: bytes,
    qos: int,
    *,
    dup: bool = False,
    retain: bool = False,
    expiry_s: int = 0,
) -> bytes:
    """A PUBLISH; with a message expiry interval, which is for MQTT 5 alone, unless that is 0."""
    properties = b"\x05\x02" + struct.pack(">I", expiry_s) if expiry_s else _properties(version)
    body = _text(topic) + (_U16.pack(packet_id) if qos else b"") + properties + payload
    return _packet(0x30 | dup << 3 | qos << 1 | retain, body)


def answer(kind: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; success is the short form in both versions."""
    return _packet(kind << 4 | (2 if kind == PUBREL else 0), _U16.pack(packet_id))


def pingreq() -> bytes:
    """A PINGREQ."""
    return b"\xc0\x00"


def disconnect() -> bytes:
    """A normal DISCONNECT, the same in both versions."""
    return b"\xe0\x00"


class Reader:
    """Cuts a broker's bytes into packets.

    Args:
        version: Of the connection.
    """

    def __init__(self, version: int) -> None:
        self._version = version
        self._unread = b""

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are whole now."""
        self._unread += data
        found: list[Packet] = []
        while (cut := self._cut()) is not None:
            first, body = cut
            found.append(self._read(first, body))
        return found

    def _cut(self) -> tuple[int, bytes] | None:
        length = shift = 0
        for at, byte in enumerate(self._unread[1:5], 2):
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                if len(self._unread) < at + length:
                    return None
                first, body = self._unread[0], self._unread[at : at + length]
                self._unread = self._unread[at + length :]
                return first, body
        return None

    def _read(self, first: int, body: bytes) -> Packet:
        kind = first >> 4
        if kind == PUBLISH:
            return self._read_publish(first, body)
        if kind == CONNACK:
            return Packet(kind, code=body[1], session_present=bool(body[0] & 1))
        if kind == SUBACK:
            return Packet(kind, packet_id=_U16.unpack_from(body)[0], code=body[-1])
        if kind in {PUBACK, PUBREC, PUBREL, PUBCOMP}:
            return Packet(kind, packet_id=_U16.unpack_from(body)[0], code=body[2] if len(body) > 2 else 0)
        return Packet(kind, code=body[0] if body else 0)

    def _read_publish(self, first: int, body: bytes) -> Packet:
        qos = first >> 1 & 3
        at = 2 + _U16.unpack_from(body)[0]
        topic = body[2:at].decode()
        packet_id = 0
        if qos:
            packet_id = _U16.unpack_from(body, at)[0]
            at += 2
        if self._version == V5:
            # A property length of up to 127 bytes is one byte long; nothing here sends more.
            assert body[at] < 128, body
            at += 1 + body[at]
        return Packet(
            PUBLISH,
            packet_id=packet_id,
            topic=topic,
            payload=body[at:],
            qos=qos,
            dup=bool(first & 8),
            retain=bool(first & 1),
        )


def _will(version: int, will: Will) -> bytes:
    delay = b"\x18" + struct.pack(">I", will.delay_s) if will.delay_s else b""
    properties = bytes((len(delay),)) + delay if version == V5 else b""
    return properties + _text(will.topic) + _U16.pack(len(will.payload)) + will.payload


def _packet(first: int, body: bytes) -> bytes:
    length = bytearray()
    size = len(body)
    while True:
        size, low = divmod(size, 128)
        length.append(low | (128 if size else 0))
        if not size:
            return bytes((first,)) + bytes(length) + body


def _text(value: str) -> bytes:
    return _U16.pack(len(value.encode())) + value.encode()


def _properties(version: int) -> bytes:
    return b"\x00" if version == V5 else b""
