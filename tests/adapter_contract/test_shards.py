"""Shards are created, listed, described, configured, switched, trimmed and deleted the same way on every engine."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import StorageAdapter
from shards.errors import (
    InvalidNameError,
    OffsetOutOfRangeError,
    ShardExistsError,
    ShardNotFoundError,
)
from shards.format.record import StoredRecord
from shards.model import AckLevel, Mode, Retention, SegmentKind, ShardConfig
from tests.adapter_contract.conftest import Engine
from tests.adapter_contract.reading import offsets_of, read_all, values_of
from tests.patience import PATIENCE_S


async def test_a_new_shard_is_empty_and_has_the_given_configuration(adapter: StorageAdapter) -> None:
    config = ShardConfig(mode=Mode.MEMORY, retention=Retention(max_records=7), index_keys=True)
    info = await adapter.create_shard("a/b", config)
    assert (info.name, info.config, info.start_offset, info.next_offset, info.size_bytes) == ("a/b", config, 0, 0, 0)
    assert (await adapter.describe_shard("a/b")).shard_id == info.shard_id


async def test_a_shard_is_created_once(adapter: StorageAdapter) -> None:
    first = await adapter.create_shard("s")
    with pytest.raises(ShardExistsError, match="'s'"):
        await adapter.create_shard("s")
    again = await adapter.create_shard("s", ShardConfig(mode=Mode.MEMORY), exist_ok=True)
    assert (again.shard_id, again.config.mode) == (first.shard_id, Mode.FILE)


@pytest.mark.parametrize("name", ["", "a/+", "#", "a#", "x\x00y", "x" * 1025])
async def test_a_bad_name_is_refused(adapter: StorageAdapter, name: str) -> None:
    with pytest.raises(InvalidNameError):
        await adapter.create_shard(name)
    assert await adapter.list_shards() == []


async def test_an_unknown_shard_is_named_in_the_error(adapter: StorageAdapter) -> None:
    for call in (
        adapter.describe_shard("nope"),
        adapter.delete_shard("nope"),
        adapter.set_mode("nope", Mode.MEMORY),
        adapter.roll("nope"),
        adapter.trim("nope", 1),
        adapter.configure_shard("nope", segment_bytes=1 << 20),
        adapter.append("nope", [b"v"]),
        adapter.read("nope", 0),
        adapter.commit_cursor("nope", "c", 0),
    ):
        with pytest.raises(ShardNotFoundError, match="nope"):
            await call


async def test_shards_are_listed_by_filter_in_order_of_their_names(adapter: StorageAdapter) -> None:
    for name in ("b", "a/2", "$internal/x", "a/1", "a/1/deep", "ä"):
        await adapter.create_shard(name)

    async def names(topic_filter: str) -> list[str]:
        return [info.name for info in await adapter.list_shards(topic_filter)]

    assert await names("#") == ["a/1", "a/1/deep", "a/2", "b", "ä"]
    assert await names("a/+") == ["a/1", "a/2"]
    assert await names("a/#") == ["a/1", "a/1/deep", "a/2"]
    assert await names("$internal/#") == ["$internal/x"]
    assert await names("+/1") == ["a/1"]
    with pytest.raises(InvalidNameError):
        await names("a/#/b")


async def test_a_listing_with_segments_has_what_the_description_of_each_shard_has(adapter: StorageAdapter) -> None:
    for name, segments in (("empty", 0), ("few", 3), ("many", 130), ("other", 1)):
        await adapter.create_shard(name)
        for number in range(segments):
            await adapter.append(name, [b"%d" % number])
            await adapter.roll(name)
    listed = await adapter.list_shards(with_segments=True)
    assert listed == [await adapter.describe_shard(info.name) for info in listed]
    assert [info.name for info in listed] == ["empty", "few", "many", "other"]
    assert [len(info.segments) >= least for info, least in zip(listed, (0, 3, 130, 1), strict=True)] == [True] * 4
    assert all(not info.segments for info in await adapter.list_shards())


async def test_a_deleted_shard_is_gone_and_its_name_starts_anew(adapter: StorageAdapter) -> None:
    old = await adapter.create_shard("s", ShardConfig(index_keys=True))
    await adapter.append("s", [b"old"])
    await adapter.commit_cursor("s", "c", 1)
    await adapter.delete_shard("s")
    with pytest.raises(ShardNotFoundError):
        await adapter.read("s", 0)
    new = await adapter.create_shard("s")
    assert (new.next_offset, new.shard_id != old.shard_id) == (0, True)
    assert await adapter.get_cursor("s", "c") is None
    await adapter.append("s", [b"new"])
    assert values_of(await read_all(adapter, "s")) == [b"new"]


async def test_a_trim_drops_the_records_below(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for first in range(0, 12, 4):
        await adapter.append("s", [b"%d" % number for number in range(first, first + 4)])
    assert (await adapter.trim("s", 6)).start_offset == 6
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await adapter.read("s", 5)
    assert (caught.value.start_offset, caught.value.next_offset) == (6, 12)
    assert offsets_of(await read_all(adapter, "s", 6)) == list(range(6, 12))
    assert (await adapter.trim("s", 3)).start_offset == 6
    assert (await adapter.trim("s", 12)).start_offset == 12
    assert (await adapter.append("s", [b"next"])).base_offset == 12
    with pytest.raises(OffsetOutOfRangeError):
        await adapter.trim("s", 14)


@pytest.mark.few_cases(2, "retention runs once a second")
async def test_retention_by_count_drops_the_oldest(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s", ShardConfig(segment_bytes=64 << 10))
    info = await adapter.configure_shard("s", retention=Retention(max_records=20))
    assert info.config.retention == Retention(max_records=20)
    with trio.fail_after(PATIENCE_S):
        count = 0
        while (await adapter.describe_shard("s")).start_offset == 0:
            await adapter.append("s", [bytes(8_000)] * 4)
            await adapter.roll("s")
            count += 4
    info = await adapter.describe_shard("s")
    kept = offsets_of(await read_all(adapter, "s", info.start_offset))
    assert kept == list(range(info.start_offset, count))
    assert kept


async def test_a_mode_switch_under_load_keeps_order_and_offsets(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s", ShardConfig(mode=Mode.MEMORY))
    placed: dict[int, bytes] = {}
    done = trio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not done.is_set() and number < 400:
            batch = [b"%d:%d" % (writer, number), b"%d:%d" % (writer, number + 1)]
            appended = await adapter.append("s", batch)
            placed.update(enumerate(batch, appended.base_offset))
            number += 2

    with trio.fail_after(4 * PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for writer in range(4):
                nursery.start_soon(write, writer)
            for mode in (Mode.FILE, Mode.MEMORY, Mode.FILE, Mode.MEMORY):
                assert (await adapter.set_mode("s", mode)).config.mode is mode
                await adapter.append("s", [b"between"])
            done.set()
    records = [record for record in await read_all(adapter, "s") if isinstance(record, StoredRecord)]
    assert [record.offset for record in records] == list(range(len(records)))
    assert {record.offset: record.value for record in records if record.value != b"between"} == placed
    for writer in range(4):
        mine = [record.value for record in records if record.value.startswith(b"%d:" % writer)]
        assert mine == [b"%d:%d" % (writer, number) for number in range(len(mine))]


async def test_conversion_changes_nothing_that_readers_see(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"1"])
    await adapter.roll("s")
    await adapter.append("s", [b"2"], ack=AckLevel.MEMORY)
    await adapter.append("s", [b"3"])
    assert values_of(await read_all(adapter, "s")) == [b"1", b"2", b"3"]


async def test_a_conversion_can_be_waited_for(adapter: StorageAdapter, engine: Engine) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"1"])
    info = await adapter.convert("s")
    assert info.next_offset == 1
    closed = [segment for segment in (await adapter.describe_shard("s")).segments if segment.closed]
    assert {segment.kind for segment in closed} == {SegmentKind.PARQUET if engine.converts else SegmentKind.LOG}
    await adapter.append("s", [b"2"])
    assert values_of(await read_all(adapter, "s")) == [b"1", b"2"]
