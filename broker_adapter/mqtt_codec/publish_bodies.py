"""PUBLISH after the fixed header. A PUBLISH for many receivers is encoded by `mqtt_codec.publish_template`."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from broker_adapter.mqtt_codec.errors import protocol_error
from broker_adapter.mqtt_codec.fixed_header import fixed_header
from broker_adapter.mqtt_codec.packet_types import PacketType, Side, first_byte
from broker_adapter.mqtt_codec.packets import Publish, Version
from broker_adapter.mqtt_codec.primitives import MAX_TWO_BYTES, TWO_BYTES, truncated
from broker_adapter.mqtt_codec.properties import EMPTY
from broker_adapter.mqtt_codec.property_section import read_properties, write_properties
from broker_adapter.mqtt_codec.property_table import Place
from broker_adapter.mqtt_codec.text import topic_name

RETAIN: Final = 0x01
QOS: Final = 0x06
QOS_SHIFT: Final = 1
DUP: Final = 0x08

FIRST_BYTES: Final = tuple(
    first_byte(PacketType.PUBLISH) | dup | qos << QOS_SHIFT | retain
    for qos in range(3)
    for dup in ((0, DUP) if qos else (0,))
    for retain in (0, RETAIN)
)
"""All valid first bytes of a PUBLISH: no QoS 3, no DUP with QoS 0."""


def read_publish(version: Version, sender: Side) -> Callable[[int, bytes, int, int], Publish]:
    """Make the reader of PUBLISH for a version and a sender."""
    has_properties = version is Version.V5
    place = Place.CLIENT_PUBLISH if sender == "client" else Place.SERVER_PUBLISH

    def read(first: int, data: bytes, at: int, stop: int) -> Publish:
        at += 2
        if at > stop:
            raise truncated("the topic name of PUBLISH", at - 2, stop)
        end = at + (data[at - 2] << 8 | data[at - 1])
        if end > stop:
            raise truncated(f"the topic name of PUBLISH, {end - at} bytes,", at, stop)
        topic = topic_name(data[at:end])
        packet_id, qos = 0, first >> QOS_SHIFT & 3
        if qos:
            at, end = end, end + 2
            if end > stop:
                raise truncated("the packet identifier of PUBLISH", at, stop)
            packet_id = data[at] << 8 | data[at + 1]
            if not packet_id:
                raise protocol_error(f"PUBLISH has packet identifier 0, it must be from 1 to {MAX_TWO_BYTES}")
        properties = EMPTY
        if has_properties:
            properties, end = read_properties(place, data, end, stop)
        if not topic and properties.topic_alias is None:
            raise protocol_error("PUBLISH has an empty topic name and no topic alias")
        return Publish(topic, data[end:stop], qos, first & RETAIN == RETAIN, first & DUP == DUP, packet_id, properties)

    return read


def publish_first_byte(qos: int, retain: bool) -> int:
    """The first byte without the DUP flag."""
    if not 0 <= qos <= 2:
        raise ValueError(f"PUBLISH has QoS {qos}, it must be 0, 1 or 2")
    return _FIRST | qos << QOS_SHIFT | (RETAIN if retain else 0)


def check_packet_id(first: int, packet_id: int) -> None:
    """Refuse a packet identifier that is not valid for the QoS in the first byte."""
    if (not 0 < packet_id <= MAX_TWO_BYTES) if first & QOS else packet_id:
        qos = first >> QOS_SHIFT & 3
        raise ValueError(f"PUBLISH of QoS {qos} has packet identifier {packet_id}, it must be 0 with QoS 0 only")


def write_publish(packet: Publish, version: Version) -> bytes:
    """Write a PUBLISH.

    Raises:
        ValueError: The QoS does not match the packet identifier or the DUP flag, or a value is out of bounds.
    """
    qos, packet_id, properties = packet.qos, packet.packet_id, packet.properties
    first = publish_first_byte(qos, packet.retain)
    topic = packet.topic.encode()
    topic_bytes = len(topic)
    if topic_bytes > MAX_TWO_BYTES:
        raise ValueError(f"topic name has {topic_bytes} bytes, it must have at most {MAX_TWO_BYTES}")
    tail = b"" if version is Version.V311 else b"\0"
    if properties is not EMPTY and tail:
        tail = write_properties(Place.PUBLISH, properties)
    if packet_id or qos:
        check_packet_id(first, packet_id)
        tail = TWO_BYTES.pack(packet_id) + tail
    if packet.dup:
        if not qos:
            raise ValueError("PUBLISH of QoS 0 has the DUP flag, it must not be set")
        first |= DUP
    payload = packet.payload
    length = TWO_BYTES.size + topic_bytes + len(tail) + len(payload)
    if length < 0x80:
        return b"%b%b%b%b" % (_SHORT_HEAD.pack(first, length, topic_bytes), topic, tail, payload)
    return b"".join((fixed_header(first, length), TWO_BYTES.pack(topic_bytes), topic, tail, payload))


# First byte, remaining length if it has one byte, length of the topic name.
_SHORT_HEAD: Final = Struct(">BBH")
_FIRST: Final = first_byte(PacketType.PUBLISH)
