"""`StorageAdapter.commit`: records and state together, on every engine. Either all of it is there or nothing."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import StorageAdapter
from broker_adapter.changes import Changes, Committed, CursorCheck, StateDelete, StatePut
from shards.errors import (
    CursorConflictError,
    InvalidRequestError,
    LimitExceededError,
    ShardNotFoundError,
    StorageError,
    VersionConflictError,
)
from shards.format.record import Record, StoredRecord
from shards.model import AckLevel, Mode, ShardConfig
from tests.adapter_contract.conftest import Opening
from tests.patience import PATIENCE_S

MEMORY = ShardConfig(mode=Mode.MEMORY)


def appends(*shards: str, value: bytes = b"v") -> tuple[tuple[str, list[Record]], ...]:
    return tuple((shard, [Record(value)]) for shard in shards)


async def values_in(adapter: StorageAdapter, shard: str) -> list[bytes]:
    result = await adapter.read(shard, 0)
    return [record.value for record in result.records if isinstance(record, StoredRecord)]


async def test_everything_is_done_and_said_in_the_order_given(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a")
    await adapter.create_shard("b")
    await adapter.put_state(b"gone", b"x")
    changes = Changes(
        (("a", [Record(b"1"), Record(b"2")]), ("b", [Record(b"3")]), ("a", [Record(b"4")])),
        (StatePut(b"k", b"v"), StatePut(b"l", b"w", 0)),
        (StateDelete(b"gone"),),
    )
    done = await adapter.commit(changes)
    assert [one.base_offset for one in done.appended] == [0, 0, 2]
    assert [(one.key, one.value) for one in done.values] == [(b"k", b"v"), (b"l", b"w")]
    assert await values_in(adapter, "a") == [b"1", b"2", b"4"]
    assert await values_in(adapter, "b") == [b"3"]
    assert await adapter.get_state(b"k") == done.values[0]
    assert await adapter.get_state(b"l") == done.values[1]
    assert await adapter.get_state(b"gone") is None


async def test_the_version_of_a_put_is_the_one_to_expect_next(adapter: StorageAdapter) -> None:
    first = (await adapter.commit(Changes(puts=(StatePut(b"k", b"1", 0),)))).values[0]
    second = (await adapter.commit(Changes(puts=(StatePut(b"k", b"2", first.version),)))).values[0]
    assert second.version > first.version
    await adapter.commit(Changes(deletes=(StateDelete(b"k", second.version),)))
    assert await adapter.get_state(b"k") is None


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (Changes(appends("a", "nowhere"), (StatePut(b"k", b"v"),)), ShardNotFoundError),
        (Changes(appends("a"), (StatePut(b"k", b"v"), StatePut(b"there", b"v", 0))), VersionConflictError),
        (Changes(appends("a"), (StatePut(b"k", b"v"),), (StateDelete(b"there", 1 << 60),)), VersionConflictError),
        (Changes(appends("a"), (StatePut(b"k", b"v"), StatePut(b"k", b"w"))), InvalidRequestError),
        (Changes(appends("a"), (StatePut(b"k", b"v"),), (StateDelete(b"k"),)), InvalidRequestError),
        (Changes(appends("a"), (StatePut(b"k", b"v"), StatePut(b"", b"v"))), StorageError),
        (Changes((*appends("a"), ("a", [])), (StatePut(b"k", b"v"),)), InvalidRequestError),
        (Changes((*appends("a"), *appends("a", value=bytes(9 << 20))), (StatePut(b"k", b"v"),)), LimitExceededError),
        (Changes(), InvalidRequestError),
    ],
    ids=["no shard", "version of a put", "version of a delete", "twice", "put and deleted", "no key", "no records",
         "too large", "nothing"],
)  # fmt: skip
async def test_one_refusal_refuses_the_whole(
    adapter: StorageAdapter, refused: Changes, error: type[StorageError]
) -> None:
    await adapter.create_shard("a")
    there = await adapter.put_state(b"there", b"before")
    with pytest.raises(error):
        await adapter.commit(refused)
    assert await values_in(adapter, "a") == []
    assert await adapter.get_state(b"k") is None
    assert await adapter.get_state(b"there") == there
    done = await adapter.commit(Changes(appends("a"), (StatePut(b"k", b"v", 0),)))
    assert done.appended[0].base_offset == 0


async def test_a_commit_can_demand_that_a_cursor_is_no_further(adapter: StorageAdapter) -> None:
    for shard in ("a", "b"):
        await adapter.create_shard(shard)
        await adapter.append(shard, [b"1", b"2", b"3"])
    await adapter.commit_cursor("a", "c", 2)
    holds = tuple(CursorCheck(*one) for one in (("a", "c", 2), ("a", "other", 0), ("b", "c", 0), ("nowhere", "c", 0)))
    await adapter.commit(Changes(puts=(StatePut(b"k", b"v"),), cursors=holds))
    with pytest.raises(CursorConflictError) as caught:
        await adapter.commit(Changes(appends("b"), (StatePut(b"k", b"w"),), cursors=(*holds, CursorCheck("a", "c", 1))))
    assert (caught.value.shard, caught.value.name, caught.value.max_offset, caught.value.found_offset) == (
        "a",
        "c",
        1,
        2,
    )
    value = await adapter.get_state(b"k")
    assert value is not None
    assert value.value == b"v"
    assert len(await values_in(adapter, "b")) == 3
    with pytest.raises(InvalidRequestError):
        await adapter.commit(Changes(cursors=holds))


async def test_of_commits_that_expect_one_version_exactly_one_wins(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a")
    start = await adapter.put_state(b"owner", b"nobody")
    won: list[int] = []

    async def compete(number: int) -> None:
        name = b"%d" % number
        try:
            await adapter.commit(Changes(appends("a", value=name), (StatePut(b"owner", name, start.version),)))
        except VersionConflictError:
            return
        won.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(compete, number)
    assert len(won) == 1
    owner = await adapter.get_state(b"owner")
    assert owner is not None
    assert [owner.value] == await values_in(adapter, "a") == [b"%d" % won[0]]


async def test_many_at_once_are_all_done(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a")
    done: list[Committed] = []

    async def one(number: int) -> None:
        done.append(await adapter.commit(Changes(appends("a"), (StatePut(b"k/%d" % number, b"v", 0),))))

    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(one, number)
    assert sorted(each.appended[0].base_offset for each in done) == list(range(200))
    assert len([value async for value in adapter.scan_state(b"k/")]) == 200


async def test_a_reader_of_the_records_finds_the_state_too(adapter: StorageAdapter) -> None:
    """A reader that sees a record that was committed with a key sees the key too, in any mode of the shard."""
    await adapter.create_shard("file")
    await adapter.create_shard("memory", MEMORY)
    async with trio.open_nursery() as nursery:
        for shard in ("file", "memory"):

            async def check(shard: str = shard) -> None:
                for number in range(20):
                    result = await adapter.read(shard, number, max_wait_s=5)
                    assert result.records
                    assert await adapter.get_state(b"%b/%d" % (shard.encode(), number)) is not None

            nursery.start_soon(check)
        for number in range(20):
            puts = tuple(StatePut(b"%b/%d" % (shard, number), b"") for shard in (b"file", b"memory"))
            done = await adapter.commit(Changes(appends("file", "memory"), puts))
            assert done.appended[1].level is AckLevel.MEMORY


async def test_records_and_deletes_alone_are_commits_too(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a")
    assert (await adapter.commit(Changes(appends("a", "a")))).values == ()
    await adapter.commit(Changes(deletes=(StateDelete(b"never there"),)))
    assert await values_in(adapter, "a") == [b"v", b"v"]


async def test_memory_appends_alone_are_commits_too(adapter: StorageAdapter) -> None:
    """There is nothing to write, so the commit is done before its caller waits. The caller waited for ever."""
    await adapter.create_shard("m", MEMORY)
    with trio.fail_after(PATIENCE_S):
        for number in range(3):
            done = await adapter.commit(Changes(appends("m", "m")))
            assert [one.base_offset for one in done.appended] == [2 * number, 2 * number + 1]
            assert {one.level for one in done.appended} == {AckLevel.MEMORY}
    assert await values_in(adapter, "m") == [b"v"] * 6


async def test_what_expires_does(adapter: StorageAdapter) -> None:
    await adapter.commit(Changes(puts=(StatePut(b"k", b"v", expires_at_us=1),)))
    assert await adapter.get_state(b"k") is None


async def test_a_commit_follows_what_was_acknowledged_before(adapter: StorageAdapter) -> None:
    await adapter.create_shard("a")
    await adapter.append("a", [b"1"])
    await adapter.commit(Changes(appends("a", value=b"2")))
    await adapter.append("a", [b"3"])
    assert await values_in(adapter, "a") == [b"1", b"2", b"3"]


async def test_a_commit_survives_reopening(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("a")
        done = await adapter.commit(Changes(appends("a"), (StatePut(b"k", b"v"),)))
        assert done.appended[0].level is AckLevel.DURABLE
    async with opening() as adapter:
        assert await values_in(adapter, "a") == [b"v"]
        assert await adapter.get_state(b"k") == done.values[0]
