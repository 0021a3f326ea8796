"""Packets and bytes written by hand from the standards, decoded and encoded."""

from __future__ import annotations

from typing import Literal, cast, get_args

import pytest

from broker_adapter.mqtt_codec import Decoder, Packet, Properties, ReasonCode, encode
from broker_adapter.mqtt_codec.packets import Connack, Connect, Puback, Publish, Suback
from tests.mqtt.codec.samples import SAMPLES, V5, V311, Sample

_IDS = [f"{sample.version.name}-{type(sample.packet).__name__}-{sample.written[:40]}" for sample in SAMPLES]


def decoder_of(sender: str, sample: Sample) -> Decoder:
    is_first = isinstance(sample.packet, Connect)
    return Decoder(of=cast(Literal["client", "server"], sender), version=None if is_first else sample.version)


@pytest.mark.parametrize("sample", SAMPLES, ids=_IDS)
def test_bytes_become_the_packet(sample: Sample) -> None:
    for sender in sample.senders:
        decoder = decoder_of(sender, sample)
        assert decoder.receive(sample.data) == [sample.packet]
        assert decoder.version is sample.version
        assert decoder.is_empty


@pytest.mark.parametrize("sample", SAMPLES, ids=_IDS)
def test_the_packet_becomes_the_bytes(sample: Sample) -> None:
    assert encode(sample.packet, sample.version).hex(" ") == sample.data.hex(" ")


@pytest.mark.parametrize("version", [V311, V5])
def test_all_packets_have_a_sample(version: object) -> None:
    there = {type(sample.packet) for sample in SAMPLES if sample.version is version}
    assert {cls.__name__ for cls in set(get_args(Packet)) - there} == (set() if version is V5 else {"Auth"})


@pytest.mark.parametrize(
    ("data", "packet"),
    [
        # Forms that are allowed but not the shortest, which is what is written.
        ("40 03 0001 00", Puback(1)),
        ("40 04 0001 00 00", Puback(1)),
        ("30 04 0001 61 00", Publish("a")),
        # Properties in another order than that in which they are written.
        (
            "30 0d  0001 61  09 03 0001 63 02 00000001",
            Publish("a", properties=Properties(content_type="c", message_expiry_interval=1)),
        ),
    ],
)
def test_other_forms_are_read(data: str, packet: Packet) -> None:
    assert Decoder(version=V5).receive(bytes.fromhex(data)) == [packet]


def test_what_the_old_version_cannot_tell_is_the_nearest_to_it() -> None:
    busy = Connack(reason_code=ReasonCode.SERVER_BUSY)
    assert encode(busy, V311).hex() == "20020003"
    assert encode(Connack(reason_code=ReasonCode.BANNED), V311).hex() == "20020005"
    assert encode(Suback(1, (ReasonCode.QUOTA_EXCEEDED, ReasonCode.GRANTED_QOS_1)), V311).hex() == "900400018001"
