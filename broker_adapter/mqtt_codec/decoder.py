"""Decoding of the bytes of one peer: cuts the stream into packets, and calls the reader of each packet type.

Invariant (tested with random bytes): any bytes yield packets and then possibly one `MqttProtocolError`, and the outcome
is the same however the bytes are cut into chunks. At most the beginning of one packet is buffered, and nothing of a
packet that is refused by its fixed header.

Clients send PUBLISH and PUBACK packets by the thousand. Those in which nothing is unusual are read in C, where that was
built (`shards/compiled/packet_reader.c`); every other packet is read here. A change of one is a change of both: a
property compares them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias

from broker_adapter.mqtt_codec.acknowledgement_bodies import read_acknowledgement
from broker_adapter.mqtt_codec.connection_bodies import (
    read_auth,
    read_connack,
    read_connect,
    read_disconnect,
    write_disconnect,
)
from broker_adapter.mqtt_codec.errors import MqttProtocolError, malformed
from broker_adapter.mqtt_codec.fixed_header import is_no_type, read_length, refusal, too_large
from broker_adapter.mqtt_codec.packet_types import PacketType, Side, first_byte, why_not
from broker_adapter.mqtt_codec.packets import (
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Version,
)
from broker_adapter.mqtt_codec.primitives import MAX_VARIABLE
from broker_adapter.mqtt_codec.properties import EMPTY
from broker_adapter.mqtt_codec.publish_bodies import FIRST_BYTES as PUBLISH_FIRST_BYTES
from broker_adapter.mqtt_codec.publish_bodies import read_publish
from broker_adapter.mqtt_codec.subscription_bodies import read_suback, read_subscribe, read_unsuback, read_unsubscribe
from shards import compiled

Reader: TypeAlias = Callable[[int, bytes, int, int], Packet]
Readers: TypeAlias = tuple[Reader | None, ...]
"""The reader for each possible first byte; None where there is no such packet."""


class Decoder:
    """Decodes the bytes of one peer.

    Args:
        of: The sender: a client, whose first packet must be CONNECT and no later one may be, or a server.
        version: Protocol version; for a client it is read from its CONNECT.
        max_packet_bytes: Longest packet to accept, fixed header included. May be set later.
        max_connect_bytes: The same for the CONNECT of a client, which is not authenticated yet.

    Attributes:
        version: None until it is known.
    """

    __slots__ = (
        "_authenticates",
        "_error",
        "_held",
        "_max_connect_bytes",
        "_readers",
        "_sender",
        "_size_bytes",
        "max_packet_bytes",
        "version",
    )

    read_usual: ClassVar[Callable[..., int] | None] = compiled.read_packets
    """The form in C; None if all packets are read in Python."""

    def __init__(
        self,
        *,
        of: Side = "client",
        version: Version | None = None,
        max_packet_bytes: int = MAX_VARIABLE,
        max_connect_bytes: int = MAX_VARIABLE,
    ) -> None:
        if of == "server" and version is None:
            raise ValueError("version is None, it must be given for packets of a server")
        self.version = version
        self.max_packet_bytes = max_packet_bytes
        self._max_connect_bytes = max_connect_bytes
        self._sender: Side = of
        self._readers = _BEFORE_CONNECT if version is None else _readers(version, of, True)
        self._authenticates = version is not None
        self._held = bytearray()
        self._size_bytes = 0  # of the packet that is buffered in part; 0 while its header is not complete
        self._error: MqttProtocolError | None = None

    @property
    def held_bytes(self) -> int:
        """Number of bytes of an unfinished packet that are buffered."""
        return len(self._held)

    @property
    def is_empty(self) -> bool:
        """Whether no part of an unfinished packet is buffered."""
        return not self._held

    def receive(self, data: bytes | bytearray | memoryview) -> list[Packet]:
        """Decode the next bytes of the stream; return the packets that they complete, in order.

        Bytes are copied: the caller may reuse its buffer at once.

        Raises:
            MqttProtocolError: The peer broke the protocol. The error has the packets before it, and the answer. The
                decoder cannot be used any more: every further call raises the same reason code again.
        """
        if self._error is not None:
            raise MqttProtocolError(self._error.reason_code, f"after an earlier fault: {self._error}")
        packets: list[Packet] = []
        try:
            self._take(bytes(data), packets)
        except MqttProtocolError as error:
            self._error = error
            self._held = bytearray()
            error.packets = packets
            if self.version is not None:
                error.answer = self._last_word(error)
            raise
        return packets

    def _last_word(self, error: MqttProtocolError) -> bytes:
        if self.version is Version.V311 or not error.is_answerable:
            return b""
        return write_disconnect(Disconnect(error.reason_code), Version.V5)

    def _take(self, data: bytes, packets: list[Packet]) -> None:
        held, at = self._held, 0
        if held and not self._size_bytes:
            data = bytes(held) + data
            self._held = bytearray()
        elif held:
            # Only the bytes of this packet are copied to it: the rest of the chunk is decoded in place.
            at = self._size_bytes - len(held)
            held += data[:at]
            if len(held) < self._size_bytes:
                return
            self._held = bytearray()
            self._cut(bytes(held), 0, packets)
        self._cut(data, at, packets)

    def _cut(self, data: bytes, at: int, packets: list[Packet]) -> None:
        """Decode all complete packets of the chunk (the hot loop); keep the beginning of an incomplete one."""
        readers, end, limit, size_bytes = self._readers, len(data), self._limit_bytes, 0
        usual, read_usual = self._usual, self.read_usual
        while at < end:
            first, size_bytes = data[at], 0
            if first in usual:
                assert read_usual is not None  # otherwise nothing is usual
                begin, has_properties = at, self.version is Version.V5
                at = read_usual(data, at, limit, has_properties, Publish, Puback, EMPTY, packets)
                if at > begin:
                    continue
                # Who sends one that is unusual sends more like it: they are not tried again in this chunk.
                usual -= {first}
            reader = readers[first]
            if reader is None and (self.version is None or is_no_type(first)):
                raise refusal(first, self._sender, self.version, authenticates=self._authenticates)
            if at + 1 == end:
                break
            length, body = data[at + 1], at + 2
            if length > 0x7F:
                if at + 2 < end and 0 < data[at + 2] < 0x80:
                    length, body = length & 0x7F | data[at + 2] << 7, at + 3
                else:
                    length, body = read_length(data, at + 1, end)
                    if not body:
                        break
            if reader is None:
                raise refusal(first, self._sender, self.version, authenticates=self._authenticates)
            stop = body + length
            size_bytes = stop - at
            if size_bytes > limit:
                raise too_large(size_bytes, limit)
            if stop > end:
                break
            packet = reader(first, data, body, stop)
            packets.append(packet)
            at = stop
            if packet.__class__ is Connect:
                self._learn(packet)
                readers, limit, usual = self._readers, self._limit_bytes, self._usual
        if at < end:
            self._held, self._size_bytes = bytearray(data[at:]), size_bytes

    @property
    def _usual(self) -> frozenset[int]:
        """The first bytes of packets that `read_usual` may read."""
        return _NONE if self.version is None or self.read_usual is None else _USUAL

    @property
    def _limit_bytes(self) -> int:
        if self.version is None:
            return min(self.max_packet_bytes, self._max_connect_bytes)
        return self.max_packet_bytes

    def _learn(self, connect: Connect) -> None:
        self.version = connect.version
        self._authenticates = connect.properties.authentication_method is not None
        self._readers = _readers(connect.version, self._sender, self._authenticates)


_READER_OF: Final[dict[PacketType, Callable[[Version, Side], Reader]]] = {
    PacketType.CONNACK: lambda version, _sender: read_connack(version),
    PacketType.PUBLISH: read_publish,
    PacketType.PUBACK: lambda version, _sender: read_acknowledgement(Puback, version),
    PacketType.PUBREC: lambda version, _sender: read_acknowledgement(Pubrec, version),
    PacketType.PUBREL: lambda version, _sender: read_acknowledgement(Pubrel, version),
    PacketType.PUBCOMP: lambda version, _sender: read_acknowledgement(Pubcomp, version),
    PacketType.SUBSCRIBE: lambda version, _sender: read_subscribe(version),
    PacketType.SUBACK: lambda version, _sender: read_suback(version),
    PacketType.UNSUBSCRIBE: lambda version, _sender: read_unsubscribe(version),
    PacketType.UNSUBACK: lambda version, _sender: read_unsuback(version),
    PacketType.PINGREQ: lambda _version, _sender: _without_body(Pingreq()),
    PacketType.PINGRESP: lambda _version, _sender: _without_body(Pingresp()),
    PacketType.DISCONNECT: read_disconnect,
    PacketType.AUTH: lambda _version, sender: read_auth(sender),
}


def _without_body(packet: Pingreq | Pingresp) -> Reader:
    def read(_first: int, _data: bytes, at: int, stop: int) -> Packet:
        if at != stop:
            raise malformed(
                f"{type(packet).__name__.upper()} has {stop - at} bytes after its header, it must have none"
            )
        return packet

    return read


def _table(readers: dict[int, Reader]) -> Readers:
    return tuple(readers.get(first) for first in range(256))


@functools.cache
def _readers(version: Version, sender: Side, authenticates: bool) -> Readers:
    readers: dict[int, Reader] = {}
    for packet_type, make in _READER_OF.items():
        if not why_not(packet_type, sender, version, authenticates=authenticates):
            reader = make(version, sender)
            firsts = PUBLISH_FIRST_BYTES if packet_type is PacketType.PUBLISH else (first_byte(packet_type),)
            readers.update(dict.fromkeys(firsts, reader))
    return _table(readers)


_USUAL: Final = frozenset((*PUBLISH_FIRST_BYTES, first_byte(PacketType.PUBACK)))
_NONE: Final[frozenset[int]] = frozenset()
_BEFORE_CONNECT: Final = _table({first_byte(PacketType.CONNECT): read_connect})
