"""PUBLISH after the fixed header. One that goes to many receivers is `codec.publish_parts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker_adapter.mqtt.codec.errors import protocol_error
from broker_adapter.mqtt.codec.fixed_header import framed
from broker_adapter.mqtt.codec.packet_types import PacketType, Side, first_byte
from broker_adapter.mqtt.codec.packets import Publish
from broker_adapter.mqtt.codec.primitives import MAX_TWO_BYTES, TWO_BYTES, truncated
from broker_adapter.mqtt.codec.properties import EMPTY
from broker_adapter.mqtt.codec.property_section import read_properties, write_properties
from broker_adapter.mqtt.codec.property_table import Place
from broker_adapter.mqtt.codec.text import topic_name
from broker_adapter.mqtt.codec.version import Version

RETAIN: Final = 0x01
QOS_SHIFT: Final = 1
DUP: Final = 0x08

FIRST_BYTES: Final = tuple(
    first_byte(PacketType.PUBLISH) | dup | qos << QOS_SHIFT | retain
    for qos in range(3)
    for dup in ((0, DUP) if qos else (0,))
    for retain in (0, RETAIN)
)
"""Every first byte that a PUBLISH may have: no QoS 3, no DUP with QoS 0."""


def read_publish(version: Version, sender: Side) -> Callable[[int, bytes, int, int], Publish]:
    """Make the reader of PUBLISH for a version and who sends it."""
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


def write_publish(packet: Publish, version: Version) -> bytes:
    """Write a PUBLISH.

    Raises:
        ValueError: The QoS does not go with the packet identifier or the DUP flag, or a value is out of its bounds.
    """
    qos, packet_id = packet.qos, packet.packet_id
    head = packet.topic.encode()
    size = len(head)
    if size > MAX_TWO_BYTES:
        raise ValueError(f"topic name has {size} bytes, it must have at most {MAX_TWO_BYTES}")
    head = TWO_BYTES.pack(size) + head
    if qos:
        if not (qos <= 2 and 1 <= packet_id <= MAX_TWO_BYTES):
            raise ValueError(f"PUBLISH has QoS {qos} and packet identifier {packet_id}, it must have 1 to 65535")
        head += TWO_BYTES.pack(packet_id)
    elif packet_id or packet.dup:
        raise ValueError("PUBLISH of QoS 0 has a packet identifier or the DUP flag, it must have neither")
    if version is Version.V5:
        head += b"\0" if packet.properties is EMPTY else write_properties(Place.PUBLISH, packet.properties)
    first = _FIRST | qos << QOS_SHIFT | (RETAIN if packet.retain else 0) | (DUP if packet.dup else 0)
    size = len(head) + len(packet.payload)
    if size < 0x80:
        return b"%c%c%b%b" % (first, size, head, packet.payload)
    return framed(first, head + packet.payload)


_FIRST: Final = first_byte(PacketType.PUBLISH)
