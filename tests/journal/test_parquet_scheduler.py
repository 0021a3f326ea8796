"""Conversion on request, and what is left when something fails or comes in between."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from journal.engine import Engine
from journal.engine.directory.data_directory import MARKER
from journal.settings.server import ConversionConfig
from shards.errors import ConversionFailedError, CorruptionError, InvalidRequestError, ShardNotFoundError
from shards.model import Mode, Retention, SegmentKind, ShardConfig
from shards.segments.conversion_plan import GatheredFiles, SharedPlan
from shards.segments.shard import Shard
from tests.crash.segment_files import check_files
from tests.journal.engines import DATA, append, apply_retention, stop_without_checkpoint, values_of
from tests.journal.test_gathering import GATHERING, Converter, opened, shared_files, until
from tests.simulation.faults import OperationKind, Trigger
from tests.simulation.file_system import Fault, SimulatedFileSystem, everything_lost

LARGE = random.Random(1).randbytes(1000)
"""Four values of this size fill a segment."""
PATIENT = attrs.evolve(GATHERING, conversion=ConversionConfig(max_age_s=86_400))
"""What is not asked for is not converted while a test runs."""
DISABLED = attrs.evolve(GATHERING, conversion=ConversionConfig(enabled=False))


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


def shut(files: SimulatedFileSystem) -> Converter:
    """A converter that waits until the test opens it."""
    converter = Converter(files)
    converter.open = trio.Event()
    return converter


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


async def test_a_start_opens_the_shards_with_records_in_log_files_and_no_others() -> None:
    """It opened each shard with a log segment: every one that was ever written, as the next segment is always there."""
    files = SimulatedFileSystem()
    async with opened(files, config=PATIENT) as engine:
        for name in ("in log files", "in shared files", "without records"):
            await create(engine, name)
        await fill(engine, "in log files", 1)
        await fill(engine, "in shared files", 1)
        await engine.convert("in shared files")
        await engine.parts.checkpointer.checkpoint()
    async with opened(files, config=PATIENT) as engine:
        await trio.testing.wait_all_tasks_blocked()
        assert [shard.name for shard in engine.parts.table.open_shards()] == ["in log files"]


async def test_a_request_converts_at_once_and_the_logs_go() -> None:
    files = SimulatedFileSystem()
    async with opened(files, config=PATIENT) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 10)
        info = await engine.convert("s")
        assert [segment.kind for segment in info.segments if segment.size_bytes] == [SegmentKind.PARQUET]
        assert kinds(shard) == [SegmentKind.PARQUET, SegmentKind.LOG]
        assert await values_of(engine, "s") == values
        await check_files(engine, files, DATA)
        assert len(shared_files(files)) == 1
        assert engine.statistics().waiting.records == 0
    async with opened(files) as engine:
        assert await values_of(engine, "s") == values


async def test_what_several_callers_want_is_written_together() -> None:
    files = SimulatedFileSystem()
    converter = shut(files)
    async with opened(files, converter) as engine:
        for name in ("first", "a", "b"):
            await create(engine, name)
            await fill(engine, name, 5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.convert, "first"))
            await converter.asked.wait()
            nursery.start_soon(partial(engine.convert, "a"))
            nursery.start_soon(partial(engine.convert, "b"))
            await trio.testing.wait_all_tasks_blocked()
            converter.open.set()
        plans = [sorted({source.name for source in plan.sources}) for plan in converter.plans]
        assert plans == [["first"], ["a", "b"]]
        await check_files(engine, files, DATA)


async def test_a_request_needs_no_log_file() -> None:
    """Converting all shards wrote and synced a log file for each, on a disk that was perhaps nearly full."""
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter, config=PATIENT) as engine:
        await create(engine)
        values = await fill(engine, "s", 3)
        await engine.convert("s")
        assert [source.log_path for plan in converter.plans for source in plan.sources] == [
            f"{plan.out_prefix}-tails" for plan in converter.plans
        ]
        assert await values_of(engine, "s") == values
        await check_files(engine, files, DATA)


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


@pytest.mark.parametrize(
    "failure", [ConversionFailedError("No such file"), CorruptionError("log", 0, "ends here")], ids=type
)
async def test_a_conversion_that_fails_because_of_a_trim_is_no_failure(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The log file went with the trim while the writer was about to read it: nothing is left that stays a log."""
    files = SimulatedFileSystem()
    converter = shut(files)
    converter.failures = [failure]
    async with opened(files, converter) as engine:
        shard = await create(engine)
        await append(engine, "s", b"trimmed")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(engine.convert, "s"))
            await converter.asked.wait()
            await engine.trim("s", 1)
            converter.open.set()
        assert engine.parts.conversion.last_failure == ""
        assert "stays a log file" not in caplog.text
        # Nothing waits for the end of a pause either.
        await append(engine, "s", b"kept")
        await engine.convert("s")
        assert kinds(shard)[0] is SegmentKind.PARQUET


