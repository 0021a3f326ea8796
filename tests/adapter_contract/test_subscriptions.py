"""Subscriptions deliver everything in order, by shard and by filter, to each at its own pace."""

from __future__ import annotations

from contextlib import aclosing

import pytest
import trio
import trio.testing

from broker_adapter import StorageAdapter
from shards.errors import InvalidNameError, InvalidRequestError, ShardNotFoundError
from shards.format.record import Gap, Record
from shards.model import AckLevel
from shards.position import Start
from tests.adapter_contract.reading import assert_silent, next_delivery, take, values_of
from tests.patience import PATIENCE_S


async def test_a_tail_delivers_what_is_appended_after_it_began(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"before"])
    async with adapter.subscribe("s") as subscription:
        await adapter.append("s", [b"1", b"2"])
        await adapter.append("s", [b"3"])
        assert await take(subscription, 3) == [("s", b"1"), ("s", b"2"), ("s", b"3")]


async def test_a_subscription_begins_at_the_given_position(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for number in range(4):
        await adapter.append("s", [Record(b"%d" % number, timestamp_us=1_000 + number)])
    for start, first in ((Start.earliest(), 0), (Start.offset(2), 2), (Start.time(1_003), 3)):
        async with adapter.subscribe("s", start) as subscription:
            assert await take(subscription, 4 - first) == [("s", b"%d" % number) for number in range(first, 4)]


async def test_tail_is_an_iterator(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"1", b"2"])
    with trio.fail_after(PATIENCE_S):
        async with aclosing(adapter.tail("s", Start.offset(1))) as deliveries:
            async for delivery in deliveries:
                assert (delivery.shard, values_of(delivery.records), delivery.next_offset) == ("s", [b"2"], 2)
                break


async def test_a_filter_delivers_matching_shards_also_those_created_later(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a/1")
    await adapter.create_shard("b/1")
    async with adapter.subscribe("a/+") as subscription:
        await adapter.append("a/1", [b"1"])
        await adapter.append("b/1", [b"no"])
        await adapter.create_shard("a/2")
        await adapter.create_shard("a/2/deep")
        await adapter.append("a/2", [b"2"])
        await adapter.append("a/2/deep", [b"no"])
        await adapter.append("a/1", [b"3"])
        taken = await take(subscription, 3)
        assert sorted(taken) == [("a/1", b"1"), ("a/1", b"3"), ("a/2", b"2")]
        assert [value for shard, value in taken if shard == "a/1"] == [b"1", b"3"]
        await assert_silent(subscription)


async def test_a_wildcard_in_first_place_leaves_out_dollar_names(adapter: StorageAdapter) -> None:
    await adapter.create_shard("$internal/x")
    async with adapter.subscribe("#") as everything, adapter.subscribe("$internal/#") as internal:
        await adapter.append("$internal/x", [b"hidden"])
        await adapter.create_shard("$internal/y")
        await adapter.append("$internal/y", [b"hidden"])
        await adapter.create_shard("plain")
        await adapter.append("plain", [b"shown"])
        assert await take(everything, 1) == [("plain", b"shown")]
        assert sorted(await take(internal, 2)) == [("$internal/x", b"hidden"), ("$internal/y", b"hidden")]
        await assert_silent(everything)


async def test_a_filter_from_the_earliest_position_delivers_history_and_what_follows(adapter: StorageAdapter) -> None:
    for name in ("a", "b"):
        await adapter.create_shard(name)
        await adapter.append(name, [b"old"])
    async with adapter.subscribe("#", Start.earliest()) as subscription:
        assert sorted(await take(subscription, 2)) == [("a", b"old"), ("b", b"old")]
        await adapter.append("b", [b"new"])
        assert await take(subscription, 1) == [("b", b"new")]


async def test_an_unknown_shard_or_bad_filter_cannot_be_subscribed(adapter: StorageAdapter) -> None:
    with pytest.raises(ShardNotFoundError):
        async with adapter.subscribe("nope"):
            pass
    with pytest.raises(InvalidNameError):
        async with adapter.subscribe("a/#/b"):
            pass
    with pytest.raises(InvalidRequestError):
        async with adapter.subscribe("a/#", Start.offset(1)):
            pass


async def test_a_subscription_to_a_deleted_shard_fails_and_a_filter_continues(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a")
    await adapter.create_shard("b")
    async with adapter.subscribe("a") as one, adapter.subscribe("+") as both:
        await adapter.delete_shard("a")
        with pytest.raises(ShardNotFoundError):
            await next_delivery(one)
        await adapter.append("b", [b"v"])
        assert await take(both, 1) == [("b", b"v")]


async def test_expired_records_are_not_delivered(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    async with adapter.subscribe("s") as subscription:
        await adapter.append("s", [Record(b"expired", expires_at_us=1)])
        await adapter.append("s", [Record(b"there")])
        assert await take(subscription, 1) == [("s", b"there")]


async def test_a_slow_subscriber_delays_no_other(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    count = 200
    async with adapter.subscribe("s", credit_bytes=8_000) as slow, adapter.subscribe("s", credit_bytes=8_000) as quick:
        with trio.fail_after(2 * PATIENCE_S):
            for number in range(count):
                await adapter.append("s", [b"%06d" % number * 500], ack=AckLevel.MEMORY)
            expected = [("s", b"%06d" % number * 500) for number in range(count)]
            assert await take(quick, count) == expected
        assert await take(slow, count) == expected


async def test_what_was_trimmed_before_it_was_delivered_shows_as_a_gap(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for number in range(4):
        await adapter.append("s", [b"%d" % number])
    await adapter.create_shard("t")
    async with adapter.subscribe("s", Start.offset(1), credit_bytes=1) as subscription:
        await adapter.trim("s", 3)
        await adapter.append("s", [b"4"])
        found: list[object] = []
        while not found or getattr(found[-1], "value", None) != b"4":
            found += (await next_delivery(subscription)).records
    # Some may have been on their way before the trim; from there on the gap and what is left follow, in order.
    next_offset = 1
    for record in found:
        if isinstance(record, Gap):
            assert record.first_offset == next_offset
            next_offset = record.next_offset
        else:
            assert getattr(record, "offset", None) == next_offset
            next_offset += 1
    assert next_offset == 5


async def test_closing_the_adapter_ends_subscriptions_and_calls(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    ended = trio.Event()
    refused = trio.Event()

    async def consume() -> None:
        async with adapter.subscribe("#") as subscription:
            async for _ in subscription:
                raise AssertionError("nothing was appended")
        ended.set()

    async def poll() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await adapter.read("s", 0, max_wait_s=60)
        refused.set()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume)
            nursery.start_soon(poll)
            await trio.testing.wait_all_tasks_blocked(0.05)
            await adapter.aclose()
            await adapter.aclose()
    assert ended.is_set()
    assert refused.is_set()
    with pytest.raises(trio.ClosedResourceError):
        await adapter.append("s", [b"v"])
