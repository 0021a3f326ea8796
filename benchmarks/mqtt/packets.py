"""The few packets of MQTT 3.1.1 that the load needs, as bytes: built before, counted and acknowledged many at a time.

Not the product's codec on purpose: a generator that decodes packet by packet would be slower than the brokers it
measures. No sockets here.
"""

from __future__ import annotations

import struct
from typing import Final

import attrs

from benchmarks.load import Chunk, LoadError

PINGRESP: Final = b"\xd0\x00"
DISCONNECT: Final = b"\xe0\x00"
NUMBER: Final = struct.Struct(">I")
"""First bytes of each numbered payload."""

USER: Final = "bench"
"""The user name of all clients. Brokers that accept everyone ignore it; amqtt stores nothing for sessions without."""
_USER_NAME, _CLEAN_SESSION = 0x80, 0x02
_CONNACK, _PUBACK, _SUBACK = 0x20, 0x40, 0x90
_PUBLISH_QOS_1: Final = 0x32
_DUP: Final = 0x08
_PUBACK_BYTES: Final = 4
_LARGEST_PACKET_ID: Final = 65_535


def remaining_length(size: int) -> bytes:
    """The variable byte integer of the fixed header."""
    out = bytearray()
    while True:
        size, low = divmod(size, 128)
        out.append(low | (128 if size else 0))
        if not size:
            return bytes(out)


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def connect(client_id: str, *, clean_session: bool = True, keep_alive_s: int = 0, user: str = "") -> bytes:
    """A CONNECT without will and password; without a user name, too, if that is empty."""
    flags = (_USER_NAME if user else 0) | (_CLEAN_SESSION if clean_session else 0)
    body = _text("MQTT") + bytes((4, flags)) + struct.pack(">H", keep_alive_s) + _text(client_id)
    body += _text(user) if user else b""
    return b"\x10" + remaining_length(len(body)) + body


def subscribe(topic_filter: str, qos: int, packet_id: int = 1) -> bytes:
    """A SUBSCRIBE of one filter."""
    body = struct.pack(">H", packet_id) + _text(topic_filter) + bytes((qos,))
    return b"\x82" + remaining_length(len(body)) + body


def publish(topic: str, payload: bytes, *, packet_id: int = 0) -> bytes:
    """A PUBLISH: with QoS 1 if it has a packet id, else with QoS 0."""
    body = _text(topic) + (struct.pack(">H", packet_id) if packet_id else b"") + payload
    return bytes((_PUBLISH_QOS_1 if packet_id else 0x30,)) + remaining_length(len(body)) + body