async def test_a_shard_that_is_deleted_while_it_is_written_leaves_nothing() -> None:
    files = SimulatedFileSystem()
    converter = shut(files)
    async with opened(files, converter) as engine:
        await create(engine)
        await fill(engine, "s", 5)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(ShardNotFoundError):
                    await engine.convert("s")

            nursery.start_soon(wait)
            await converter.asked.wait()
            await engine.delete_shard("s")
            converter.open.set()
        await until(lambda: files.listdir(f"{DATA}/sealing") == [])
        await check_files(engine, files, DATA)
        assert files.listdir(f"{DATA}/sealed") == [MARKER]


async def test_a_file_that_cannot_be_removed_after_its_shard_was_deleted_goes_at_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Removing a placed file failed for lack of space, and its note went all the same: it stayed for ever."""
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await create(engine)
        place = engine.parts.segment_files.place_shared

        async def place_and_delete(prefix: str, moves: list[tuple[str, str]], valid: list[str]) -> None:
            await place(prefix, moves, valid)
            await engine.delete_shard("s")
            files.inject(Fault(Trigger(1, r"^remove /data/sealed/.*\.parquet"), errno.EDQUOT))

        monkeypatch.setattr(engine.parts.segment_files, "place_shared", place_and_delete)
        await fill(engine, "s", 5)
        with pytest.raises(ShardNotFoundError):
            await engine.convert("s")
        assert files.failed
    assert len(shared_files(files)) == 1
    async with opened(files) as engine:
        assert shared_files(files) == []
        await check_files(engine, files, DATA)


class NoRoomToRemove(SimulatedFileSystem):
    """A file system that needs space to remove a directory."""

    is_full = True

    def remove_directory(self, path: str) -> None:
        if self.is_full and "date=" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().remove_directory(path)


async def test_a_directory_that_a_full_disk_does_not_let_go_is_removed_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The disk was taken for failed, and the engine stopped."""
    files = NoRoomToRemove()
    async with opened(files) as engine:
        await create(engine)
        await fill(engine, "s", 6)
        await engine.convert("s")
        await engine.trim("s", 6)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: shared_files(files) == [])
        assert engine.failure is None
        assert [name for name in files.listdir(f"{DATA}/sealed") if "date=" in name]
        files.is_full = False
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: not any("date=" in name for name in files.listdir(f"{DATA}/sealed")))


async def test_retention_trims_parts_of_shared_files(autojump_clock: trio.testing.MockClock) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        shard = await create(engine, retention=Retention(max_records=5))
        for first in (0, 4, 8):
            await fill(engine, "s", 4, first=first)
            await engine.convert("s")
        await apply_retention(engine)
        await engine.parts.committer.wait_for_all()
        assert shard.start_offset == 8
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: len(shared_files(files)) == 1)


async def test_logs_of_a_shard_whose_deletion_was_known_before_the_crash_go_with_it() -> None:
    files = SimulatedFileSystem()
    async with opened(files, config=DISABLED) as engine:
        await create(engine, "other")
        shard = await create(engine)
        await fill(engine, "s", 6)
        await engine.parts.checkpointer.checkpoint()
        engine.parts.checkpointer.drop = lambda segments: None  # type: ignore[method-assign]
        await engine.delete_shard("s")
        # RocksDB may write what it was given at any time, long before a checkpoint.
        engine.parts.views.store.flush()
        stop_without_checkpoint(engine)
        assert files.exists(engine.parts.table.log_path(shard.shard_id, 4))
    async with opened(files) as engine:
        await check_files(engine, files, DATA)
        assert not files.exists(engine.parts.table.log_path(shard.shard_id, 4))


async def test_a_damaged_log_is_reported_once_and_disturbs_no_other_shard(caplog: pytest.LogCaptureFixture) -> None:
    files = SimulatedFileSystem()
    converter = shut(files)
    async with opened(files, converter) as engine:
        bad, good = await create(engine, "bad"), await create(engine, "good")
        await fill(engine, "bad", 5)
        values = await fill(engine, "good", 5)
        await engine.parts.checkpointer.flush()
        await converter.asked.wait()
        path = engine.parts.table.log_path(bad.shard_id, 0)
        log = files.open(path)
        at = log.size() - 500
        log.pwritev([bytes([log.pread(1, at)[0] ^ 1])], at)
        converter.open.set()
        await until(lambda: SegmentKind.PARQUET in kinds(good))
        assert kinds(bad) == [SegmentKind.LOG] * 2
        for _ in range(2):
            with pytest.raises(CorruptionError) as caught:
                await engine.convert("bad")
            assert caught.value.path == path
        assert sum(any(source.log_path == path for source in plan.sources) for plan in converter.plans) == 1
        (told,) = [message for message in caplog.messages if path in message]
        assert "'bad', offsets 0 to 4" in told
        assert await values_of(engine, "good") == values
        await append(engine, "bad", b"and on")
        assert engine.failure is None


async def test_a_conversion_that_fails_is_tried_again_after_a_pause(autojump_clock: trio.testing.MockClock) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.failures = [ConversionFailedError("no room"), OSError(errno.EIO, "Input/output error")]
    async with opened(files, converter) as engine:
        shard = await create(engine)
        began = trio.current_time()
        values = await fill(engine, "s", 5)
        await until(lambda: kinds(shard)[0] is SegmentKind.PARQUET)
        assert trio.current_time() - began >= 1 + 2
        assert len(converter.plans) == len({plan.out_prefix for plan in converter.plans}) == 3
        assert await values_of(engine, "s") == values
        assert engine.failure is None


