"""A PUBLISH for many receivers is, for each of them, the packet that would have been encoded for it alone.

Each test is of both forms of the templates.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from broker_adapter.mqtt_codec import Decoder, Packet, Properties, PublishTemplate, Version, encode, publish_template
from broker_adapter.mqtt_codec.packets import Publish
from broker_adapter.mqtt_codec.publish_template import MakeTemplate, PurePublishTemplate, make_template
from shards import compiled
from tests.mqtt.codec.strategies import four_bytes, packet_ids, publishes, versions

needs_compiled = pytest.mark.skipif(compiled.publish_template is None, reason=f"loops are {compiled.DESCRIPTION}")
each_form = pytest.mark.parametrize(
    "make", [PurePublishTemplate, pytest.param(compiled.publish_template, marks=needs_compiled)], ids=["python", "c"]
)

V311, V5 = Version.V311, Version.V5


def template_of(packet: Publish, version: Version, make: MakeTemplate) -> PublishTemplate:
    return publish_template(
        packet.topic, packet.payload, packet.qos, version, retain=packet.retain, values=packet.properties, make=make
    )


def decoded(data: bytes, version: Version) -> list[Packet]:
    return Decoder(of="server", version=version).receive(data)


@each_form
@given(version=versions, packet=publishes(V5, "server").filter(lambda packet: packet.topic != ""))
def test_it_is_the_packet_encoded_alone(make: MakeTemplate, version: Version, packet: Publish) -> None:
    template = template_of(packet, version, make)
    written = template.packet(packet.packet_id, dup=packet.dup)
    expected = encode(packet, version)
    # Expiry and alias may stand elsewhere among the properties than where `encode` puts them.
    assert decoded(written, version) == decoded(expected, version)
    assert template.size_bytes == len(written) == len(expected)
    assert (template.payload, template.qos) == (packet.payload, packet.qos)


@each_form
@given(
    packet=publishes(V5, "server").filter(lambda packet: packet.topic != "" and packet.properties.topic_alias is None),
    expiry_interval_s=st.one_of(st.none(), four_bytes),
    topic_alias=st.one_of(st.none(), st.integers(1, 65_535)),
    knows_alias=st.booleans(),
    ids=st.lists(packet_ids, min_size=1, max_size=3),
)
def test_expiry_and_alias_are_each_receivers_own(
    make: MakeTemplate,
    packet: Publish,
    expiry_interval_s: int | None,
    topic_alias: int | None,
    knows_alias: bool,
    ids: list[int],
) -> None:
    template = template_of(packet, V5, make)
    topic, properties = packet.topic, replace(packet.properties, topic_alias=topic_alias)
    if expiry_interval_s is not None:
        properties = replace(properties, message_expiry_interval=expiry_interval_s)
    if knows_alias and topic_alias is not None:
        topic = ""
    for packet_id in ids:
        own = replace(packet, packet_id=packet_id if packet.qos else 0, topic=topic, properties=properties)
        written = template.packet(
            packet_id,
            dup=packet.dup,
            expiry_interval_s=expiry_interval_s,
            topic_alias=topic_alias,
            knows_alias=knows_alias,
        )
        assert decoded(written, V5) == [own]
        assert len(written) == len(encode(own, V5))


@each_form
def test_the_payload_is_not_copied(make: MakeTemplate) -> None:
    payload = bytes(100)
    assert publish_template("a", payload, 1, V5, make=make).payload is payload


@each_form
def test_version_311_has_neither_properties_nor_expiry_nor_alias(make: MakeTemplate) -> None:
    values = Properties(content_type="c", message_expiry_interval=5)
    template = publish_template("a", b"x", 1, V311, values=values, make=make)
    plain = bytes.fromhex("32 06 0001 61 0007 78")
    assert template.packet(7) == plain
    assert template.packet(7, expiry_interval_s=1, topic_alias=1, knows_alias=True) == plain


@each_form
def test_the_remaining_length_takes_what_an_alias_needs(make: MakeTemplate) -> None:
    # 127 bytes after the header; with an alias there are 130, whose length takes a second byte.
    template = publish_template("a", bytes(123), 0, V5, make=make)
    assert template.packet(0)[:-123].hex(" ") == "30 7f 00 01 61 00"
    assert template.packet(0, topic_alias=258)[:-123].hex(" ") == "30 82 01 00 01 61 03 23 01 02"
    known = template.packet(0, topic_alias=258, knows_alias=True)
    assert known[:-123].hex(" ") == "30 81 01 00 00 03 23 01 02"


@each_form
def test_an_alias_may_be_the_templates_own(make: MakeTemplate) -> None:
    template = publish_template("", b"x", 0, V5, values=Properties(topic_alias=5), make=make)
    assert template.packet(0) == bytes.fromhex("30 07 0000 03 23 0005 78")


@each_form
def test_at_qos_0_identifier_and_dup_are_not_used(make: MakeTemplate) -> None:
    template = publish_template("a", b"x", 0, V5, make=make)
    assert template.packet(7, dup=True) == template.packet(0) == bytes.fromhex("30 05 0001 61 00 78")


@each_form
@pytest.mark.parametrize("packet_id", [-1, 0, 65_536, 2**70])
def test_a_packet_identifier_out_of_bounds_is_refused(make: MakeTemplate, packet_id: int) -> None:
    with pytest.raises(ValueError, match=rf"^packet identifier is {packet_id}, it must be from 1 to 65535$"):
        publish_template("a", b"", 1, V5, make=make).packet(packet_id)


@each_form
@pytest.mark.parametrize(
    ("topic", "qos", "values", "message"),
    [
        ("a", 3, Properties(), "QoS 3"),
        ("a" * 65_536, 0, Properties(), "65536 bytes"),
        ("\u00fc" * 32_768, 0, Properties(), "65536 bytes"),
        ("\ud800", 0, Properties(), "surrogates not allowed"),
        ("a", 0, Properties(receive_maximum=1), "not allowed there"),
        ("a", 0, Properties(message_expiry_interval=1 << 32), "does not fit into 4 bytes"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_template_is_made(
    make: MakeTemplate, topic: str, qos: int, values: Properties, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        publish_template(topic, b"", qos, V5, values=values, make=make)


@each_form
@pytest.mark.parametrize(("version", "most"), [(V311, 2**28 - 6), (V5, 2**28 - 7)])
def test_a_packet_has_at_most_the_length_that_its_header_can_say(
    make: MakeTemplate, version: Version, most: int
) -> None:
    """Payloads of zeros that are not touched take no memory."""
    template = publish_template("a", bytes(most), 1, version, make=make)
    assert template.size_bytes == 5 + 2**28 - 1
    too_long = "^packet has {} bytes after its fixed header, it must have at most 268435455$"
    with pytest.raises(ValueError, match=too_long.format(2**28)):
        publish_template("a", bytes(most + 1), 1, version, make=make)
    if version is V5:
        with pytest.raises(ValueError, match=too_long.format(2**28 + 2)):
            template.packet(1, topic_alias=1)


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except ValueError as error:
        return type(error), str(error)


Call: TypeAlias = tuple[int, bool, int | None, int | None, bool]


def packet_of(template: PublishTemplate, call: Call) -> bytes:
    packet_id, dup, expiry, alias, knows_alias = call
    return template.packet(packet_id, dup=dup, expiry_interval_s=expiry, topic_alias=alias, knows_alias=knows_alias)


numbers = st.none() | st.sampled_from((-(2**70), -1, 0, 1, 65_535, 65_536, 2**32 - 1, 2**32, 2**63, 2**70))
lengths = st.sampled_from((0, 1, 110, 127, 128, 16_250, 16_383, 16_384, 2_097_100, 2_097_152)) | st.integers(0, 300)


@needs_compiled
@given(
    st.sampled_from((0x30, 0x31, 0x32, 0x33, 0x34, 0x35)),
    st.text(max_size=9) | st.builds(str.__mul__, st.sampled_from(("a", "\u00fc", "\ud800")), lengths),
    lengths.map(bytes),
    st.booleans(),
    numbers,
    lengths.map(bytes),
    st.lists(st.tuples(numbers.map(lambda number: number or 0), st.booleans(), numbers, numbers, st.booleans())),
)
def test_both_forms_do_the_same(
    first: int,
    topic: str,
    payload: bytes,
    has_properties: bool,
    expiry_interval_s: int | None,
    rest: bytes,
    calls: list[Call],
) -> None:
    """They make the same packets, or raise the same errors."""
    arguments = (first, topic, payload, has_properties, expiry_interval_s, rest)
    python, c = [outcome(partial(make, *arguments)) for make in (PurePublishTemplate, make_template)]
    if isinstance(python, tuple):
        assert c == python
        return
    assert isinstance(python, PurePublishTemplate)
    assert isinstance(c, type(publish_template("", b"", 0, V5)))
    assert (c.size_bytes, c.qos) == (python.size_bytes, python.qos)
    for call in calls:
        assert outcome(partial(packet_of, c, call)) == outcome(partial(packet_of, python, call))


@needs_compiled
@pytest.mark.parametrize("limit", [2**7, 2**14, 2**21])
@pytest.mark.parametrize("qos", [0, 1])
def test_both_forms_write_lengths_alike_where_they_get_a_byte_longer(limit: int, qos: int) -> None:
    """Those of the packet and of its properties."""
    for size in range(limit - 18, limit - 3):
        for payload, rest in ((bytes(size), b""), (b"", bytes(size))):
            arguments = (0x30 | qos << 1, "a", payload, True, 5, rest)
            python, c = PurePublishTemplate(*arguments), make_template(*arguments)
            assert c.size_bytes == python.size_bytes
            assert c.packet(7) == python.packet(7)
            assert c.packet(7, topic_alias=1) == python.packet(7, topic_alias=1)


@needs_compiled
def test_properties_that_are_too_long_are_refused_by_both_forms() -> None:
    for make in (PurePublishTemplate, make_template):
        with pytest.raises(ValueError, match=r"^268435456 is not a variable byte integer"):
            make(0x30, "a", b"", True, None, bytes(2**28))
    # That in Python has the same words, after it has copied the properties.
    with pytest.raises(ValueError, match=r"^packet has 268435462 bytes after its fixed header"):
        make_template(0x30, "a", b"", True, None, bytes(2**28 - 1))


@each_form
@pytest.mark.parametrize("topic", ["a" * 65_535, "\u00fc" * 32_767])
def test_a_topic_has_at_most_the_length_that_two_bytes_can_say(make: MakeTemplate, topic: str) -> None:
    packet = publish_template(topic, b"x", 0, V311, make=make).packet(0)
    assert decoded(packet, V311) == [Publish(topic, b"x")]


@needs_compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (0x30, b"a", b"", True, None, b""),
        (0x30, "a", "", True, None, b""),
        (0x30, "a", bytearray(), True, None, b""),
        (0x30, "a", b"", True, None, ""),
        (0x30, "a", b"", True, "", b""),
        (None, "a", b"", True, None, b""),
    ],
)
def test_arguments_of_other_types_are_refused(arguments: tuple[Any, ...]) -> None:
    assert compiled.publish_template is not None
    with pytest.raises(TypeError):
        compiled.publish_template(*arguments)


@needs_compiled
def test_wrong_calls_of_a_template_are_refused() -> None:
    template: Any = publish_template("a", b"", 1, V5)
    for arguments, keywords in [
        ((), {}),
        ((1, 2), {}),
        ((None,), {}),
        ((1,), {"other": 1}),
        ((1,), {"topic_alias": ""}),
    ]:
        with pytest.raises(TypeError):
            template.packet(*arguments, **keywords)
    with pytest.raises(TypeError):
        type(template)()
    with pytest.raises(AttributeError):
        template.payload = b""


@needs_compiled
def test_a_failed_request_for_memory_is_an_error() -> None:
    testcapi = pytest.importorskip("_testcapi", reason="this Python lacks its own test module")
    make = make_template
    topics = [f"\u00fc{number}" for number in range(20)]  # Their bytes are kept once they were asked for.
    payload, rest = bytes(1000), bytes(1000)
    failures = 0
    for start, topic in enumerate(topics):
        packet: object = None
        testcapi.set_nomemory(start, start + 1)
        try:
            packet = make(0x32, topic, payload, True, 5, rest).packet(7)
        except MemoryError:
            failures += 1
        finally:
            testcapi.remove_mem_hooks()
        assert packet in (None, make(0x32, topic, payload, True, 5, rest).packet(7))
    assert 3 <= failures < 20


@needs_compiled
def test_a_template_holds_what_it_has_and_nothing_else() -> None:
    topic, payload, rest = "\u00fc" * 20, bytes(1000), bytes(1000)
    held = (topic, payload, rest, 2**40)
    counts = [sys.getrefcount(each) for each in held]
    template: Any = make_template(0x32, topic, payload, True, 5, rest)
    now = [sys.getrefcount(each) for each in held]
    assert [after - before for after, before in zip(now, counts, strict=True)] == [1, 1, 1, 0]
    assert not gc.is_tracked(template)
    tracemalloc.start()
    template.packet(7)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        template.packet(7, dup=True, expiry_interval_s=2**31, topic_alias=300, knows_alias=True)
        assert isinstance(outcome(partial(template.packet, 0)), tuple)
        assert isinstance(outcome(partial(template.packet, 1, topic_alias=2**70)), tuple)
        assert isinstance(outcome(partial(make_template, 0x32, topic * 10_000, payload, True, 5, rest)), tuple)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 20_000
    del template
    assert [sys.getrefcount(each) for each in held] == counts


@needs_compiled
def test_the_compiled_form_is_used_where_there_is_one() -> None:
    assert make_template is compiled.publish_template
