"""Closed segments of many shards become shared files: which, when, and what is left when something comes in between."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from journal.check import check_directory
from journal.engine import Engine, Environment, open_engine
from journal.engine.directory.data_directory import segment_directories
from journal.engine.parquet.gathering_queue import Waiting
from journal.engine.parquet.rewriting import LONGEST_DEAD_S, MERGED_AT_ONCE
from journal.engine.parquet.scheduler import ConversionCounts
from journal.engine.segments.checkpointer import SHARED_DROPS_WAIT_S, Checkpointer
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from journal.settings.values import MIB
from shards.delta.actions import TableRequest, TableVersion
from shards.delta.table import update_table
from shards.errors import ConversionFailedError
from shards.format.batch import encode, iterate
from shards.format.record import Record
from shards.model import Retention, SegmentKind, ShardConfig
from shards.parquet.shared_file import write_shared_files
from shards.parquet.shared_reading import SharedReader
from shards.parquet.shared_verification import verify_shared
from shards.position import Start
from shards.seams.clock import ManualClock
from shards.segments.conversion_plan import GatheredFiles, SharedPlan
from shards.segments.parquet_segment import ParquetSegment
from shards.views.inverted_index import By
from tests.crash.segment_files import check_files
from tests.journal.engines import DATA, append, apply_retention, stop_without_checkpoint, values_of
from tests.journal.test_write_retries import FullJournalDisk, until_a_group_waits
from tests.patience import PATIENCE_S
from tests.shards.batches import NOW_US
from tests.simulation.delta_log import JsonLog
from tests.simulation.file_system import SimulatedFileSystem, everything_lost, everything_survived
from tests.simulation.inline import InlineDisk, run_inline
from tests.simulation.store import SimulatedStore

KIB = 1 << 10
GATHERING = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=MIB,
        journal_budget_bytes=4 * MIB,
        segment_bytes=4 * KIB,
        disk_reserve_bytes=0,
        retention_interval_s=86_400,
    ),
    conversion=ConversionConfig(max_age_s=10, delta_grace_s=0),
)
GATHERED_AFTER_S = GATHERING.conversion.gather_after_s
NAMES = ("plant/a", "plant/b", "plant/c")
DAY_S = 86_400
WORDS: tuple[tuple[By, bytes], ...] = (("key", b"k1"), ("tag", b"t4"), ("key", b"no"))


class Converter:
    """A converter that waits until the test lets it gather, or fails with the error that the test sets."""

    def __init__(self, files: SimulatedFileSystem) -> None:
        self._files = files
        self.asked = trio.Event()
        self.open = trio.Event()
        self.open.set()
        self.failures: list[Exception] = []
        self.plans: list[SharedPlan] = []
        self.table_failures: list[Exception] = []
        self.tables: list[TableVersion] = []
        self.tables_asked_at: list[float] = []

    async def gather(self, plan: SharedPlan) -> GatheredFiles:
        # Its sources are made when they are asked for, and of what is gone later.
        self.plans.append(attrs.evolve(plan, sources=tuple(plan.sources)))
        self.asked.set()
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        return write_shared_files(self._files, plan, row_group_bytes=400)

    async def shards_in(self, path: str) -> list[int]:
        await trio.lowlevel.checkpoint()
        with SharedReader(self._files, path) as reader:
            return reader.shard_ids()

    async def update_table(self, request: TableRequest) -> TableVersion:
        await trio.lowlevel.checkpoint()
        self.tables_asked_at.append(trio.current_time())
        if self.table_failures:
            raise self.table_failures.pop(0)
        self.tables.append(update_table(self._files, request, JsonLog(self._files), NOW_US // 1000))
        return self.tables[-1]

    async def rest(self) -> None:
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def opened(
    files: SimulatedFileSystem,
    converter: Converter | None = None,
    clock: ManualClock | None = None,
    config: ServerConfig = GATHERING,
) -> AsyncIterator[Engine]:
    async with open_engine(
        DATA,
        config,
        Environment(
            files=files,
            clock=clock or ManualClock(),
            make_disk=InlineDisk,
            open_store=lambda path: SimulatedStore(files, path),
        ),
        make_converter=lambda: converter or Converter(files),
    ) as engine:
        yield engine


async def until(holds: Callable[[], bool], step_s: float = 0.01) -> None:
    """Wait for something that the clock of trio brings, which jumps by these steps, also while a thread works."""
    ends_at = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > ends_at:
            raise trio.TooSlowError
        await trio.sleep(step_s)


async def fill(engine: Engine, *names: str, config: ShardConfig | None = None) -> dict[str, list[bytes]]:
    """Create shards and append a few batches to each, in turns."""
    for name in names:
        await engine.create_shard(name, config or ShardConfig(), exist_ok=True)
    for number in range(4):
        for name in names:
            await append(engine, name, f"{name} {number}".encode(), b"again")
    return {name: await values_of(engine, name) for name in names}


async def roll(engine: Engine, *names: str) -> None:
    for name in names:
        await engine.roll(name)


async def fill_up(engine: Engine, files: FullJournalDisk) -> None:
    async with trio.open_nursery() as nursery:
        await until_a_group_waits(engine, files, nursery)


def sealed(engine: Engine, name: str) -> list[ParquetSegment]:
    return [each for each in engine.parts.table.by_name(name).segments if isinstance(each, ParquetSegment)]


def is_gathered(engine: Engine, *names: str) -> bool:
    return all(any(segment.place is not None for segment in sealed(engine, name)) for name in names)


async def gathered(engine: Engine, *names: str) -> None:
    await roll(engine, *names)
    await until(lambda: is_gathered(engine, *names))


def shared_files(files: SimulatedFileSystem) -> list[str]:
    return [
        f"{DATA}/{directory}/{name}"
        for directory in segment_directories(files, DATA)
        if "date=" in directory
        for name in files.listdir(f"{DATA}/{directory}")
    ]


def damages(files: SimulatedFileSystem) -> list[str]:
    report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
    return [str(each) for each in (*report.damages, *report.notes)]


async def test_small_segments_of_many_shards_are_in_one_file_and_read_as_before(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        assert {name: await values_of(engine, name) for name in NAMES} == before
        (path,) = shared_files(files)
        assert {segment.path for name in NAMES for segment in sealed(engine, name)} == {path}
        (record,) = engine.parts.views.files
        assert record.record_count == 24
        assert verify_shared(files, path, digest=record.digest, size_bytes=record.size_bytes) == []
        info = await engine.roll(NAMES[0])
        assert [segment.kind for segment in info.segments][:1] == [SegmentKind.PARQUET]
        await append(engine, NAMES[0], b"later")
        assert await values_of(engine, NAMES[0]) == [*before[NAMES[0]], b"later"]
        await check_files(engine, files, DATA)
    assert damages(files) == []
    async with opened(files) as engine:
        assert await values_of(engine, NAMES[1]) == before[NAMES[1]]


async def test_they_wait_for_each_other(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await roll(engine, NAMES[1])
        await trio.sleep(0.6 * GATHERED_AFTER_S)
        await roll(engine, NAMES[2], NAMES[0])
        await trio.sleep(0.3 * GATHERED_AFTER_S)
        assert converter.plans == []
        waiting = engine.statistics().waiting
        assert waiting.records == 24
        assert waiting.seconds > 0.8 * GATHERED_AFTER_S
        await until(lambda: is_gathered(engine, *NAMES))
        assert engine.statistics().waiting == Waiting(0, 0.0)
        assert engine.statistics().conversions == ConversionCounts(gatherings=1)
        assert engine.statistics().shared_files.count == 1
        (plan,) = converter.plans
        assert [source.name for source in plan.sources] == sorted(NAMES)


async def test_large_segments_and_many_bytes_do_not_wait(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment of 32 MiB has a file of its own, and 64 MiB of others are gathered together, all at once."""
    # The clock jumps while a thread works: all is done in place.
    monkeypatch.setattr("trio.to_thread.run_sync", run_inline)
    files = SimulatedFileSystem()
    converter = Converter(files)
    storage = attrs.evolve(
        GATHERING.storage, journal_file_bytes=16 * MIB, journal_budget_bytes=256 * MIB, segment_bytes=64 * MIB
    )
    async with opened(files, converter, config=attrs.evolve(GATHERING, storage=storage)) as engine:
        for name, batches in zip(NAMES, (5, 4, 4), strict=True):
            await engine.create_shard(name, ShardConfig())
            for _ in range(batches):
                await append(engine, name, bytes(7 * MIB))
        began = trio.current_time()
        await roll(engine, *NAMES)
        await until(lambda: is_gathered(engine, NAMES[0]), step_s=0.001)
        assert [[source.name for source in plan.sources] for plan in converter.plans] == [[NAMES[0]]]
        for _ in range(2):
            await append(engine, NAMES[2], bytes(7 * MIB))
        await roll(engine, NAMES[2])
        await until(lambda: is_gathered(engine, *NAMES), step_s=0.001)
        assert [source.name for source in converter.plans[-1].sources] == [NAMES[1], NAMES[2], NAMES[2]]
        assert trio.current_time() - began < GATHERED_AFTER_S


