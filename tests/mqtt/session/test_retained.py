"""The retained value of a topic is the last one; filters find exactly what they match."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.session import Retained
from broker_adapter.mqtt.session.keys import MAX_PART_BYTES
from broker_adapter.mqtt.session.retained import version_of
from broker_adapter.mqtt_codec.properties import Properties
from shards.seams.clock import Clock, ManualClock
from shards.topics.topic_filters import matches

CLOCK = ManualClock(4_102_444_800_000_000)


@pytest.fixture
async def adapter() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as opened:
        yield opened


async def retain(adapter: StorageAdapter, topic: str, payload: bytes, **fields: object) -> None:
    message = Message(topic, payload, 1, True, **fields)  # type: ignore[arg-type]
    change = Retained(adapter, clock=CLOCK).change_for(message)
    if isinstance(change, StatePut):
        await adapter.commit(Changes(puts=(change,)))
    else:
        await adapter.commit(Changes(deletes=(change,)))


async def find(adapter: StorageAdapter, topic_filter: str, clock: Clock = CLOCK) -> list[Message]:
    found: list[Message] = []
    after = b""
    while True:
        page = await Retained(adapter, clock=clock).page(topic_filter, after)
        found += [message for _, message in page.messages]
        after = page.last
        if page.is_last:
            return found


async def topics(adapter: StorageAdapter, topic_filter: str) -> list[str]:
    return [message.topic for message in await find(adapter, topic_filter)]


async def test_the_last_value_stays_and_an_empty_one_deletes(adapter: StorageAdapter) -> None:
    retained = Retained(adapter, clock=CLOCK)
    await retain(adapter, "a/b", b"1")
    await retain(adapter, "a/b", b"2")
    (found,) = await find(adapter, "a/b")
    assert (found.topic, found.payload, found.qos, found.retain) == ("a/b", b"2", 1, True)
    assert isinstance(retained.change_for(Message("a/b", b"", 0, True)), StateDelete)
    await retain(adapter, "a/b", b"")
    assert await find(adapter, "a/b") == []


async def test_everything_that_goes_from_end_to_end_is_kept(adapter: StorageAdapter) -> None:
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00\xff",
        user_properties=(("a", "1"), ("a", "2")),
    )
    await retain(adapter, "t", b"v", publisher="p", properties=properties, timestamp_us=5)
    (found,) = await find(adapter, "#", CLOCK)
    assert (found.properties, found.publisher, found.timestamp_us) == (properties, "p", 5)


async def test_its_version_shows_whether_a_subscription_gets_it_live_too(adapter: StorageAdapter) -> None:
    await retain(adapter, "t", b"1")
    (first,) = await find(adapter, "t", CLOCK)
    await retain(adapter, "t", b"2")
    (second,) = await find(adapter, "t", CLOCK)
    assert second.offset > first.offset > 0
    assert (second.shard, second.lsn) == ("$mqtt/retained/t", 0)
    assert Position(first.offset).covers(version_of(first))
    assert not Position(first.offset).covers(version_of(second))


async def test_a_wildcard_in_first_place_finds_no_topic_that_begins_with_a_dollar(adapter: StorageAdapter) -> None:
    for topic in ("$SYS/x", "a/x", "x"):
        await retain(adapter, topic, b"v")
    assert await topics(adapter, "#") == ["a/x", "x"]
    assert await topics(adapter, "+/x") == ["a/x"]
    assert await topics(adapter, "$SYS/#") == ["$SYS/x"]


async def test_what_has_expired_is_left_out_though_the_store_still_has_it(adapter: StorageAdapter) -> None:
    now_us = CLOCK.now_us()
    await retain(adapter, "a", b"v", expires_at_us=now_us)
    await retain(adapter, "b", b"v", expires_at_us=now_us + 1)
    assert await topics(adapter, "+") == ["b"]
    assert await topics(adapter, "a") == []


async def test_topics_too_long_for_a_key_are_kept_apart_and_found_by_their_beginning(adapter: StorageAdapter) -> None:
    stem = "é" * MAX_PART_BYTES
    long_topics = sorted([f"{stem}/a", f"{stem}/b", f"{stem}"])
    for topic in long_topics:
        await retain(adapter, topic, topic[-1].encode())
    for topic in long_topics:
        (found,) = await find(adapter, topic, CLOCK)
        assert found.payload == topic[-1].encode()
    assert sorted(await topics(adapter, f"{stem}/#")) == long_topics
    assert sorted(await topics(adapter, f"{stem}/+")) == [f"{stem}/a", f"{stem}/b"]


levels = st.lists(st.sampled_from(["a", "b", "", "$x", "ab"]), min_size=1, max_size=3)
filters = st.lists(st.sampled_from(["a", "b", "", "$x", "+", "#"]), min_size=1, max_size=3)


@given(st.sets(levels.map("/".join).filter(bool), max_size=8), filters)
async def test_a_filter_finds_exactly_the_topics_that_it_matches(stored: set[str], parts: list[str]) -> None:
    if "#" in parts:
        parts = parts[: parts.index("#") + 1]
    topic_filter = "/".join(parts)
    if not topic_filter:
        return
    async with open_adapter("memory:") as adapter:
        for topic in stored:
            await retain(adapter, topic, b"v")
        found = await topics(adapter, topic_filter)
    assert len(found) == len(set(found))
    assert set(found) == {topic for topic in stored if matches(topic_filter, topic)}
