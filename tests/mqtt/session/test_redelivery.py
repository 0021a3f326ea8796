"""What was under way is found again by its place, or known to be gone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.changes import Changes, StatePut
from broker_adapter.mqtt.message import Message, record_of
from broker_adapter.mqtt.session import InFlight, Origin, Retained
from broker_adapter.mqtt.session.redelivery import messages_under_way
from shards.clock import SystemClock
from shards.record import StoredRecord


@pytest.fixture
async def adapter() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as opened:
        yield opened


async def stored(adapter: StorageAdapter, shard: str, *payloads: bytes, **fields: int) -> list[StoredRecord]:
    await adapter.create_shard(shard, exist_ok=True)
    appended = await adapter.append(shard, [record_of(Message(shard, one, 2, **fields)) for one in payloads])
    batch = await adapter.read_batches(shard, appended.base_offset)
    assert batch.batches
    return [
        record
        for record in (await adapter.read(shard, appended.base_offset)).records
        if isinstance(record, StoredRecord)
    ]


def entries(shard: str, records: list[StoredRecord], first_id: int = 1) -> list[InFlight]:
    return [InFlight(first_id + number, 2, shard, record.offset, record.lsn) for number, record in enumerate(records)]


async def payloads(adapter: StorageAdapter, wanted: list[InFlight]) -> dict[int, bytes]:
    found = await messages_under_way(adapter, Retained(adapter, clock=SystemClock()), wanted)
    return {packet_id: message.payload for packet_id, message in found.items()}


async def test_messages_far_and_near_in_many_shards_are_found(adapter: StorageAdapter) -> None:
    one = await stored(adapter, "one", *(b"%d" % number for number in range(1000)))
    two = await stored(adapter, "two", b"x", b"y")
    wanted = entries("one", [one[999], one[0], one[3], one[400]]) + entries("two", two, 10)
    assert await payloads(adapter, wanted) == {1: b"999", 2: b"0", 3: b"3", 4: b"400", 10: b"x", 11: b"y"}


async def test_one_message_under_two_identifiers_is_found_for_both(adapter: StorageAdapter) -> None:
    (record,) = await stored(adapter, "s", b"v")
    assert await payloads(adapter, entries("s", [record, record])) == {1: b"v", 2: b"v"}


async def test_what_retention_took_is_missing_and_the_rest_is_found(adapter: StorageAdapter) -> None:
    records = await stored(adapter, "s", *(b"%d" % number for number in range(10)))
    wanted = entries("s", records)
    await adapter.trim("s", 4)
    assert sorted(await payloads(adapter, wanted)) == [5, 6, 7, 8, 9, 10]
    await adapter.trim("s", 10)
    assert await payloads(adapter, wanted) == {}
    await adapter.delete_shard("s")
    assert await payloads(adapter, wanted) == {}


async def test_a_shard_of_the_same_name_made_later_has_other_messages(adapter: StorageAdapter) -> None:
    wanted = entries("s", await stored(adapter, "s", b"old0", b"old1", b"old2"))
    await adapter.delete_shard("s")
    assert await payloads(adapter, wanted) == {}
    await stored(adapter, "s", b"new0")
    assert await payloads(adapter, wanted) == {}


async def test_what_has_expired_is_missing(adapter: StorageAdapter) -> None:
    expired = await stored(adapter, "s", b"v")
    gone = InFlight(1, 2, "s", expired[0].offset + 1, expired[0].lsn + 1)
    await adapter.append("s", [record_of(Message("s", b"late", 2, expires_at_us=1))])
    kept = await stored(adapter, "s", b"w")
    assert await payloads(adapter, [gone, *entries("s", kept, 2)]) == {2: b"w"}


async def test_a_retained_message_comes_again_while_it_is_the_retained_one(adapter: StorageAdapter) -> None:
    retained = Retained(adapter, clock=SystemClock())

    async def retain(payload: bytes) -> Message:
        put = retained.change_for(Message("a/b", payload, 1, True))
        assert isinstance(put, StatePut)
        await adapter.commit(Changes(puts=(put,)))
        (found,) = await retained.find("a/b")
        return found

    first = await retain(b"1")
    wanted = [InFlight(1, 1, first.shard, first.offset, first.lsn, Origin.RETAINED)]
    assert await payloads(adapter, wanted) == {1: b"1"}
    await retain(b"2")
    assert await payloads(adapter, wanted) == {}
