"""Batches are read as they are stored: all of them, in order, with gaps in their place, on every engine."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import StorageAdapter
from shards.errors import OffsetOutOfRangeError, ShardNotFoundError
from shards.format import batch as batches
from shards.format.record import Record, StoredRecord
from shards.model import Mode
from shards.position import Start
from tests.adapter_contract.conftest import Opening
from tests.adapter_contract.reading import offsets_of, read_all, values_of
from tests.patience import PATIENCE_S


async def stored(adapter: StorageAdapter, shard: str, start: int = 0, *, max_bytes: int = 1 << 20) -> bytes:
    """All stored bytes from an offset up to the present end; each piece begins where the one before it ended."""
    found = b""
    end = (await adapter.describe_shard(shard)).next_offset
    with trio.fail_after(PATIENCE_S):
        while start < end:
            piece = await adapter.read_batches(shard, start, max_bytes=max_bytes)
            headers = [header for _, header in batches.iterate(piece.batches)]
            assert headers[0].base_offset <= start
            assert piece.next_offset == headers[-1].next_offset > start
            found += piece.batches
            start = piece.next_offset
    return found


async def test_stored_batches_hold_the_same_records_as_a_read(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for number in range(20):
        await adapter.append("s", [Record(b"%d" % number, key=b"k", tags=("t",)), Record(headers=(("h", b"v"),))])
    records = await read_all(adapter, "s")
    for max_bytes in (1, 1_000, 1 << 20):
        found = await stored(adapter, "s", max_bytes=max_bytes)
        assert batches.read_records(found) == records
        for at, _ in batches.iterate(found):
            batches.verify(found, at)


async def test_a_read_in_the_middle_of_a_batch_gives_the_whole_batch(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"0", b"1", b"2"])
    await adapter.append("s", [b"3", b"4"])
    piece = await adapter.read_batches("s", 1, max_bytes=1)
    assert (offsets_of(batches.read_records(piece.batches)), piece.next_offset) == ([0, 1, 2], 3)


async def test_the_start_of_the_shard_shows_a_trim_inside_a_batch(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"0", b"1", b"2"])
    await adapter.trim("s", 2)
    piece = await adapter.read_batches("s", 2)
    assert (piece.start_offset, piece.next_offset) == (2, 3)
    assert offsets_of(batches.read_records(piece.batches, start_offset=piece.start_offset)) == [2]


async def test_expired_records_are_part_of_what_is_stored(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [Record(b"gone", expires_at_us=1), Record(b"there")])
    records = batches.read_records(await stored(adapter, "s"))
    assert [record.expires_at_us for record in records if isinstance(record, StoredRecord)] == [1, 0]
    assert values_of(records) == [b"gone", b"there"]


async def test_at_the_end_there_is_nothing_to_read_and_past_it_an_error(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    await adapter.append("s", [b"0", b"1"])
    piece = await adapter.read_batches("s", 2)
    assert (bytes(piece.batches), piece.start_offset, piece.next_offset) == (b"", 0, 2)
    await adapter.trim("s", 1)
    for offset in (0, 3):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await adapter.read_batches("s", offset)
        assert (caught.value.start_offset, caught.value.next_offset) == (1, 2)
    with pytest.raises(ShardNotFoundError, match="nope"):
        await adapter.read_batches("nope", 0)


async def test_a_position_is_found_as_the_offset_to_read_batches_from(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for first in (1, 4, 7):
        await adapter.append("s", [Record(b"v", timestamp_us=1_000 * number) for number in range(first, first + 3)])
    await adapter.trim("s", 1)
    assert await adapter.find_offset("s", Start.earliest()) == 1
    assert await adapter.find_offset("s", Start.latest()) == 9
    assert await adapter.find_offset("s", Start.offset(5)) == 5
    for time_us, offset in ((0, 1), (4_500, 4), (9_000, 8)):
        found = await adapter.find_offset("s", Start.time(time_us))
        records = batches.read_records((await adapter.read_batches("s", found)).batches, start_offset=found)
        assert next(one.offset for one in records if one.timestamp_us >= time_us) == offset
    assert await adapter.find_offset("s", Start.time(9_001)) == 9
    lsn = batches.BatchHeader.unpack((await adapter.read_batches("s", 3)).batches).lsn
    assert await adapter.find_offset("s", Start.lsn(lsn)) == 3
    for offset in (0, 10):
        with pytest.raises(OffsetOutOfRangeError, match="'s'"):
            await adapter.find_offset("s", Start.offset(offset))


async def test_waiting_for_batches_ends_with_an_append(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    found: list[bytes] = []

    async def poll() -> None:
        found.extend(values_of(batches.read_records((await adapter.read_batches("s", 0, max_wait_s=60)).batches)))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await adapter.append("s", [b"v"])
    assert found == [b"v"]


async def test_offsets_are_unbroken_over_mode_switches(adapter: StorageAdapter) -> None:
    await adapter.create_shard("s")
    for number, mode in enumerate((Mode.MEMORY, Mode.FILE, Mode.MEMORY)):
        await adapter.append("s", [b"%d" % number] * 3)
        await adapter.set_mode("s", mode)
    await adapter.append("s", [b"last"])
    assert batches.read_records(await stored(adapter, "s")) == await read_all(adapter, "s")


async def test_lost_records_are_a_gap_among_the_batches(opening: Opening) -> None:
    async with opening() as adapter:
        await adapter.create_shard("s")
        await adapter.append("s", [b"0", b"1"])
        before = (await adapter.describe_shard("s")).next_offset
        await adapter.set_mode("s", Mode.MEMORY)
        await adapter.append("s", [b"lost", b"with", b"the", b"node"])
    async with opening() as adapter:
        # What an engine keeps of memory mode over an orderly stop is its own business; a read says the same.
        await adapter.set_mode("s", Mode.FILE)
        await adapter.append("s", [b"after"])
        found = batches.read_records(await stored(adapter, "s"))
        assert found == await read_all(adapter, "s")
        assert offsets_of(found)[:before] == [0, 1]
