"""Closed segments become Parquet files: which, when, and what is left when something comes in between."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from journal.check import check_directory
from journal.engine import Engine, Environment, open_engine
from journal.engine.directory.data_directory import MARKER
from journal.engine.parquet.converter import ParquetConverter
from journal.engine.wal.entry_payloads import Converted
from journal.settings.server import ConversionConfig, ServerConfig, ShardsConfig, StorageConfig
from journal.settings.values import MIB
from shards.errors import ConversionFailedError, CorruptionError, InvalidRequestError, ShardNotFoundError
from shards.model import Mode, Retention, SegmentKind, ShardConfig
from shards.parquet.conversion import convert_log
from shards.seams.clock import ManualClock
from shards.segments.conversion_plan import ConversionPlan, SealedFile
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.shard import Shard
from tests.crash.segment_files import check_files
from tests.journal.engines import DATA, append, apply_retention, stop_without_checkpoint, values_of
from tests.patience import PATIENCE_S
from tests.simulation.faults import OperationKind, Trigger
from tests.simulation.file_system import Fault, SimulatedFileSystem, everything_lost, everything_survived
from tests.simulation.inline import InlineConverter, InlineDisk
from tests.simulation.store import SimulatedStore

KIB = 1024
LARGE = random.Random(1).randbytes(1000)
CONFIG = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=MIB,
        journal_budget_bytes=4 * MIB,
        segment_bytes=4 * KIB,
        disk_reserve_bytes=0,
        retention_interval_s=86_400,
    ),
    shards=ShardsConfig(),
    conversion=ConversionConfig(min_bytes=3 * KIB, max_age_s=60),
)


@asynccontextmanager
async def opened(
    files: SimulatedFileSystem,
    *,
    config: ServerConfig = CONFIG,
    clock: ManualClock | None = None,
    converter: ParquetConverter | None = None,
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
        make_converter=lambda: converter or InlineConverter(lambda plan: convert_log(files, plan)),
    ) as engine:
        yield engine


class Gate:
    """A converter that waits until the test lets it write, or fails with the error that the test sets."""

    def __init__(self, files: SimulatedFileSystem) -> None:
        self._files = files
        self.asked = trio.Event()
        self.open = trio.Event()
        self.failures: list[Exception] = []
        self.plans: list[ConversionPlan] = []

    async def convert(self, plan: ConversionPlan) -> SealedFile:
        self.plans.append(plan)
        self.asked.set()
        await self.open.wait()
        if self.failures:
            raise self.failures.pop(0)
        return convert_log(self._files, plan)

    async def rest(self) -> None:
        await trio.lowlevel.checkpoint()


class FailingFileSystem(SimulatedFileSystem):
    """Lets one of the changes to the files of conversion fail while it is armed.

    Args:
        step: Which one, from 1.
        number: How.
    """

    def __init__(self, step: int, number: int) -> None:
        super().__init__()
        self.armed = False
        self._steps_left = step
        self._number = number

    def _begin(self, what: str, kind: OperationKind, *, grows: bool) -> Fault | None:
        if self.armed and "/seal" in what:
            self._steps_left -= 1
            if not self._steps_left:
                self.fail_at(len(self.operations) + 1, self._number)
        return super()._begin(what, kind, grows=grows)


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not holds():
            await trio.sleep(0.001)


async def fill(engine: Engine, name: str, count: int, *, first: int = 0) -> list[bytes]:
    values = [b"%d:" % number + LARGE for number in range(first, first + count)]
    for value in values:
        await append(engine, name, value)
    return values


async def create(engine: Engine, name: str = "s", **config: object) -> Shard:
    await engine.create_shard(name, ShardConfig(**config))  # type: ignore[arg-type]
    return engine.parts.table.by_name(name)


def kinds(shard: Shard) -> list[SegmentKind]:
    return [segment.kind for segment in shard.segments]


def sealed_files(files: SimulatedFileSystem, directory: str = "shard=s") -> list[str]:
    path = f"{DATA}/sealed/{directory}"
    return files.listdir(path) if files.exists(path) else []


async def test_a_full_segment_becomes_a_parquet_file_and_its_log_goes() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 10)
        await until(lambda: kinds(shard)[:2] == [SegmentKind.PARQUET] * 2)
        assert await values_of(engine, "s") == values
        await check_files(engine, files, DATA)
        assert [name.partition("-")[0] for name in sealed_files(files)] == ["0" * 20, "0" * 19 + "4"]
    async with opened(files) as engine:
        assert kinds(engine.parts.table.by_name("s")) == [SegmentKind.PARQUET, SegmentKind.PARQUET, SegmentKind.LOG]
        assert await values_of(engine, "s") == values


async def test_a_small_segment_stays_a_log_until_a_conversion_is_requested() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine)
        await append(engine, "s", b"small")
        await engine.roll("s")
        await fill(engine, "s", 8, first=1)
        await until(lambda: SegmentKind.PARQUET in kinds(shard))
        assert kinds(shard)[0] is SegmentKind.LOG
        info = await engine.convert("s")
        assert [segment.kind for segment in info.segments if segment.size_bytes] == [SegmentKind.PARQUET] * 3
        assert (await values_of(engine, "s"))[0] == b"small"


async def test_a_segment_that_is_open_for_long_is_closed_if_it_is_large_enough() -> None:
    files, clock = SimulatedFileSystem(), ManualClock()
    config = attrs.evolve(CONFIG, storage=attrs.evolve(CONFIG.storage, segment_bytes=MIB))
    async with opened(files, config=config, clock=clock) as engine:
        large, small = await create(engine, "large"), await create(engine, "small")
        await fill(engine, "large", 5)
        await fill(engine, "small", 1)
        clock.advance(seconds=59)
        await apply_retention(engine)
        assert kinds(large) == kinds(small) == [SegmentKind.LOG]
        clock.advance(seconds=2)
        await apply_retention(engine)
        await until(lambda: kinds(large) == [SegmentKind.PARQUET, SegmentKind.LOG])
        assert kinds(small) == [SegmentKind.LOG]


async def test_segments_that_were_closed_before_a_start_are_sealed_after_it() -> None:
    files = SimulatedFileSystem()
    async with opened(files, config=attrs.evolve(CONFIG, conversion=ConversionConfig(enabled=False))) as engine:
        await create(engine)
        values = await fill(engine, "s", 10)
    async with opened(files) as engine:
        # No client has used the shard since the start.
        await until(lambda: engine.parts.conversion.sealed_segments == 2)
        assert await values_of(engine, "s") == values


async def test_the_last_segment_may_be_sealed_and_published() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await create(engine)
        values = await fill(engine, "s", 3)
        await engine.set_mode("s", Mode.MEMORY)
    async with opened(files) as engine:
        shard = engine.parts.table.by_name("s")
        assert shard.published_segment is shard.segments[-1]
        await engine.convert("s")
        assert kinds(shard) == [SegmentKind.PARQUET]
        assert shard.published_segment is shard.segments[0]
        assert await values_of(engine, "s") == values
        await append(engine, "s", b"in memory")
        assert await values_of(engine, "s") == [*values, b"in memory"]
        await check_files(engine, files, DATA)


async def test_what_is_trimmed_while_it_is_written_is_not_kept() -> None:
    files = SimulatedFileSystem()
    gate = Gate(files)
    async with opened(files, converter=gate) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 5)
        await gate.asked.wait()
        await engine.trim("s", 4)
        gate.open.set()
        await append(engine, "s", b"after")
        await until(lambda: files.listdir(f"{DATA}/sealing") == [])
        assert kinds(shard) == [SegmentKind.LOG]
        assert await values_of(engine, "s") == [values[4], b"after"]
        await check_files(engine, files, DATA)
        assert engine.parts.conversion.sealed_segments == 0


@pytest.mark.parametrize(
    "failure", [ConversionFailedError("No such file"), CorruptionError("log", 0, "ends here")], ids=type
)
async def test_a_conversion_that_fails_because_of_a_trim_is_no_failure(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The log file went with the trim while the writer was about to read it: nothing is left that stays a log."""
    files = SimulatedFileSystem()
    gate = Gate(files)
    gate.failures = [failure]
    async with opened(files, converter=gate) as engine:
        shard = await create(engine)
        await append(engine, "s", b"trimmed")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.convert, "s"))
            await gate.asked.wait()
            await engine.trim("s", 1)
            gate.open.set()
        assert engine.parts.conversion.last_failure == ""
        assert "stays a log file" not in caplog.text
        # Nothing waits for the end of a pause either.
        await append(engine, "s", b"kept")
        await engine.convert("s")
        assert kinds(shard)[0] is SegmentKind.PARQUET


