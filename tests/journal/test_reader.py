"""Whatever happened to a shard, a read gives exactly what was published: from memory, from files, and across both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.engine.read.reader import Reader
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.unfetched_files import UnfetchedFiles
from journal.engine.state.views import Views
from shards.errors import OffsetOutOfRangeError
from shards.format.batch import BatchHeader, iterate, read_records, verify
from shards.format.record import Gap
from shards.model import Mode, ShardConfig
from shards.position import Start
from shards.segments.read_slices import Place, ReadSlice
from shards.segments.segment import Segment
from tests.journal.engines import append, open_simulated, stop_without_checkpoint
from tests.shards.batches import NOW_US
from tests.shards.shard_workload import ShardWorkload, Step, steps
from tests.simulation.file_system import SimulatedFileSystem


def reader_of(workload: ShardWorkload) -> Reader:
    # Reading by offset, time and lsn needs neither the table nor what was folded into the views.
    views = cast("Views", SimpleNamespace(unfetched=UnfetchedFiles()))
    return Reader(workload.files, cast("ShardTable", None), views, 1 << 23)


def headers_of(extent: ReadSlice) -> list[BatchHeader]:
    data = b"".join(map(bytes, extent.buffers))
    assert len(data) == extent.size_bytes
    return [verify(data, at) for at, _ in iterate(data)]


async def read_all(workload: ShardWorkload, offset: int, max_bytes: int, *, hints: bool) -> dict[int, bytes]:
    """Everything from an offset on, as a client collects it."""
    shard, reader = workload.shard, reader_of(workload)
    found: dict[int, bytes] = {}
    place: Place | None = None
    while offset < shard.published_offset:
        extent = await reader.read(shard, offset, max_bytes, place if hints else None)
        headers = headers_of(extent)
        assert extent.start_offset == headers[0].base_offset <= offset
        assert headers[-1].next_offset == extent.next_offset > offset
        for record in read_records(b"".join(map(bytes, extent.buffers)), start_offset=offset):
            if isinstance(record, Gap):
                assert set(range(record.first_offset, record.next_offset)) <= workload.lost
            else:
                assert record.offset not in found
                found[record.offset] = record.value
        offset, place = extent.next_offset, extent.place
    return found


@settings(deadline=None, max_examples=100)
@given(steps, st.data())
def test_a_read_from_anywhere_gives_exactly_the_published_records(wanted: list[Step], data: st.DataObject) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    shard = workload.shard
    offset = data.draw(st.integers(shard.start_offset, shard.published_offset), "offset")
    max_bytes = data.draw(st.sampled_from([1, 100, 500, 40_000, 100_000, 1 << 20]), "max_bytes")
    hints = data.draw(st.booleans(), "hints")
    expected = {each: value for each, value in workload.readable().items() if each >= offset}
    assert trio.run(lambda: read_all(workload, offset, max_bytes, hints=hints)) == expected


@settings(deadline=None, max_examples=100)
@given(steps, st.sampled_from([1, 300, 50_000]))
def test_a_read_in_memory_stays_within_its_limit_but_for_one_batch(wanted: list[Step], max_bytes: int) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    shard = workload.shard
    for offset in range(shard.start_offset, shard.published_offset):
        extent = reader_of(workload).read_nowait(shard, offset, max_bytes)
        if extent is not None:
            assert extent.size_bytes <= max_bytes or len(headers_of(extent)) == 1


@settings(deadline=None, max_examples=80)
@given(steps, st.integers(-2, 502), st.integers(0, 60))
def test_a_time_and_an_lsn_lead_to_the_first_batch_that_reaches_them(
    wanted: list[Step], after_us: int, lsn: int
) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    shard = workload.shard
    # Records before the start are in segments that may still be there, but a reader never begins before the start.
    there = sorted(workload.readable())
    late = [offset for offset in there if workload.values[offset][1] >= NOW_US + after_us]
    new = [offset for offset in there if workload.lsns[offset] >= lsn]

    async def find(start: Start) -> int:
        return await reader_of(workload).find_offset(shard, start)

    for found, expected in (
        (trio.run(find, Start.time(NOW_US + after_us)), late),
        (trio.run(find, Start.lsn(lsn)), new),
    ):
        if not expected:
            # All that is left may be older records of the batch that the start is in.
            assert (
                found == shard.published_offset or found not in there or workload.lsns[found] == workload.lsns[there[0]]
            )
        else:
            assert found <= expected[0]
            # No batch is returned that ends before the first wanted record. The gap directly before that record is:
            # records with such an lsn may be among the lost ones, so readers have to be shown it.
            assert (
                workload.lsns[max(found, there[0])] == workload.lsns[expected[0]]
                or found == shard.start_offset
                or (expected is new and set(range(found, expected[0])) <= workload.lost)
            )


def test_an_offset_that_was_trimmed_or_is_not_there_yet_is_refused() -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("publish", 0), Step("append", 6), Step("trim", 50)])
    shard = workload.shard
    assert (shard.start_offset, shard.published_offset, shard.next_offset) == (3, 7, 14)
    for offset in (2, 8, 14, -1):
        with pytest.raises(OffsetOutOfRangeError, match="from 3 up to but not including 7"):
            reader_of(workload).read_nowait(shard, offset, 1000)
    extent = reader_of(workload).read_nowait(shard, 7, 1000)
    assert extent == ReadSlice(7, 7, [], 0, None)


async def test_a_segment_in_memory_that_is_dropped_during_a_search_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("s", ShardConfig(mode=Mode.MEMORY))
        shard = engine.parts.table.by_name("s")
        for _ in range(11):
            await append(engine, "s", bytes(5_000))
        # Found in the fourth piece of memory.
        lsn = shard.published_lsn
        for _ in range(19):
            await append(engine, "s", bytes(5_000))
        await engine.roll("s")
        await append(engine, "s", b"kept")

        checkpoint = trio.lowlevel.checkpoint
        dropped: list[Segment] = []

        async def drop_once() -> None:
            if not dropped:
                dropped.extend(shard.trim(30))
                engine.parts.checkpointer.drop(dropped)
            await checkpoint()

        with monkeypatch.context() as patch:
            patch.setattr(trio.lowlevel, "checkpoint", drop_once)
            found = await engine.parts.reader.find_offset(shard, Start.lsn(lsn))
        assert dropped
        assert found == 30
        stop_without_checkpoint(engine)