def publish_ring(topic: str, payload: bytes, *, window: int, per_chunk: int) -> list[Chunk]:
    """Chunks of QoS 1 publishes that are sent repeatedly, in turn.

    A packet id is reused only after a whole round, so no id is in use twice while at most ``window`` publishes wait.
    """
    if not 0 < per_chunk <= window <= _LARGEST_PACKET_ID:
        raise ValueError(f"{per_chunk} publishes a chunk, window {window}: must rise, up to {_LARGEST_PACKET_ID}")
    last_id = -(-window // per_chunk) * per_chunk
    return [
        Chunk(b"".join(publish(topic, payload, packet_id=number + at) for at in range(per_chunk)), per_chunk)
        for number in range(1, min(last_id, _LARGEST_PACKET_ID - per_chunk) + 1, per_chunk)
    ]


class PubackCounter:
    """Counts acknowledged publishes in a stream that has only PUBACKs, cut anywhere."""

    def __init__(self) -> None:
        self._head = b""

    def __call__(self, buffer: bytearray, received: int) -> int:
        data = self._head + buffer[:received] if self._head else buffer[:received]
        count, rest = divmod(len(data), _PUBACK_BYTES)
        whole = len(data) - rest
        if data[0:whole:_PUBACK_BYTES].count(_PUBACK) != count or data[1:whole:_PUBACK_BYTES].count(2) != count:
            raise LoadError(f"other packets than PUBACKs were received: {bytes(data[:64])!r}")
        self._head = bytes(data[whole:])
        return count


@attrs.frozen(slots=True)
class Delivered:
    """QoS 1 publishes cut from a stream.

    Attributes:
        count: Their number.
        acknowledgements: A PUBACK for each.
        numbers: First four bytes of the payload of each, joined.
    """

    count: int
    acknowledgements: bytes
    numbers: bytes


class DeliveryCutter:
    """Cuts a stream of QoS 1 publishes of equal length to one topic, whole chunks at a time; PINGRESP may be between.

    Args:
        topic: Topic of every message.
        payload_bytes: Size of every payload; at least that of `NUMBER`.
    """

    def __init__(self, topic: str, payload_bytes: int) -> None:
        one = publish(topic, bytes(payload_bytes), packet_id=1)
        self._size = len(one)
        self._number_at = len(one) - payload_bytes
        self._id_at = self._number_at - 2
        self._front = one[1 : self._id_at]
        self._unread = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> Delivered:
        """Add received bytes; return the publishes that are now complete."""
        unread = self._unread
        unread += data
        at = 0
        found: list[Delivered] = []
        while at < len(unread):
            if unread[at] & ~_DUP != _PUBLISH_QOS_1:
                step = self._skip(at)
                if not step:
                    break
                at += step
                continue
            count = self._publishes(at)
            if not count:
                break
            found.append(self._cut(at, count))
            at += count * self._size
        del unread[:at]
        return Delivered(
            sum(each.count for each in found),
            b"".join(each.acknowledgements for each in found),
            b"".join(each.numbers for each in found),
        )

    def _publishes(self, at: int) -> int:
        """Number of complete publishes in a row from this position."""
        possible = (len(self._unread) - at) // self._size
        heads = self._unread[at : at + possible * self._size : self._size]
        return possible - len(heads.lstrip(bytes((_PUBLISH_QOS_1, _PUBLISH_QOS_1 | _DUP))))

    def _cut(self, at: int, count: int) -> Delivered:
        """Decode publishes by columns."""
        size, end = self._size, at + count * self._size
        for place, expected in enumerate(self._front, at + 1):
            if self._unread[place:end:size].count(expected) != count:
                raise LoadError(f"a publish of another topic or size: {bytes(self._unread[at : at + 100])!r}")
        acknowledgements = bytearray(_PUBACK_BYTES * count)
        acknowledgements[0::4] = bytes((_PUBACK,)) * count
        acknowledgements[1::4] = b"\x02" * count
        acknowledgements[2::4] = self._unread[at + self._id_at : end : size]
        acknowledgements[3::4] = self._unread[at + self._id_at + 1 : end : size]
        numbers = bytearray(NUMBER.size * count)
        for byte in range(NUMBER.size):
            numbers[byte :: NUMBER.size] = self._unread[at + self._number_at + byte : end : size]
        return Delivered(count, bytes(acknowledgements), bytes(numbers))

    def _skip(self, at: int) -> int:
        """Size of a packet other than PUBLISH, 0 if it is not complete."""
        if self._unread[at] != PINGRESP[0]:
            raise LoadError(f"an unexpected packet: {bytes(self._unread[at : at + 64])!r}")
        return len(PINGRESP) if len(self._unread) - at >= len(PINGRESP) else 0


def expect_connack(data: bytes) -> bool:
    """The Session Present flag of a CONNACK. Raises `LoadError` if it refuses."""
    if len(data) != 4 or data[0] != _CONNACK or data[3]:
        raise LoadError(f"the broker refused the connection: {data!r}")
    return bool(data[2])


def expect_suback(data: bytes, qos: int) -> None:
    """Raises `LoadError` unless a SUBACK grants the QoS."""
    if len(data) != 5 or data[0] != _SUBACK or data[4] != qos:
        raise LoadError(f"the broker refused the subscription: {data!r}")
