"""Bytes of one peer into packets, as they come, in pieces of any size.

What one packet alone can show is checked here and in `codec.bodies`; what follows from the packets before it (aliases,
quotas, identifiers in use) is the connection's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from broker_adapter.mqtt.codec.bodies import BODIES
from broker_adapter.mqtt.codec.encoder import encode
from broker_adapter.mqtt.codec.errors import MqttProtocolError, malformed, protocol_error
from broker_adapter.mqtt.codec.fields import LARGEST_VARIABLE, Reader, name_of
from broker_adapter.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from broker_adapter.mqtt.codec.properties import EMPTY, Properties
from broker_adapter.mqtt.codec.reason_codes import ReasonCode
from broker_adapter.mqtt.codec.reasons import RETURN_CODES
from broker_adapter.mqtt.codec.topic_syntax import check_topic
from broker_adapter.mqtt.codec.version import Version

_PUBLISH: Final = int(PacketType.PUBLISH)
_REMEMBERED_TOPICS: Final = 512

_FROM_CLIENTS: Final = frozenset({1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15})
_FROM_SERVERS: Final = frozenset({2, 3, 4, 5, 6, 7, 9, 11, 13, 14, 15})
# The lower four bits of the first byte; PUBLISH has flags there.
_FIXED_FLAGS: Final = {int(kind): 2 if kind in (6, 8, 10) else 0 for kind in PacketType if kind != PacketType.PUBLISH}

_V5_CONNECT: Final = b"\0\4MQTT\5"
_LONGEST_CONNECT_HEAD: Final = 5 + len(_V5_CONNECT)

# Acknowledgements that say success and no more, which nearly all do.
_SHORT: Final[dict[int, Callable[[int], Packet]]] = {4: Puback, 5: Pubrec, 6: Pubrel, 7: Pubcomp}


class Decoder:
    """Takes what one peer sends.

    Args:
        of: Whose bytes these are.
        version: Version of the protocol, where it is known already; that of a client comes with its CONNECT.
        max_packet_bytes: Largest packet, all of it. A larger one is refused as soon as its size is known.

    Attributes:
        version: None until it is known.
    """

    def __init__(
        self,
        *,
        of: Literal["client", "server"] = "client",
        version: Version | None = None,
        max_packet_bytes: int = LARGEST_VARIABLE + 5,
    ) -> None:
        self.version = version
        self._kinds = _FROM_CLIENTS if of == "client" else _FROM_SERVERS
        self._awaits_connect = of == "client" and version is None
        self._max_packet_bytes = max_packet_bytes
        self._held = bytearray()
        self._wanted_bytes = 0
        self._topics: dict[bytes, str] = {}

    def receive(self, data: bytes | bytearray | memoryview) -> list[Packet]:
        """The packets that are whole with these bytes; what is left over waits for more.

        Raises:
            MqttProtocolError: The peer broke the protocol. The decoder is of no use from then on.
        """
        if self._held:
            self._held += data
            if len(self._held) < self._wanted_bytes:
                return []
            chunk = bytes(self._held)
            self._held.clear()
        else:
            chunk = bytes(data)
        packets: list[Packet] = []
        try:
            at = self._decode(chunk, packets)
        except MqttProtocolError as error:
            error.packets = packets
            error.answer = self._answer(error.reason_code, chunk)
            raise
        if at < len(chunk):
            self._held += memoryview(chunk)[at:]
        return packets

    def _answer(self, reason_code: ReasonCode, chunk: bytes) -> bytes:
        """What the peer is told before the connection is closed; servers are told nothing."""
        if self._kinds is not _FROM_CLIENTS:
            return b""
        if not self._awaits_connect:
            return encode(Disconnect(reason_code), Version.V5) if self.version is Version.V5 else b""
        if _V5_CONNECT in chunk[:_LONGEST_CONNECT_HEAD]:
            return encode(Connack(reason_code=reason_code), Version.V5)
        return encode(Connack(reason_code=reason_code), Version.V311) if reason_code in RETURN_CODES else b""

    def _decode(self, chunk: bytes, packets: list[Packet]) -> int:
        """Decode whole packets; return where the first that is not whole begins."""
        at, end = 0, len(chunk)
        while at < end:
            first = chunk[at]
            kind = first >> 4
            self._check_first_byte(kind, first)
            size, body = _remaining_length(chunk, at + 1, end)
            if body < 0:
                self._wanted_bytes = end - at + 1
                return at
            stop = body + size
            if stop - at > self._max_packet_bytes:
                raise MqttProtocolError(
                    ReasonCode.PACKET_TOO_LARGE,
                    f"a packet of {stop - at} bytes is over the maximum of {self._max_packet_bytes}",
                )
            if stop > end:
                self._wanted_bytes = stop - at
                return at
            if kind == _PUBLISH:
                packets.append(self._publish(chunk, first, body, stop))
            elif size == 2 and kind in _SHORT:
                packet_id = chunk[body] << 8 | chunk[body + 1]
                if not packet_id:
                    raise malformed(f"{PacketType(kind).name} has the packet identifier 0")
                packets.append(_SHORT[kind](packet_id))
            else:
                reader = Reader(chunk, body, stop)
                packet = BODIES[kind](reader, self.version is Version.V5)
                if not reader.is_at_end():
                    raise malformed(f"{PacketType(kind).name} has {stop - reader.at} bytes too many")
                if isinstance(packet, Connect):
                    self.version = packet.version
                    self._awaits_connect = False
                packets.append(packet)
            at = stop
        return at

    def _check_first_byte(self, kind: int, first: int) -> None:
        if not kind:
            raise protocol_error("packet type 0 is forbidden")
        if kind == PacketType.AUTH and self.version is Version.V311:
            raise protocol_error("MQTT 3.1.1 has no AUTH")
        if kind == PacketType.CONNACK and kind not in self._kinds:
            raise protocol_error("CONNACK comes from the wrong side")
        if kind != _PUBLISH and first & 15 != _FIXED_FLAGS[kind]:
            raise malformed(f"{PacketType(kind).name} has the flags {first & 15:04b}")
        if kind not in self._kinds:
            raise protocol_error(f"{PacketType(kind).name} comes from the wrong side")
        if self._awaits_connect is not (kind == PacketType.CONNECT):
            if self._awaits_connect:
                raise protocol_error(f"the first packet is {PacketType(kind).name}, it must be CONNECT")
            raise protocol_error("there is a second CONNECT")
        if kind == PacketType.DISCONNECT and self._kinds is _FROM_SERVERS and self.version is Version.V311:
            raise protocol_error("a server of MQTT 3.1.1 sends no DISCONNECT")

    # PUBLISH: the one that there are many of.

    def _publish(self, chunk: bytes, first: int, at: int, stop: int) -> Publish:
        qos = first >> 1 & 3
        if qos == 3:
            raise malformed("PUBLISH has QoS 3")
        if first & 8 and not qos:
            raise malformed("PUBLISH has the DUP flag at QoS 0")
        begin = at + 2
        at = begin + (chunk[at] << 8 | chunk[at + 1]) if begin <= stop else stop + 1
        payload_at = at + 2 if qos else at
        if payload_at > stop:
            raise malformed("PUBLISH ends inside its header")
        raw = chunk[begin:at]
        topic = self._topics.get(raw)
        if topic is None:
            topic = self._new_topic(raw)
        packet_id = 0
        if qos:
            packet_id = chunk[at] << 8 | chunk[at + 1]
            if not packet_id:
                raise protocol_error("PUBLISH has the packet identifier 0")
        if self.version is not Version.V5:
            if not topic:
                raise malformed("PUBLISH has an empty topic name")
            return Publish(topic, chunk[payload_at:stop], qos, first & 1 == 1, first & 8 == 8, packet_id)
        if payload_at < stop and not chunk[payload_at]:
            payload_at += 1
            properties = EMPTY
        else:
            reader = Reader(chunk, payload_at, stop)
            properties = reader.properties(_PUBLISH)
            payload_at = reader.at
            self._check_publish(properties)
        if not topic and properties.topic_alias is None:
            raise protocol_error("PUBLISH has an empty topic name and no topic alias")
        return Publish(topic, chunk[payload_at:stop], qos, first & 1 == 1, first & 8 == 8, packet_id, properties)

    def _new_topic(self, raw: bytes) -> str:
        topic = name_of(raw, "the topic name")
        if topic:
            check_topic(topic)
        if len(self._topics) >= _REMEMBERED_TOPICS:
            self._topics.clear()
        self._topics[raw] = topic
        return topic

    def _check_publish(self, properties: Properties) -> None:
        if properties.response_topic is not None:
            check_topic(properties.response_topic)
        if properties.subscription_identifiers and self._kinds is _FROM_CLIENTS:
            raise protocol_error("PUBLISH of a client has a subscription identifier")


def _remaining_length(chunk: bytes, at: int, end: int) -> tuple[int, int]:
    """Size of a packet's body and where it begins; (0, -1) if the bytes end inside the size."""
    size = shift = 0
    while at < end:
        byte = chunk[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift and not byte:
                raise malformed("the remaining length is longer than its number needs")
            return size, at
        shift += 7
        if shift > 21:
            raise malformed("the remaining length has more than four bytes")
    return 0, -1