async def test_a_shard_that_is_deleted_while_it_is_written_leaves_nothing() -> None:
    files = SimulatedFileSystem()
    gate = Gate(files)
    async with opened(files, converter=gate) as engine:
        await create(engine)
        await fill(engine, "s", 5)
        await gate.asked.wait()
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(ShardNotFoundError):
                    await engine.convert("s")

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await engine.delete_shard("s")
            gate.open.set()
        await until(lambda: files.listdir(f"{DATA}/sealing") == [])
        await check_files(engine, files, DATA)
        assert files.listdir(f"{DATA}/sealed") == [MARKER]


async def test_a_parquet_file_that_cannot_be_removed_after_its_shard_was_deleted_goes_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Removing a placed file failed for lack of space, and its note went all the same: it stayed for ever."""
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await create(engine)
        other = await create(engine, "t")
        place = engine.parts.segment_files.place

        async def place_and_delete(path: str, segment: ParquetSegment, start_offset: int) -> None:
            await place(path, segment, start_offset)
            if segment.name == "s":
                await engine.delete_shard("s")
                files.inject(Fault(Trigger(1, r"^remove /data/sealed/.*\.parquet"), errno.EDQUOT))

        monkeypatch.setattr(engine.parts.segment_files, "place", place_and_delete)
        await fill(engine, "s", 5)
        await until(lambda: files.failed)
        # When the next segment is sealed, all is done that was to be done about the one before.
        await fill(engine, "t", 5)
        await until(lambda: SegmentKind.PARQUET in kinds(other))
    assert len(sealed_files(files)) == 1
    async with opened(files) as engine:
        assert sealed_files(files) == []
        await check_files(engine, files, DATA)


async def test_a_trim_inside_a_parquet_file_is_marked_until_the_file_goes() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 6)
        await engine.convert("s")
        await engine.trim("s", 2)
        await engine.parts.checkpointer.remove_files()
        mark = f"{DATA}/sealed/shard=s/_start-{shard.shard_id:016x}"
        assert json.loads(files.open(mark).pread(100, 0)) == {"start_offset": 2}
        assert await values_of(engine, "s") == values[2:]
        await engine.trim("s", 6)
        await engine.parts.checkpointer.remove_files()
        assert files.listdir(f"{DATA}/sealed") == [MARKER]


class NoRoomToRemove(SimulatedFileSystem):
    """A file system that needs space to remove a directory."""

    is_full = True

    def remove_directory(self, path: str) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().remove_directory(path)


async def test_a_directory_that_a_full_disk_does_not_let_go_is_removed_later() -> None:
    """The disk was taken for failed, and the engine stopped."""
    files = NoRoomToRemove()
    async with opened(files) as engine:
        await create(engine)
        await fill(engine, "s", 6)
        await engine.convert("s")
        await engine.trim("s", 6)
        await engine.parts.checkpointer.remove_files()
        assert engine.failure is None
        assert files.listdir(f"{DATA}/sealed/shard=s") == []
        files.is_full = False
        await engine.parts.checkpointer.remove_files()
        assert files.listdir(f"{DATA}/sealed") == [MARKER]


async def test_a_file_sealed_behind_a_trim_is_marked_before_it_can_be_seen() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine)
        await fill(engine, "s", 3)
        await engine.trim("s", 2)
        await engine.convert("s")
        operations = files.operations
        marked = min(n for n, what in enumerate(operations) if what.startswith("rename") and "_start-" in what)
        seen = min(n for n, what in enumerate(operations) if what.startswith("rename") and what.endswith(".parquet"))
        assert marked < seen
        assert shard.segments[0].base_offset < shard.start_offset


@pytest.mark.parametrize("trim", [0, 2])
async def test_a_check_after_a_crash_knows_a_trim_from_before_the_first_conversion(trim: int) -> None:
    """A check called the mark of a committed trim damage: the views knew the trim, but no Parquet file of the shard."""
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await create(engine)
        values = await fill(engine, "s", 3)
        if trim:
            await engine.trim("s", trim)
    # The trim is in the views alone: a start goes on in a new journal file and removes those before the checkpoint.
    async with opened(files) as engine:
        shard = engine.parts.table.by_name("s")
        await engine.convert("s")
        mark = f"{DATA}/sealed/shard=s/_start-{shard.shard_id:016x}"
        assert files.exists(mark) == bool(trim)
        stop_without_checkpoint(engine)
    files = files.crash(everything_survived)
    report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
    assert (report.damages, report.notes) == ([], [])
    files = files.crash(everything_survived)
    if trim:
        # A crash may come before the mark is written: the check says so and the next start writes it.
        files.remove(mark)
        report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
        assert ["the mark is missing" in note.problem for note in report.notes] == [True]
        files = files.crash(everything_survived)
    async with opened(files) as engine:
        await check_files(engine, files, DATA)
        assert await values_of(engine, "s") == values[trim:]


async def test_retention_removes_parquet_files() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine, retention=Retention(max_records=5))
        await fill(engine, "s", 12)
        await engine.convert("s")
        await apply_retention(engine)
        await engine.parts.committer.wait_for_all()
        await engine.parts.checkpointer.remove_files()
        assert shard.start_offset == 8
        assert len(sealed_files(files)) == 1


async def test_the_parquet_file_is_valid_after_a_crash_before_any_checkpoint() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 6)
        await engine.convert("s")
        await engine.parts.checkpointer.remove_files()
        log = engine.parts.table.log_path(shard.shard_id, 0)
        assert not files.exists(log)
        stop_without_checkpoint(engine)
    files = files.crash(everything_lost)
    for _ in range(2):
        async with opened(files) as engine:
            # The journal still has the appends; the log is not made again.
            assert engine.recovery.entries > 0
            shard = engine.parts.table.by_name("s")
            assert kinds(shard)[:2] == [SegmentKind.PARQUET] * 2
            assert await values_of(engine, "s") == values
            stop_without_checkpoint(engine)
    async with opened(files) as engine:
        await check_files(engine, files, DATA)


async def test_a_conversion_that_is_folded_again_changes_nothing() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 5)
        await engine.convert("s")
        segment = shard.segments[0]
        assert isinstance(segment, ParquetSegment)
        fields = (field.name for field in attrs.fields(Converted))
        again = Converted(**{name: getattr(segment, name) for name in fields})
        engine.parts.views.fold([(engine.parts.views.folded_lsn, shard.shard_id, again)])
        assert shard.segments[0] is segment
        await check_files(engine, files, DATA)
        assert await values_of(engine, "s") == values
        await engine.trim("s", 4)
        engine.parts.views.fold([(engine.parts.views.folded_lsn, shard.shard_id, again)])
        await check_files(engine, files, DATA)
        assert await values_of(engine, "s") == values[4:]


async def test_a_file_that_was_placed_but_not_recorded_is_gone_after_the_next_start() -> None:
    files = SimulatedFileSystem()
    gate = Gate(files)
    async with opened(files, converter=gate) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 5)
        await gate.asked.wait()
        plan = gate.plans[0]
        written = convert_log(files, plan)
        segment = shard.segments[0]
        assert isinstance(segment, LogSegment)
        sealed = engine.parts.table.sealed_segment(
            shard, Converted(0, 4, written.size_bytes, written.digest, 1, 1, segment.last_lsn, 1)
        )
        await engine.parts.segment_files.place(plan.out_path, sealed, shard)
        assert len(sealed_files(files)) == 1
        stop_without_checkpoint(engine)
    disabled = attrs.evolve(CONFIG, conversion=ConversionConfig(enabled=False))
    async with opened(files, config=disabled) as engine:
        assert sealed_files(files) == []
        assert (files.listdir(f"{DATA}/sealed"), files.listdir(f"{DATA}/sealing")) == ([MARKER], [])
        assert await values_of(engine, "s") == values
    async with opened(files) as engine:
        await engine.convert("s")
        assert await values_of(engine, "s") == values
        await check_files(engine, files, DATA)


async def test_files_of_a_shard_whose_deletion_was_known_before_the_crash_go_with_it() -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await create(engine, "other")
        shard = await create(engine)
        await fill(engine, "s", 6)
        await engine.convert("s")
        await engine.parts.checkpointer.checkpoint()
        engine.parts.checkpointer.drop = lambda segments: None  # type: ignore[method-assign]
        await engine.delete_shard("s")
        # RocksDB may write what it was given at any time, long before a checkpoint.
        engine.parts.views.store.flush()
        stop_without_checkpoint(engine)
        assert sealed_files(files)
        assert files.exists(engine.parts.table.log_path(shard.shard_id, 4)) or len(sealed_files(files)) == 2
    async with opened(files) as engine:
        await check_files(engine, files, DATA)
        assert files.listdir(f"{DATA}/sealed") == [MARKER]


async def test_a_damaged_log_is_reported_once_and_disturbs_no_other_shard(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFileSystem()
    gate = Gate(files)
    async with opened(files, converter=gate) as engine:
        bad, good = await create(engine, "bad"), await create(engine, "good")
        await fill(engine, "bad", 5)
        await gate.asked.wait()
        path = engine.parts.table.log_path(bad.shard_id, 0)
        log = files.open(path)
        at = log.size() - 500
        log.pwritev([bytes([log.pread(1, at)[0] ^ 1])], at)
        gate.open.set()
        values = await fill(engine, "good", 5)
        await until(lambda: SegmentKind.PARQUET in kinds(good))
        assert kinds(bad) == [SegmentKind.LOG] * 2
        for _ in range(2):
            with pytest.raises(CorruptionError) as caught:
                await engine.convert("bad")
            assert caught.value.path == path
        assert sum(plan.log_path == path for plan in gate.plans) == 1
        (told,) = [message for message in caplog.messages if path in message]
        assert "'bad', offsets 0 to 4" in told
        assert await values_of(engine, "good") == values
        await append(engine, "bad", b"and on")
        assert engine.failure is None


async def test_a_conversion_that_fails_is_tried_again_after_a_pause(autojump_clock: trio.testing.MockClock) -> None:
    files = SimulatedFileSystem()
    gate = Gate(files)
    gate.open.set()
    gate.failures = [ConversionFailedError("no room"), OSError(errno.EIO, "Input/output error")]
    async with opened(files, converter=gate) as engine:
        shard = await create(engine)
        began = trio.current_time()
        values = await fill(engine, "s", 5)
        await until(lambda: kinds(shard)[0] is SegmentKind.PARQUET)
        assert trio.current_time() - began >= 1 + 2
        assert len(gate.plans) == len({plan.out_path for plan in gate.plans}) == 3
        assert await values_of(engine, "s") == values
        assert engine.failure is None


@pytest.mark.parametrize("delete", [False, True], ids=["trimmed", "deleted"])
async def test_a_log_removed_before_its_conversion_reads_it_is_no_failure_and_holds_up_no_other_segment(
    delete: bool, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A trim removed the log before its conversion opened it; this counted as a failing disk, and conversion paused."""
    files = SimulatedFileSystem()
    gate = Gate(files)
    async with opened(files, converter=gate) as engine:
        await create(engine)
        other = await create(engine, "other")
        await fill(engine, "s", 5)
        await gate.asked.wait()
        await fill(engine, "other", 5)
        if delete:
            await engine.delete_shard("s")
        else:
            await engine.trim("s", 4)
        await engine.parts.checkpointer.remove_files()
        assert not files.exists(gate.plans[0].log_path)
        gate.open.set()
        await until(lambda: kinds(other)[0] is SegmentKind.PARQUET)
        # Every pause follows an error in the log; the clock of the test also runs on while a thread works.
        assert "stays a log file" not in caplog.text
        assert engine.parts.conversion.last_failure == ""
        assert len(gate.plans) == 2
        await check_files(engine, files, DATA)