@pytest.mark.parametrize("delete", [False, True], ids=["trimmed", "deleted"])
async def test_a_log_removed_before_its_conversion_reads_it_is_no_failure_and_holds_up_no_other_segment(
    delete: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A trim removed the log before its conversion opened it; this counted as a failing disk, and conversion paused."""
    files = SimulatedFileSystem()
    converter = shut(files)
    async with opened(files, converter, config=PATIENT) as engine:
        await create(engine)
        other = await create(engine, "other")
        await fill(engine, "s", 4)
        await fill(engine, "other", 5)
        await engine.parts.checkpointer.flush_all(engine.parts.table.open_shards())
        async with trio.open_nursery() as nursery:

            async def convert(name: str) -> None:
                with suppress(ShardNotFoundError):
                    await engine.convert(name)

            nursery.start_soon(convert, "s")
            await converter.asked.wait()
            nursery.start_soon(convert, "other")
            if delete:
                await engine.delete_shard("s")
            else:
                await engine.trim("s", 4)
            await engine.parts.checkpointer.remove_files()
            assert not files.exists(converter.plans[0].sources[0].log_path)
            converter.open.set()
        assert kinds(other)[0] is SegmentKind.PARQUET
        # Every pause follows an error in the log.
        assert "stays a log file" not in caplog.text
        assert engine.parts.conversion.last_failure == ""
        await check_files(engine, files, DATA)


async def test_a_file_that_is_gone_before_it_is_put_into_place_is_written_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A Parquet file that went missing while it was written ended all conversion until the next start."""
    files = SimulatedFileSystem()

    class Losing(Converter):
        async def gather(self, plan: SharedPlan) -> GatheredFiles:
            gathered = await super().gather(plan)
            if len(self.plans) < 3:
                files.remove(gathered.files[0].path)
            return gathered

    converter = Losing(files)
    async with opened(files, converter) as engine:
        shard = await create(engine)
        values = await fill(engine, "s", 5)
        await until(lambda: kinds(shard)[0] is SegmentKind.PARQUET)
        await until(lambda: engine.parts.conversion.last_failure == "")
        assert len({plan.out_prefix for plan in converter.plans}) == 3
        assert await values_of(engine, "s") == values
        await check_files(engine, files, DATA)


async def test_what_failed_of_a_segment_that_was_trimmed_since_is_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The note of a failed conversion stayed in memory for every segment that was trimmed before it was tried again."""
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.failures = [ConversionFailedError("no room")]
    async with opened(files, converter) as engine:
        shard = await create(engine)
        await fill(engine, "s", 5)
        await until(lambda: engine.parts.conversion.last_failure != "")
        await engine.trim("s", 4)
        assert not engine.parts.conversion._failures
        await fill(engine, "s", 5, first=5)
        await until(lambda: kinds(shard)[0] is SegmentKind.PARQUET)


async def test_who_waits_gets_the_error_of_a_failed_conversion() -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    converter.failures = [ConversionFailedError("the disk had enough of it")]
    async with opened(files, converter) as engine:
        shard = await create(engine)
        await append(engine, "s", b"v")
        with pytest.raises(ConversionFailedError, match="had enough"):
            await engine.convert("s")
        assert "had enough" in engine.parts.conversion.last_failure
        # Asking again tries again at once.
        await engine.convert("s")
        assert kinds(shard) == [SegmentKind.PARQUET, SegmentKind.LOG]
        assert engine.parts.conversion.last_failure == ""


async def test_all_who_wait_for_the_same_files_get_the_error() -> None:
    """The files were written again at once for each of the others, and each attempt failed."""
    files = SimulatedFileSystem()
    converter = shut(files)
    converter.failures = [ConversionFailedError("the disk had enough of it")] * 2
    refused = []
    async with opened(files, converter, config=PATIENT) as engine:

        async def convert(name: str) -> None:
            with pytest.raises(ConversionFailedError, match="had enough"):
                await engine.convert(name)
            refused.append(name)

        async with trio.open_nursery() as nursery:
            for name in ("first", "a", "b", "c"):
                await create(engine, name)
                await append(engine, name, b"v")
                nursery.start_soon(convert, name)
                await converter.asked.wait()
            await trio.testing.wait_all_tasks_blocked()
            converter.open.set()
        assert sorted(refused) == ["a", "b", "c", "first"]
        assert [len(plan.sources) for plan in converter.plans] == [1, 3]


@pytest.mark.few_cases(1, "a failure in each step")
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
    async with opened(files, config=DISABLED) as engine:
        shard = await create(engine)
        await fill(engine, "s", 5)
        with pytest.raises(InvalidRequestError, match=r"conversion\.enabled"):
            await engine.convert("s")
        await engine.roll("s")
        assert kinds(shard) == [SegmentKind.LOG] * 3
