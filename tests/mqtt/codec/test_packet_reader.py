"""The reader of usual packets in C: with and without it, any bytes give the same packets or the same error."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker_adapter.mqtt_codec import EMPTY, Decoder, Properties, Version, encode
from broker_adapter.mqtt_codec.packets import Puback, Publish
from shards import compiled
from tests.mqtt.codec.strategies import Sender, packets, senders, versions
from tests.mqtt.codec.test_stream import cut, cut_places, outcome, streams

LIMIT = 300

needs_compiled = pytest.mark.skipif(compiled.read_packets is None, reason=f"loops are {compiled.DESCRIPTION}")


class DecoderInPython(Decoder):
    """Reads every packet in Python."""

    __slots__ = ()
    read_usual = None


def publish(topic: bytes, packet_id: int, payload: bytes, *, first: int = 0x32, properties: bytes = b"") -> bytes:
    """A PUBLISH of up to 16 KiB, which may be wrong."""
    number = packet_id.to_bytes(2, "big") if first & 6 else b""
    body = len(topic).to_bytes(2, "big") + topic + number + properties + payload
    length = [len(body)] if len(body) < 0x80 else [len(body) & 0x7F | 0x80, len(body) >> 7]
    return bytes([first, *length]) + body


some_publishes = st.builds(
    publish,
    st.sampled_from(
        [
            b"a",
            b"plant/line/1",
            b"a/+",
            b"#",
            b"",
            b"\xc3\xb6",
            b"\xff",
            b"\xc2\x85",
            b"\xc2\xa0",
            b"\xed\xa0\x80",
            "größe/日本".encode(),
            b"a\x7f",
            b"a\0",
            b" ~",
            b"x" * 257,
        ]
    ),
    st.sampled_from([0, 1, 255, 256, 65_535]),
    st.sampled_from([b"", b"\0", b"payload", bytes(127), bytes(400)]),
    first=st.integers(0x30, 0x41),
    properties=st.sampled_from([b"", b"\0", b"\0\0", b"\x02\x01\x01", b"\x80\0"]),
)
some_pubacks = st.builds(
    lambda first, packet_id, rest: bytes([first, 2 + len(rest)]) + packet_id.to_bytes(2, "big") + rest,
    st.integers(0x40, 0x42),
    st.sampled_from([0, 1, 65_535]),
    st.sampled_from([b"", b"\0", b"\0\0", b"\x87"]),
)
some_bytes = st.lists(st.one_of(some_publishes, some_pubacks, streams), max_size=6).map(b"".join)


def types_in(packet: Any) -> list[type]:
    return [type(packet), *(type(getattr(packet, name)) for name in getattr(packet, "__struct_fields__", ()))]


@needs_compiled
@given(some_bytes, senders, versions, st.integers(1, LIMIT), cut_places)
@example(b"\x32\x80\x00", "client", Version.V311, LIMIT, [])
@example(b"\x32\xff\xff\xff\x7f", "client", Version.V311, LIMIT, [2])
@example(b"\x30\x03\x00\x01", "client", Version.V5, LIMIT, [])
@example(publish(b"a", 1, b"") * 3, "client", Version.V311, 6, [])
def test_any_bytes_give_the_same_with_it_and_without(
    data: bytes, sender: Sender, version: Version, limit: int, places: list[int]
) -> None:
    mine, expected = (
        outcome(made(of=sender, version=version, max_packet_bytes=limit), cut(data, places))
        for made in (Decoder, DecoderInPython)
    )
    assert mine == expected
    assert [types_in(packet) for packet in mine.packets] == [types_in(packet) for packet in expected.packets]


@needs_compiled
@given(st.data(), senders, versions)
def test_packets_of_a_conversation_are_the_same_with_it_and_without(
    data: st.DataObject, sender: Sender, version: Version
) -> None:
    sent = data.draw(st.lists(packets(version, sender), max_size=5))
    stream = b"".join(encode(packet, version) for packet in sent)
    outcomes = [outcome(made(of=sender, version=version), [stream]) for made in (Decoder, DecoderInPython)]
    assert outcomes[0] == outcomes[1]


def read(
    data: bytes,
    at: int = 0,
    limit: int = 1 << 20,
    *,
    publish: Any = Publish,
    puback: Any = Puback,
    properties: Any = EMPTY,
) -> tuple[int, list[Any]]:
    assert compiled.read_packets is not None
    found: list[Any] = []
    return compiled.read_packets(data, at, limit, False, publish, puback, properties, found), found


@needs_compiled
def test_it_reads_all_usual_packets_of_a_chunk_and_stops_before_the_first_other_one() -> None:
    usual = publish(b"plant/1", 7, b"x" * 200) * 2 + b"\x40\x02\x00\x09" + publish(b"plant/2", 0, b"", first=0x31)
    expected = [
        Publish("plant/1", b"x" * 200, 1, packet_id=7),
        Publish("plant/1", b"x" * 200, 1, packet_id=7),
        Puback(9),
        Publish("plant/2", b"", 0, retain=True),
    ]
    for after in (b"", b"\xc0\x00", b"\x32", usual[:-1], publish(b"a/#", 1, b""), publish(b"a", 0, b"")):
        at, found = read(usual + after)
        several = after == usual[:-1]
        assert at == (len(usual) * 2 - 11 if several else len(usual))
        assert found[: len(expected)] == expected
        assert all(packet.properties is EMPTY for packet in found)
    # The topic of equal neighbours is one object.
    _, found = read(usual)
    assert found[0].topic is found[1].topic


@needs_compiled
def test_it_reads_topics_in_any_language() -> None:
    topics = ["größe/1", "温度/一", "emoji/🌡", "nbsp/\xa0"]
    at, found = read(data := b"".join(publish(topic.encode(), 1, b"x") for topic in topics))
    assert (at, [packet.topic for packet in found]) == (len(data), topics)


@needs_compiled
def test_packets_with_properties_are_left_to_python() -> None:
    decoder = Decoder(version=Version.V5)
    sent = Publish("a", b"x", 1, packet_id=1, properties=Properties(topic_alias=3))
    assert decoder.receive(encode(sent, Version.V5)) == [sent]


@needs_compiled
@pytest.mark.parametrize("at", [-1, 5])
def test_a_position_outside_of_the_bytes_is_refused(at: int) -> None:
    with pytest.raises(ValueError, match=f"position is {at}, there are 4 bytes"):
        read(b"\x40\x02\x00\x01", at)


@needs_compiled
@pytest.mark.parametrize("arguments", [(bytearray(b"x"), []), (b"x", ()), (memoryview(b"x"), [])])
def test_other_types_are_refused(arguments: tuple[Any, Any]) -> None:
    assert compiled.read_packets is not None
    with pytest.raises(TypeError, match="takes bytes, and a list"):
        compiled.read_packets(arguments[0], 0, 1, False, Publish, Puback, EMPTY, arguments[1])


def fails(*_: object) -> object:
    raise MemoryError("no packet")


@needs_compiled
def test_an_error_of_a_class_is_passed_on() -> None:
    with pytest.raises(MemoryError, match="no packet"):
        read(publish(b"a", 1, b""), publish=fails)
    with pytest.raises(MemoryError, match="no packet"):
        read(b"\x40\x02\x00\x01", puback=fails)


@needs_compiled
def test_a_failed_request_for_memory_is_an_error() -> None:
    testcapi = pytest.importorskip("_testcapi", reason="this Python lacks its own test module")
    data = publish(b"plant/1", 300, b"x" * 100) + b"\x40\x02\x01\x09"
    expected = read(data)
    failures = 0
    for start in range(20):
        found: object = MemoryError
        testcapi.set_nomemory(start, start + 1)
        try:
            found = read(data)
        except MemoryError:
            failures += 1
        finally:
            testcapi.remove_mem_hooks()
        assert found in (MemoryError, expected)
    assert failures > 0


@needs_compiled
def test_nothing_is_held_after_a_call() -> None:
    data = publish(b"plant/1", 300, b"x" * 100) * 20 + publish(b"plant/2", 301, b"") * 20 + b"\x40\x02\x01\x09" * 20
    # No other test holds, or releases meanwhile, any of these.
    properties = Properties(content_type="text")
    classes = {"publish": partial(Publish), "puback": partial(Puback)}
    mine = (data, properties, *classes.values())

    def work() -> None:
        for _ in range(50):
            read(data, properties=properties, **classes)
            with pytest.raises(MemoryError):
                read(data, publish=fails, properties=properties)

    work()
    counts = [sys.getrefcount(each) for each in mine]
    gc.collect()
    tracemalloc.start()
    work()
    before = tracemalloc.get_traced_memory()[0]
    work()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4096
    assert [sys.getrefcount(each) for each in mine] == counts