async def test_a_parquet_file_that_is_gone_before_it_is_put_into_place_is_written_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A Parquet file that went missing while it was written ended all conversion until the next start."""
    files = SimulatedFileSystem()

    class Losing(Gate):
        async def convert(self, plan: ConversionPlan) -> SealedFile:
            sealed = await super().convert(plan)
            if len(self.plans) < 3:
                files.remove(plan.out_path)
            return sealed

    converter = Losing(files)
    converter.open.set()
    async with opened(files, converter=converter) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 5)
        await until(lambda: kinds(shard)[0] is SegmentKind.PARQUET)
        await until(lambda: engine.parts.conversion.last_failure == "")
        assert len({plan.out_path for plan in converter.plans}) == 3
        assert await values_of(engine, "s") == values
        await check_files(engine, files, DATA)


async def test_what_failed_of_a_segment_that_was_trimmed_since_is_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The note of a failed conversion stayed in memory for every segment that was trimmed before it was tried again."""
    files = SimulatedFileSystem()
    gate = Gate(files)
    gate.open.set()
    gate.failures = [ConversionFailedError("no room")]
    async with opened(files, converter=gate) as engine:
        shard = await create(engine)
        await fill(engine, "s", 5)
        await until(lambda: engine.parts.conversion.last_failure != "")
        await engine.trim("s", 4)
        assert not engine.parts.conversion._failures
        await fill(engine, "s", 5, first=5)
        await until(lambda: kinds(shard)[0] is SegmentKind.PARQUET)


