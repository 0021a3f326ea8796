"""Records come back as they were put in, in order, by every way of reading."""

from __future__ import annotations

import time

import pytest
import trio

from broker_adapter import StorageAdapter
from shards.errors import (
    BatchError,
    DurabilityUnavailableError,
    IndexMissingError,
    InvalidRequestError,
    OffsetConflictError,
    OffsetOutOfRangeError,
)
from shards.format import batch as batches
from shards.format.record import Record, StoredRecord
from shards.model import AckLevel, Mode, ShardConfig
from shards.position import Start
from tests.adapter_contract.conftest import Engine
from tests.adapter_contract.reading import offsets_of, read_all, values_of
from tests.patience import PATIENCE_S

INDEXED = ShardConfig(index_keys=True, index_tags=True)
YEAR_2100_US = 4_102_444_800_000_000


async def test_every_field_of_a_record_comes_back(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    records = [
        Record(
            b"\x00value",
            key=b"k\xff",
            topic="a/ü",
            timestamp_us=1_700_000_000_000_000,
            headers=(("h", b"1"), ("h", b""), ("ü", b"\xff")),
            tags=("red", "ü"),
            expires_at_us=YEAR_2100_US,
        ),
        Record(timestamp_us=1_600_000_000_000_000),
    ]
    appended = await adapter.append("s", records)
    found = (await adapter.read("s", appended.base_offset, max_wait_s=PATIENCE_S)).records
    assert [type(record) for record in found] == [StoredRecord, StoredRecord]
    for number, (record, stored) in enumerate(zip(records, found, strict=True)):
        assert isinstance(stored, StoredRecord)
        assert (stored.offset, stored.lsn > 0, stored.append_time_us > 0) == (number, True, True)
        for field in ("value", "key", "topic", "timestamp_us", "headers", "tags", "expires_at_us"):
            assert getattr(stored, field) == getattr(record, field), field


async def test_bare_values_and_encoded_batches_are_records_too(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    before_us = time.time_ns() // 1000
    await adapter.append("s", [b"1", b"", b"3"])
    batch = batches.encode([Record(b"4"), Record(b"5")], now_us=before_us, codec=batches.Codec.ZSTD)
    assert (await adapter.append_batch("s", batch)).base_offset == 3
    found = await read_all(adapter, "s")
    assert values_of(found) == [b"1", b"", b"3", b"4", b"5"]
    assert all(isinstance(record, StoredRecord) and record.timestamp_us >= before_us for record in found)


async def test_nothing_is_no_append(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    with pytest.raises(InvalidRequestError):
        await adapter.append("s", [])


async def test_bytes_that_are_no_batch_are_refused(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    batch = batches.encode_values([b"v"], timestamp_us=1)
    flipped = bytearray(batch)
    flipped[-9] ^= 1
    gap = batches.gap_batch(0, 5, 1, 1)
    for damaged in (b"", b"garbage", batch[:-8], batch + bytes(8), bytes(flipped), gap):
        with pytest.raises(BatchError):
            await adapter.append_batch("s", damaged)
    assert (await adapter.append_batch("s", batch)).base_offset == 0


async def test_a_read_may_begin_and_end_in_the_middle_of_a_batch(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"%d" % number for number in range(10)])
    await adapter.append("s", [b"%d" % number for number in range(10, 20)])
    result = await adapter.read("s", Start.offset(4), max_records=3, max_wait_s=PATIENCE_S)
    assert (values_of(result.records), result.next_offset) == ([b"4", b"5", b"6"], 7)
    assert offsets_of(await read_all(adapter, "s", 7)) == list(range(7, 20))


async def test_a_read_returns_about_as_many_bytes_as_asked_but_at_least_a_batch(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for _ in range(4):
        await adapter.append("s", [bytes(10_000)])
    await read_all(adapter, "s")
    assert offsets_of((await adapter.read("s", 0, max_bytes=1)).records) == [0]
    assert offsets_of((await adapter.read("s", 1, max_bytes=25_000)).records) == [1, 2]


async def test_readers_that_take_turns_in_a_shard_each_get_every_record(adapter: StorageAdapter) -> None:
    """The position after a read is remembered for the next read of the shard, also by another reader."""
    await adapter.create_shard("s")
    values = [b"%d" % number for number in range(60)]
    for begin in range(0, len(values), 3):
        await adapter.append("s", values[begin : begin + 3])
        if begin == 30:
            await adapter.roll("s")
    found: dict[int, list[bytes]] = {0: [], 7: [], 31: []}
    offsets = {start: start for start in found}
    while min(offsets.values()) < len(values):
        for start, max_bytes in zip(found, (1, 1000, 400), strict=True):
            result = await adapter.read("s", offsets[start], max_bytes=max_bytes)
            found[start] += values_of(result.records)
            offsets[start] = result.next_offset
    assert found == {start: values[start:] for start in found}


async def test_an_offset_out_of_range_is_refused_with_the_valid_range(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"1", b"2"])
    for offset in (3, 1_000):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await adapter.read("s", offset)
        assert (caught.value.offset, caught.value.start_offset, caught.value.next_offset) == (offset, 0, 2)
    assert (await adapter.read("s", 2)).records == []


async def test_a_read_begins_at_the_first_record_not_before_a_time(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for first in range(1, 10, 3):
        await adapter.append("s", [Record(b"v", timestamp_us=1_000 * number) for number in range(first, first + 3)])
    await read_all(adapter, "s")
    for time_us, offset in ((0, 0), (1_000, 0), (4_500, 4), (5_000, 4), (9_000, 8)):
        assert offsets_of((await adapter.read("s", Start.time(time_us))).records)[0] == offset
    result = await adapter.read("s", Start.time(9_001))
    assert (result.records, result.next_offset) == ([], 9)


async def test_a_read_begins_at_the_first_batch_not_before_an_lsn(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.create_shard("other")
    for number in range(6):
        await adapter.append("s", [b"%d" % number, b"x"])
        await adapter.append("other", [b"y"])
    records = [record for record in await read_all(adapter, "s") if isinstance(record, StoredRecord)]
    for record in records:
        first = await adapter.read("s", Start.lsn(record.lsn), max_records=1)
        assert offsets_of(first.records) == [record.offset // 2 * 2]
        after = await adapter.read("s", Start.lsn(record.lsn + 1), max_records=1)
        assert offsets_of(after.records) == ([record.offset // 2 * 2 + 2] if record.offset < 10 else [])


async def test_earliest_and_latest_follow_the_shard(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"1", b"2", b"3"])
    await adapter.trim("s", 1)
    assert offsets_of((await adapter.read("s", Start.earliest())).records) == [1, 2]
    result = await adapter.read("s", Start.latest())
    assert (result.records, result.next_offset) == ([], 3)


async def test_records_are_found_by_key_and_the_latest_first(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s", INDEXED)
    long_key = b"L" * 3_000
    for number in range(8):
        key = (b"a", b"b", b"", long_key)[number % 4]
        await adapter.append("s", [Record(b"%d" % number, key=key), Record(b"other", key=b"ab")])
    end = (await adapter.describe_shard("s")).next_offset
    found = await adapter.read_by_key("s", b"a")
    assert (values_of(found.records), found.next_offset) == ([b"0", b"4"], end)
    assert values_of((await adapter.read_by_key("s", long_key)).records) == [b"3", b"7"]
    assert values_of((await adapter.read_by_key("s", b"a", from_offset=1)).records) == [b"4"]
    assert (await adapter.read_by_key("s", b"unknown")).records == []
    latest = await adapter.read_latest("s", b"b")
    assert latest is not None
    assert latest.value == b"5"
    assert await adapter.read_latest("s", b"unknown") is None


async def test_a_read_by_key_continues_where_it_stopped(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s", INDEXED)
    for number in range(6):
        await adapter.append("s", [Record(b"%d" % number, key=b"k")])
    end = (await adapter.describe_shard("s")).next_offset
    found: list[bytes] = []
    offset = 0
    while offset < end:
        result = await adapter.read_by_key("s", b"k", from_offset=offset, max_bytes=1)
        assert len(result.records) <= 1
        found += values_of(result.records)
        offset = result.next_offset
    assert found == [b"%d" % number for number in range(6)]


async def test_records_are_found_by_tag(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s", INDEXED)
    await adapter.append("s", [Record(b"1", tags=("red", "big")), Record(b"2"), Record(b"3", tags=("red",))])
    await adapter.append("s", [Record(b"4", tags=("redder",))])
    assert values_of((await adapter.read_by_tag("s", "red")).records) == [b"1", b"3"]
    assert values_of((await adapter.read_by_tag("s", "big")).records) == [b"1"]
    assert (await adapter.read_by_tag("s", "green")).records == []


async def test_trimmed_records_are_not_found_by_key(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s", INDEXED)
    for number in range(4):
        await adapter.append("s", [Record(b"%d" % number, key=b"k"), Record(b"x", key=b"gone" if not number else b"k")])
    await adapter.trim("s", 4)
    assert values_of((await adapter.read_by_key("s", b"k", from_offset=4)).records) == [b"2", b"x", b"3", b"x"]
    assert await adapter.read_latest("s", b"gone") is None


async def test_a_shard_without_index_says_so(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for call in (adapter.read_by_key("s", b"k"), adapter.read_by_tag("s", "t"), adapter.read_latest("s", b"k")):
        with pytest.raises(IndexMissingError, match="'s'"):
            await call


async def test_expired_records_are_hidden_from_every_reader(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s", INDEXED)
    expired = Record(b"expired", key=b"k", tags=("t",), expires_at_us=1)
    await adapter.append("s", [expired, Record(b"there", key=b"k", tags=("t",), expires_at_us=YEAR_2100_US)])
    await adapter.append("s", [expired])
    result = await adapter.read("s", 0, max_wait_s=PATIENCE_S)
    assert values_of(await read_all(adapter, "s")) == [b"there"]
    assert result.next_offset in (2, 3)
    assert values_of((await adapter.read_by_key("s", b"k")).records) == [b"there"]
    assert values_of((await adapter.read_by_tag("s", "t")).records) == [b"there"]


async def test_a_long_poll_is_woken_by_an_append(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    found: list[bytes] = []

    async def poll() -> None:
        found.extend(values_of((await adapter.read("s", 0, max_wait_s=60)).records))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await adapter.append("s", [b"v"])
    assert found == [b"v"]


async def test_a_long_poll_ends_at_its_deadline(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    with trio.fail_after(PATIENCE_S):
        result = await adapter.read("s", 0, max_wait_s=0.02)
    assert (result.records, result.next_offset) == ([], 0)


async def test_a_conditional_append_happens_only_at_the_expected_offset(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    assert (await adapter.append("s", [b"1", b"2"], expected_offset=0)).base_offset == 0
    with pytest.raises(OffsetConflictError) as caught:
        await adapter.append("s", [b"no"], expected_offset=0)
    assert (caught.value.expected_offset, caught.value.next_offset) == (0, 2)
    assert (await adapter.append("s", [b"3"], expected_offset=2)).base_offset == 2
    assert values_of(await read_all(adapter, "s")) == [b"1", b"2", b"3"]


async def test_of_competing_conditional_appends_exactly_one_happens(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    outcomes: list[bool] = []

    async def compete(number: int) -> None:
        try:
            await adapter.append("s", [b"%d" % number], expected_offset=0)
            outcomes.append(True)
        except OffsetConflictError:
            outcomes.append(False)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(compete, number)
    assert sorted(outcomes) == [False] * 7 + [True]
    assert len(await read_all(adapter, "s")) == 1


async def test_concurrent_appends_keep_each_callers_order_and_every_offset_once(adapter: StorageAdapter) -> None:
    shards = [f"s{number}" for number in range(3)]
    for shard in shards:
        await adapter.create_shard(shard)
    placed: dict[tuple[str, int], bytes] = {}

    async def write(writer: int) -> None:
        for number in range(40):
            shard = shards[number % 3]
            appended = await adapter.append(shard, [b"%d:%03d" % (writer, number)])
            assert (shard, appended.base_offset) not in placed
            placed[shard, appended.base_offset] = b"%d:%03d" % (writer, number)

    async with trio.open_nursery() as nursery:
        for writer in range(8):
            nursery.start_soon(write, writer)
    for shard in shards:
        found = await read_all(adapter, shard)
        assert {(shard, offset): value for offset, value in zip(offsets_of(found), values_of(found), strict=True)} == {
            place: value for place, value in placed.items() if place[0] == shard
        }
        for writer in range(8):
            mine = [value for value in values_of(found) if value.startswith(b"%d:" % writer)]
            assert mine == sorted(mine)


async def test_an_acknowledgement_names_the_level_reached(adapter: StorageAdapter, engine: Engine) -> None:
    await adapter.create_shard("file")
    await adapter.create_shard("memory", ShardConfig(mode=Mode.MEMORY))
    in_file = AckLevel.DURABLE if engine.survives else AckLevel.MEMORY
    assert (await adapter.append("file", [b"v"])).level is in_file
    assert (await adapter.append("memory", [b"v"])).level is AckLevel.MEMORY
    assert (await adapter.append("file", [b"v"], ack=AckLevel.MEMORY)).level in (AckLevel.MEMORY, AckLevel.DURABLE)
    with pytest.raises(DurabilityUnavailableError):
        await adapter.append("memory", [b"v"], ack=AckLevel.DURABLE)
    if engine.survives:
        assert (await adapter.append("file", [b"v"], ack=AckLevel.DURABLE)).level is AckLevel.DURABLE
    else:
        with pytest.raises(DurabilityUnavailableError):
            await adapter.append("file", [b"v"], ack=AckLevel.DURABLE)
