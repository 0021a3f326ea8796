"""When marked messages were sent, acknowledged and passed on, over connections of MQTT clients. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, Version
from broker_adapter.mqtt_codec.packet_types import Side
from broker_adapter.mqtt_codec.packets import Puback, Publish
from journal.trace.journal_frames import Times
from journal.trace.marker import Marker
from journal.trace.streams import Segment, reassemble

_PUBLISHED: Final = 0
_ACKNOWLEDGED: Final = 1


def publish_times(segments: list[Segment], local_port: int, marker: Marker, version: Version) -> tuple[Times, Times]:
    """When the client with this local port sent each message, and when its broker acknowledged it."""
    from_client = [segment for segment in segments if segment.direction.sender.port == local_port]
    from_broker = [segment for segment in segments if segment.direction.receiver.port == local_port]
    events: list[tuple[int, int, int, list[int]]] = []
    for sent_ns, packet in _packets(from_client, "client", version):
        if isinstance(packet, Publish):
            events.append((sent_ns, _PUBLISHED, packet.packet_id, marker.numbers(packet.payload)))
    for sent_ns, packet in _packets(from_broker, "server", version):
        if isinstance(packet, Puback):
            events.append((sent_ns, _ACKNOWLEDGED, packet.packet_id, []))
    published: Times = {}
    acknowledged: Times = {}
    # A packet identifier is used again after its acknowledgement, so the order matters.
    in_flight: dict[int, list[int]] = {}
    for sent_ns, kind, packet_id, numbers in sorted(events):
        if kind == _PUBLISHED:
            in_flight[packet_id] = numbers
            published |= dict.fromkeys(numbers, sent_ns)
        else:
            acknowledged |= dict.fromkeys(in_flight.pop(packet_id, []), sent_ns)
    return published, acknowledged


def delivery_times(segments: list[Segment], local_port: int, marker: Marker, version: Version) -> Times:
    """When each message was sent to the client with this local port."""
    to_client = [segment for segment in segments if segment.direction.receiver.port == local_port]
    delivered: Times = {}
    for sent_ns, packet in _packets(to_client, "server", version):
        if isinstance(packet, Publish):
            for number in marker.numbers(packet.payload):
                delivered.setdefault(number, sent_ns)
    return delivered


def _packets(segments: list[Segment], sender: Side, version: Version) -> Iterator[tuple[int, Packet]]:
    """The packets of one direction, each with the time at which its last byte was sent."""
    for run in reassemble(segments):
        decoder = Decoder(of=sender, version=version)
        try:
            for sent_ns, data in run:
                for packet in decoder.receive(data):
                    yield sent_ns, packet
        except MqttProtocolError:
            # After a hole, reading begins in the middle of a packet: the rest of this run is not found.
            continue
