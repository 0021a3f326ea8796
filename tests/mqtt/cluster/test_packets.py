"""The test clients' packets and the product's codec were written apart; here each reads what the other one writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.mqtt import packets as load_packets
from broker_adapter.mqtt_codec import Decoder, Properties, Version, encode
from broker_adapter.mqtt_codec import Packet as ProductPacket
from broker_adapter.mqtt_codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from tests.mqtt.cluster import packets
from tests.mqtt.cluster.packets import Packet, Reader

versions = st.sampled_from(list(Version))
packet_ids = st.integers(1, 65_535)
topics = st.text(st.characters(exclude_characters="+#\0", exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


def decoded(data: bytes, version: Version | None = None) -> list[ProductPacket]:
    return Decoder(version=version).receive(data)


@given(versions, topics, st.booleans())
def test_connect_is_understood(version: Version, client_id: str, clean_start: bool) -> None:
    [packet] = decoded(packets.connect(version, client_id, clean_start=clean_start))
    assert isinstance(packet, Connect)
    assert (packet.version, packet.client_id, packet.clean_start) == (version, client_id, clean_start)
    assert packet.properties.session_expiry_interval == (None if clean_start or version is Version.V311 else 3600)
    if version is Version.V311:
        [packet] = decoded(load_packets.connect(client_id, clean_session=clean_start, keep_alive_s=7))
        assert packet == Connect(client_id, version=version, clean_start=clean_start, keep_alive_s=7)
        [packet] = decoded(load_packets.connect(client_id, clean_session=clean_start, user="bench"))
        assert packet == Connect(client_id, version=version, clean_start=clean_start, username="bench")


@given(versions, packet_ids, topics, st.binary(max_size=300), st.integers(0, 2), st.booleans(), st.booleans())
def test_publish_is_understood_both_ways(
    version: Version, packet_id: int, topic: str, payload: bytes, qos: int, dup: bool, retain: bool
) -> None:
    expected = Publish(topic, payload, qos=qos, retain=retain, dup=dup and qos > 0, packet_id=packet_id if qos else 0)
    data = packets.publish(version, packet_id, topic, payload, qos, dup=expected.dup, retain=retain)
    assert decoded(data, version) == [expected]
    if version is Version.V311 and qos < 2 and not retain and not expected.dup:
        assert decoded(load_packets.publish(topic, payload, packet_id=expected.packet_id), version) == [expected]
    [read] = Reader(version).feed(encode(expected, version))
    assert (read.topic, read.payload, read.qos, read.retain, read.dup, read.packet_id) == (
        (topic, payload, qos, retain, expected.dup, expected.packet_id)
    )


@given(versions, packet_ids, topics, st.integers(0, 2))
def test_subscribe_is_understood(version: Version, packet_id: int, topic: str, qos: int) -> None:
    expected = Subscribe(packet_id, (SubscriptionRequest(topic, qos),))
    assert decoded(packets.subscribe(version, packet_id, topic, qos), version) == [expected]
    if version is Version.V311:
        assert decoded(load_packets.subscribe(topic, qos, packet_id), version) == [expected]


@pytest.mark.parametrize("version", list(Version))
def test_answers_are_understood_both_ways(version: Version) -> None:
    kinds = {packets.PUBACK: Puback, packets.PUBREC: Pubrec, packets.PUBREL: Pubrel, packets.PUBCOMP: Pubcomp}
    for kind, product in kinds.items():
        assert decoded(packets.answer(kind, 77), version) == [product(77)]
        assert Reader(version).feed(encode(product(77), version)) == [Packet(kind, 77)]
    assert decoded(packets.pingreq() + packets.disconnect(), version) == [Pingreq(), Disconnect()]


def test_reason_codes_and_properties_of_a_broker_are_read_or_passed_over() -> None:
    sent: list[ProductPacket] = [
        Connack(True, 0, Properties(receive_maximum=9, reason_string="r")),
        Puback(1, 0x97, Properties(reason_string="full")),
        Pubrec(2, 0x80),
        Suback(3, (0x87,), Properties(reason_string="no")),
        Publish("t", b"p", 1, packet_id=4, properties=Properties(subscription_identifiers=(300,), content_type="c")),
        Pingresp(),
        Disconnect(0x8E),
    ]
    stream = b"".join(encode(packet, Version.V5) for packet in sent)
    reader = Reader(Version.V5)
    found = [packet for at in range(len(stream)) for packet in reader.feed(stream[at : at + 1])]
    assert found == [
        Packet(packets.CONNACK, session_present=True),
        Packet(packets.PUBACK, 1, 0x97),
        Packet(packets.PUBREC, 2, 0x80),
        Packet(packets.SUBACK, 3, 0x87),
        Packet(packets.PUBLISH, 4, topic="t", payload=b"p", qos=1),
        Packet(packets.PINGRESP),
        Packet(packets.DISCONNECT, code=0x8E),
    ]