async def test_each_record_is_in_a_file_after_the_time_that_is_set_however_quiet_its_shard_is(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio.to_thread.run_sync", run_inline)
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        before = await fill(engine, *NAMES)
        # On top of it comes the time until the next pass over the shards.
        for _ in range(GATHERING.conversion.max_age_s + 5 * int(GATHERED_AFTER_S)):
            clock.advance(seconds=1)
            await trio.sleep(1)
            if is_gathered(engine, *NAMES):
                break
        assert is_gathered(engine, *NAMES)
        assert {name: await values_of(engine, name) for name in NAMES} == before


async def test_quiet_shards_roll_by_age_and_are_gathered(autojump_clock: object) -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        before = await fill(engine, *NAMES)
        clock.advance(seconds=10)
        await apply_retention(engine)
        await until(lambda: is_gathered(engine, *NAMES))
        assert {name: await values_of(engine, name) for name in NAMES} == before


async def test_segments_that_were_closed_before_a_start_are_gathered_after_it(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.failures += [ConversionFailedError("not now")]
    async with opened(files, converter) as engine:
        before = await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await until(lambda: engine.parts.conversion.last_failure != "")
    async with opened(files) as engine:
        await until(lambda: is_gathered(engine, *NAMES))
        assert {name: await values_of(engine, name) for name in NAMES} == before


async def test_a_segment_with_appends_of_two_days_has_a_part_in_each_file(autojump_clock: object) -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        await fill(engine, *NAMES)
        clock.advance(seconds=DAY_S)
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        assert {name: await values_of(engine, name) for name in NAMES} == before
        assert len({path.rpartition("/")[0] for path in shared_files(files)}) == 2
        first, second = sealed(engine, NAMES[0])
        assert first.next_offset == second.base_offset == 8
        assert second.place is not None
        assert first.place is not None
        assert second.place.day == first.place.day + 1
        await check_files(engine, files, DATA)
    assert damages(files) == []


async def test_records_are_found_by_time_lsn_key_and_tag(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        for name in NAMES:
            await engine.create_shard(name, ShardConfig(index_keys=True, index_tags=True))
        for number in range(30):
            for name in NAMES:
                record = Record(
                    b"%d" % number, key=b"k%d" % (number % 3), tags=(f"t{number % 5}",), timestamp_us=NOW_US + number
                )
                await engine.append(engine.parts.table.by_name(name), encode([record], now_us=NOW_US))

        async def answers() -> list[object]:
            found: list[object] = []
            reader = engine.parts.reader
            for name in NAMES:
                shard = engine.parts.table.by_name(name)
                for number in (0, 7, 29, 30):
                    found.append(await reader.find_offset(shard, Start.time(NOW_US + number)))
                    found.append(await reader.find_offset(shard, Start.lsn(shard.last_lsn - number)))
                for by, word in WORDS:
                    slices = await reader.read_indexed(shard, by, word, 0, 1 << 20, latest=False)
                    found.append([header.lsn for data in slices.buffers for _, header in iterate(data)])
            return found

        before = await answers()
        await gathered(engine, *NAMES)
        assert await answers() == before


async def test_a_file_is_removed_when_nothing_refers_to_it(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await engine.parts.commands.trim(NAMES[0], 8)
        await check_files(engine, files, DATA)
        (record,) = engine.parts.views.files
        assert record.live_records == 16
        assert await values_of(engine, NAMES[2]) == before[NAMES[2]]
        await engine.parts.commands.delete_shard(NAMES[1])
        await engine.parts.commands.trim(NAMES[2], 8)
        await check_files(engine, files, DATA)
        assert shared_files(files) == []
        assert len(engine.parts.views.files) == 0
        assert not any("date=" in directory for directory in segment_directories(files, DATA))
    assert damages(files) == []


async def test_a_file_that_is_mostly_dead_is_rewritten(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        (old,) = shared_files(files)
        await engine.parts.commands.trim(NAMES[0], 8)
        await engine.parts.commands.delete_shard(NAMES[1])
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: sealed(engine, NAMES[2])[0].path != old)
        assert await values_of(engine, NAMES[2]) == before[NAMES[2]]
        await check_files(engine, files, DATA)
        (new,) = shared_files(files)
        assert new != old
        (record,) = engine.parts.views.files
        assert record.live_records == record.record_count == 8
    assert damages(files) == []


async def test_what_was_trimmed_of_a_segment_does_not_fill_the_disk(autojump_clock: object) -> None:
    """A shard that is trimmed as it is read, as a queue is, has one segment of many records when files were merged."""
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await engine.parts.checkpointer.checkpoint()
        (old,) = shared_files(files)
        for name in NAMES:
            await engine.parts.commands.trim(name, 5)
        asked_at = trio.current_time()
        await until(lambda: [each.live_records for each in engine.parts.views.files] == [9], step_s=10)
        assert trio.current_time() - asked_at >= SHARED_DROPS_WAIT_S, "nothing else makes a checkpoint of a quiet node"
        await until(lambda: sealed(engine, NAMES[2])[0].path != old, step_s=10)
        assert {name: await values_of(engine, name) for name in NAMES} == {name: before[name][5:] for name in NAMES}
        await check_files(engine, files, DATA)
        (record,) = engine.parts.views.files
        assert record.live_records == record.record_count == 9
    assert damages(files) == []
    async with opened(files) as engine:
        assert {name: await values_of(engine, name) for name in NAMES} == {name: before[name][5:] for name in NAMES}


@pytest.mark.parametrize("choose", [everything_lost, everything_survived])
@pytest.mark.parametrize("saved", [False, True], ids=["", "saved"])
async def test_a_trim_within_a_segment_that_is_being_rewritten_loses_nothing_else(
    saved: bool, choose: Callable[[int], int], autojump_clock: object
) -> None:
    """The new file has the segment as it was before the trim, and the old file goes."""
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        before = (await fill(engine, *NAMES))[NAMES[2]]
        await gathered(engine, *NAMES)
        (old,) = shared_files(files)
        converter.open, converter.asked = trio.Event(), trio.Event()
        await engine.parts.commands.trim(NAMES[0], 8)
        await engine.parts.commands.delete_shard(NAMES[1])
        await engine.parts.checkpointer.checkpoint()
        await converter.asked.wait()
        await engine.parts.commands.trim(NAMES[2], 5)
        assert [each.base_offset for each in sealed(engine, NAMES[2])] == [5]
        if saved:
            await engine.parts.checkpointer.checkpoint()
        converter.open.set()
        await until(lambda: sealed(engine, NAMES[2])[0].path != old)
        assert await values_of(engine, NAMES[2]) == before[5:]
        assert engine.parts.views.files.valid(engine.parts.checkpointer.checkpoint_lsn) == [
            (sealed(engine, NAMES[2])[0].place.day, sealed(engine, NAMES[2])[0].place.file_id)
        ]
        stop_without_checkpoint(engine)
    files = files.crash(choose)
    async with opened(files) as engine:
        assert await values_of(engine, NAMES[2]) == before[5:]
        await check_files(engine, files, DATA)
        (record,) = engine.parts.views.files
        assert record.live_records == 3
    assert damages(files) == []


async def test_few_dead_records_of_a_quiet_node_go_after_an_hour(autojump_clock: object) -> None:
    """Nothing but time makes the checkpoint that finds them, and has them looked at again."""
    files, clock = SimulatedFileSystem(), ManualClock()
    async with opened(files, clock=clock) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await engine.parts.checkpointer.checkpoint()
        (old,) = shared_files(files)
        await engine.parts.commands.trim(NAMES[0], 8)
        asked_at = trio.current_time()
        await until(lambda: any(each.dead_since_us for each in engine.parts.views.files), step_s=10)
        assert trio.current_time() - asked_at >= SHARED_DROPS_WAIT_S
        clock.advance(seconds=LONGEST_DEAD_S - 1)
        await trio.sleep(700)
        assert shared_files(files) == [old]
        clock.advance(seconds=2)
        await until(lambda: sealed(engine, NAMES[2])[0].path != old, step_s=10)
        assert {name: await values_of(engine, name) for name in NAMES[1:]} == {name: before[name] for name in NAMES[1:]}
        await check_files(engine, files, DATA)
        (record,) = engine.parts.views.files
        assert record.live_records == record.record_count == 16
    assert damages(files) == []


async def test_a_file_that_cannot_be_rewritten_is_tried_again_later(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        (old,) = shared_files(files)
        converter.failures += [ConversionFailedError("no space")]
        await engine.parts.commands.trim(NAMES[0], 8)
        await engine.parts.commands.trim(NAMES[1], 8)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: engine.parts.conversion.last_failure != "")
        assert shared_files(files) == [old]
        await trio.sleep(301)
        await append(engine, NAMES[2], b"later")
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: sealed(engine, NAMES[2])[0].path != old)
        assert await values_of(engine, NAMES[2]) == [*before[NAMES[2]], b"later"]


async def test_small_files_of_a_day_are_merged_and_each_shard_has_one_segment(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        for number in range(MERGED_AT_ONCE):
            before = await fill(engine, *NAMES)
            await roll(engine, *NAMES)
            await until(lambda many=number + 1: all(len(sealed(engine, name)) == many for name in NAMES))
        assert len(shared_files(files)) == MERGED_AT_ONCE
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: all(len(sealed(engine, name)) == 1 for name in NAMES))
        assert {name: await values_of(engine, name) for name in NAMES} == before
        await check_files(engine, files, DATA)
        assert len(shared_files(files)) == 1
    assert damages(files) == []
    async with opened(files) as engine:
        assert {name: await values_of(engine, name) for name in NAMES} == before


async def test_retention_drops_as_little_after_files_are_merged(autojump_clock: object) -> None:
    """A shard of one segment a day lost nearly all of its records when it had one too many."""
    files = SimulatedFileSystem()
    bounded, free = NAMES[:2]
    async with opened(files) as engine:
        await engine.create_shard(bounded, ShardConfig(retention=Retention(max_records=8 * MERGED_AT_ONCE)))
        await engine.create_shard(free, ShardConfig())
        for number in range(MERGED_AT_ONCE):
            for name in (bounded, free):
                await append(engine, name, *[b"%d" % number] * 8)
            await roll(engine, bounded, free)
            while len(sealed(engine, free)) <= number:
                await trio.sleep(0.1)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: len(sealed(engine, free)) == 1)
        assert len(sealed(engine, bounded)) == MERGED_AT_ONCE
        assert {each.path for each in sealed(engine, bounded)} == {sealed(engine, free)[0].path}
        await append(engine, bounded, b"one too many")
        await apply_retention(engine)
        await until(lambda: engine.parts.table.by_name(bounded).start_offset > 0)
        assert len(await values_of(engine, bounded)) == 8 * MERGED_AT_ONCE - 8 + 1
        await check_files(engine, files, DATA)
    assert damages(files) == []


async def test_what_was_trimmed_or_deleted_meanwhile_is_left_out(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.open = trio.Event()
    async with opened(files, converter) as engine:
        before = await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await converter.asked.wait()
        await engine.parts.commands.trim(NAMES[0], 8)
        await engine.parts.commands.delete_shard(NAMES[1])
        converter.open.set()
        await until(lambda: is_gathered(engine, NAMES[2]))
        assert await values_of(engine, NAMES[0]) == []
        assert await values_of(engine, NAMES[2]) == before[NAMES[2]]
        await check_files(engine, files, DATA)
        assert engine.parts.conversion.last_failure == ""
    assert damages(files) == []


async def test_files_of_which_nothing_is_wanted_are_withdrawn(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.open = trio.Event()
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await converter.asked.wait()
        for name in NAMES:
            await engine.parts.commands.trim(name, 8)
        # Their logs may still be read, as their files are open for the converter.
        converter.open.set()
        await check_files(engine, files, DATA)
        assert shared_files(files) == []
        assert len(engine.parts.views.files) == 0


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_an_engine_stops_while_a_decision_about_files_waits_for_disk_space(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    """The decision may not be cancelled, and nothing looked for space any more: the stop never came to its end."""
    # A checkpoint would free a file of the journal, in which there is room for the decision.
    for reason in ("_may_free_journal", "_checkpoint_due"):
        monkeypatch.setattr(Checkpointer, reason, lambda _: False)
    files = FullJournalDisk()
    converter = Converter(files)
    converter.open = trio.Event()
    with trio.CancelScope() as scope:
        async with opened(files, converter) as engine:
            before = await fill(engine, *NAMES)
            await engine.create_shard("s", ShardConfig())
            await roll(engine, *NAMES)
            await converter.asked.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fill_up, engine, files)
                await until(lambda: engine.parts.committer.disk_full is not None)
                converter.open.set()
                await until(lambda: bool(shared_files(files)))
                nursery.cancel_scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert not is_gathered(engine, *NAMES)
            if is_cancelled:
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught == is_cancelled
    files.full = False
    async with opened(files.crash(everything_lost)) as engine:
        assert {name: await values_of(engine, name) for name in NAMES} == before


async def test_a_damaged_log_stays_and_the_others_are_gathered(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await fill(engine, *NAMES)
        await engine.parts.checkpointer.flush()
        log = engine.parts.table.by_name(NAMES[1]).segments[0]
        files.open(log.path).pwritev([b"damage"], log.end - 20)  # type: ignore[attr-defined]
        await roll(engine, *NAMES)
        await until(lambda: is_gathered(engine, NAMES[0], NAMES[2]))
        assert "plant/b" in engine.parts.conversion.last_failure or engine.parts.conversion.last_failure == ""
        assert sealed(engine, NAMES[1]) == []
        assert await values_of(engine, NAMES[2]) == before[NAMES[2]]


@pytest.mark.parametrize("choose", [everything_lost, everything_survived])
async def test_a_crash_before_the_checkpoint_applies_the_entry_again(
    choose: Callable[[int], int], autojump_clock: object
) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        stop_without_checkpoint(engine)
    files = files.crash(choose)
    assert [each for each in damages(files) if "sealing" not in each and "/log/" not in each] == []
    async with opened(files) as engine:
        assert is_gathered(engine, *NAMES)
        assert {name: await values_of(engine, name) for name in NAMES} == before
        await check_files(engine, files, DATA)


async def test_a_damaged_file_stops_no_reader_of_other_files(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        before = await fill(engine, "other")
        (path,) = shared_files(files)
    files.open(path).pwritev([b"damage"], 40)
    found = damages(files)
    told = r"row group 0 \(rows 0 to \d+\): checksum .*; affected are offsets 0 to 7 of shard 'plant/a' and 1 other "
    assert any(re.search(told, each) for each in found), found
    async with opened(files) as engine:
        with pytest.raises(Exception, match=r"row group 0 .*of shard 'plant/a' cannot be read"):
            await values_of(engine, NAMES[0])
        assert await values_of(engine, "other") == before["other"]


async def test_the_check_finds_missing_files_wrong_counts_and_strangers(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
    (path,) = shared_files(files)
    stranger = f"{path.rpartition('/')[0]}/{7:016x}.parquet"
    files.rename(path, stranger)
    missing, unknown = damages(files)
    assert (
        "the file is missing; offsets 0 to 7 of shard 'plant/a' and 2 other segments are recorded to be in" in missing
    )
    assert "no record refers to this file and the server does not read it" in unknown
