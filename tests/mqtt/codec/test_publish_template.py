"""A PUBLISH for many receivers is, for each of them, the packet that would have been encoded for it alone."""

from __future__ import annotations

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt_codec import Decoder, Packet, Properties, PublishTemplate, Version, encode, publish_template
from broker_adapter.mqtt_codec.packets import Publish
from tests.mqtt.codec.strategies import four_bytes, packet_ids, publishes, versions

V311, V5 = Version.V311, Version.V5


def template_of(packet: Publish, version: Version) -> PublishTemplate:
    return publish_template(
        packet.topic, packet.payload, packet.qos, version, retain=packet.retain, values=packet.properties
    )


def decoded(data: bytes, version: Version) -> list[Packet]:
    return Decoder(of="server", version=version).receive(data)


@given(versions, publishes(V5, "server").filter(lambda packet: packet.topic != ""))
def test_it_is_the_packet_encoded_alone(version: Version, packet: Publish) -> None:
    template = template_of(packet, version)
    written = template.with_packet_id(packet.packet_id, dup=packet.dup)
    expected = encode(packet, version)
    # Expiry and alias may stand elsewhere among the properties than where `encode` puts them.
    assert decoded(written, version) == decoded(expected, version)
    assert template.size_bytes == len(written) == len(expected)
    assert template.head(packet.packet_id, dup=packet.dup) + template.payload == written


@given(
    publishes(V5, "server").filter(lambda packet: packet.topic != "" and packet.properties.topic_alias is None),
    st.one_of(st.none(), four_bytes),
    st.one_of(st.none(), st.integers(1, 65_535)),
    st.booleans(),
    st.lists(packet_ids, min_size=1, max_size=3),
)
def test_expiry_and_alias_are_each_receivers_own(
    packet: Publish, expiry_interval_s: int | None, topic_alias: int | None, knows_alias: bool, ids: list[int]
) -> None:
    template = template_of(packet, V5)
    topic, properties = packet.topic, attrs.evolve(packet.properties, topic_alias=topic_alias)
    if expiry_interval_s is not None:
        properties = attrs.evolve(properties, message_expiry_interval=expiry_interval_s)
    if knows_alias and topic_alias is not None:
        topic = ""
    for packet_id in ids:
        own = msgspec.structs.replace(
            packet, packet_id=packet_id if packet.qos else 0, topic=topic, properties=properties
        )
        head = template.head(
            packet_id,
            dup=packet.dup,
            expiry_interval_s=expiry_interval_s,
            topic_alias=topic_alias,
            knows_alias=knows_alias,
        )
        assert decoded(head + template.payload, V5) == [own]
        assert len(head + template.payload) == len(encode(own, V5))


def test_the_payload_is_not_copied() -> None:
    payload = bytes(100)
    assert publish_template("a", payload, 1, V5).payload is payload


def test_version_311_has_neither_properties_nor_expiry_nor_alias() -> None:
    template = publish_template("a", b"x", 1, V311, values=Properties(content_type="c", message_expiry_interval=5))
    plain = bytes.fromhex("32 06 0001 61 0007 78")
    assert template.with_packet_id(7) == plain
    assert template.head(7, expiry_interval_s=1, topic_alias=1, knows_alias=True) == plain[:-1]


def test_the_remaining_length_takes_what_an_alias_needs() -> None:
    # 127 bytes after the header; with an alias there are 130, whose length takes a second byte.
    template = publish_template("a", bytes(123), 0, V5)
    assert template.head(0).hex(" ") == "30 7f 00 01 61 00"
    assert template.head(0, topic_alias=258).hex(" ") == "30 82 01 00 01 61 03 23 01 02"
    assert template.head(0, topic_alias=258, knows_alias=True).hex(" ") == "30 81 01 00 00 03 23 01 02"


def test_an_alias_may_be_the_templates_own() -> None:
    template = publish_template("", b"x", 0, V5, values=Properties(topic_alias=5))
    assert template.with_packet_id(0) == bytes.fromhex("30 07 0000 03 23 0005 78")


def test_at_qos_0_identifier_and_dup_are_not_used() -> None:
    template = publish_template("a", b"x", 0, V5)
    assert template.with_packet_id(7, dup=True) == template.with_packet_id(0) == bytes.fromhex("30 05 0001 61 00 78")


@pytest.mark.parametrize("packet_id", [-1, 0, 65_536])
def test_a_packet_identifier_out_of_bounds_is_refused(packet_id: int) -> None:
    with pytest.raises(ValueError, match="it must be from 1 to 65535"):
        publish_template("a", b"", 1, V5).head(packet_id)


@pytest.mark.parametrize(
    ("topic", "qos", "values", "message"),
    [
        ("a", 3, Properties(), "QoS 3"),
        ("a" * 65_536, 0, Properties(), "65536 bytes"),
        ("a", 0, Properties(receive_maximum=1), "not allowed there"),
        ("a", 0, Properties(message_expiry_interval=1 << 32), "does not fit into 4 bytes"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_template_is_made(
    topic: str, qos: int, values: Properties, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        publish_template(topic, b"", qos, V5, values=values)