async def test_who_waits_gets_the_error_of_a_failed_conversion() -> None:
    files = SimulatedFileSystem()
    gate = Gate(files)
    gate.open.set()
    gate.failures = [ConversionFailedError("the disk had enough of it")]
    async with opened(files, converter=gate) as engine:
        shard = await create(engine)
        await append(engine, "s", b"v")
        with pytest.raises(ConversionFailedError, match="had enough"):
            await engine.convert("s")
        assert "had enough" in engine.parts.conversion.last_failure
        # Asking again tries again at once.
        await engine.convert("s")
        assert kinds(shard) == [SegmentKind.PARQUET, SegmentKind.LOG]
        assert engine.parts.conversion.last_failure == ""


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
async def test_no_failure_while_a_file_is_put_into_its_place_stops_appends(number: int) -> None:
    step = 0
    while True:
        step += 1
        files = FailingFileSystem(step, number)
        async with opened(files) as engine:
            await create(engine)
            await append(engine, "s", b"v")
            files.armed = True
            with suppress(ConversionFailedError):
                await engine.convert("s")
            files.armed = False
            assert engine.failure is None
            await append(engine, "s", b"w")
            assert await values_of(engine, "s") == [b"v", b"w"]
        if not files.failed:
            break
        after = files.crash(everything_lost)
        async with opened(after) as engine:
            await engine.convert("s")
            await check_files(engine, after, DATA)
            assert await values_of(engine, "s") == [b"v", b"w"]
    assert step > 10


async def test_nothing_waits_for_conversion_where_it_is_switched_off() -> None:
    files = SimulatedFileSystem()
    async with opened(files, config=attrs.evolve(CONFIG, conversion=ConversionConfig(enabled=False))) as engine:
        shard = await create(engine)
        await fill(engine, "s", 5)
        with pytest.raises(InvalidRequestError, match=r"conversion\.enabled"):
            await engine.convert("s")
        await engine.roll("s")
        assert kinds(shard) == [SegmentKind.LOG] * 3
