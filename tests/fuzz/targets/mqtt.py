"""MQTT packets, of clients and of servers, in both versions."""

from __future__ import annotations

from collections.abc import Iterator

from broker_adapter.mqtt_codec import Decoder, MqttProtocolError, Packet, Version, encode, publish_template
from broker_adapter.mqtt_codec.packets import Connect, Publish
from broker_adapter.mqtt_codec.publish_template import PurePublishTemplate, make_template
from tests.fuzz.target import Target
from tests.mqtt.codec.samples import SAMPLES

_LIMIT_BYTES = 3000
_Outcome = tuple[list[Packet], tuple[object, str, bytes] | None, Version | None, bool]


def _decoder(kind: int) -> Decoder:
    version = Version.V5 if kind & 1 else Version.V311
    if kind & 2:
        return Decoder(of="server", version=version, max_packet_bytes=_LIMIT_BYTES)
    return Decoder(version=version if kind & 4 else None, max_packet_bytes=_LIMIT_BYTES)


def _decode(decoder: Decoder, pieces: Iterator[bytes]) -> _Outcome:
    seen: list[Packet] = []
    for piece in pieces:
        try:
            seen += decoder.receive(piece)
        except MqttProtocolError as error:
            seen += error.packets
            return seen, (error.reason_code, str(error), error.answer), decoder.version, decoder.is_empty
    return seen, None, decoder.version, decoder.is_empty


def run_mqtt(data: bytes) -> None:
    """A stream gives the same packets and the same fault whole, byte by byte and in uneven pieces.

    The only error is MqttProtocolError. A packet that was read encodes, and reads as the same packet again.
    """
    if not data:
        return
    kind, stream = data[0], data[1:]
    whole = _decode(_decoder(kind), iter((stream,)))
    for size in (1, 7, 300):
        pieces = (stream[at : at + size] for at in range(0, len(stream), size))
        assert _decode(_decoder(kind), pieces) == whole
    version = Version.V5 if kind & 1 else Version.V311
    for packet in whole[0]:
        if isinstance(packet, Connect):
            version = packet.version
            again = Decoder()
        else:
            again = Decoder(of="server" if kind & 2 else "client", version=version)
        assert again.receive(encode(packet, version)) == [packet]
        assert again.is_empty
        if isinstance(packet, Publish) and packet.topic and packet.properties.topic_alias is None:
            _check_template(packet, version, again)


def _check_template(packet: Publish, version: Version, decoder: Decoder) -> None:
    for make in {PurePublishTemplate, make_template}:
        template = publish_template(
            packet.topic, packet.payload, packet.qos, version, retain=packet.retain, values=packet.properties, make=make
        )
        assert decoder.receive(template.packet(packet.packet_id, dup=packet.dup)) == [packet]


def _seeds() -> list[bytes]:
    made = []
    for sample in SAMPLES:
        if len(sample.data) > _LIMIT_BYTES:
            continue
        for sender in sample.senders:
            kind = (sample.version is Version.V5) | (2 if sender == "server" else 0)
            made.append(bytes([kind if isinstance(sample.packet, Connect) else kind | 4]) + sample.data)
    connect = next(
        sample.data for sample in SAMPLES if isinstance(sample.packet, Connect) and sample.version is Version.V5
    )
    publish = encode(Publish("a/b", b"payload", 1, packet_id=7), Version.V5)
    return [*made, b"\1" + connect + publish * 3]


def _repair(data: bytes) -> bytes:
    """Make the length of each packet that it is cut into fit what is there."""
    fixed = bytearray(data)
    at = 1
    while len(fixed) - at >= 2:
        left = len(fixed) - at - 2
        length = fixed[at + 1]
        if length >= 0x80:
            break
        if length > left:
            length = fixed[at + 1] = min(left, 0x7F)
        at += 2 + length
    return bytes(fixed)


TARGETS = (
    Target(
        "mqtt",
        run_mqtt,
        _seeds,
        _repair,
        (b"MQTT", b"\0\4MQTT\5", b"\0\4MQTT\4", b"\xff\xff\xff\x7f", b"$share/g/#"),
        1500,
    ),
)
