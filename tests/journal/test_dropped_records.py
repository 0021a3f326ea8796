"""Dropped records leave the Delta table within an hour, and then the disk, however often a server restarts."""

from __future__ import annotations

import attrs
import pytest
import trio

from journal.engine import Engine
from journal.engine.parquet.rewriting import LONGEST_DEAD_S
from journal.engine.segments.checkpointer import SHARED_DROPS_WAIT_S
from shards.delta.actions import TableRequest, TableVersion
from shards.delta.log_files import LOG, removal_times
from shards.delta.table import update_table
from shards.segments.conversion_plan import GatheredFiles, SharedPlan
from tests.journal.engines import append, stop_without_checkpoint
from tests.journal.test_conversion_wakeups import SELDOM, opened
from tests.journal.test_gathering import NAMES, Converter, fill, gathered, sealed, shared_files, until
from tests.journal.test_history_table import GRACE_S, ROOT, listed
from tests.simulation.delta_log import JsonLog
from tests.simulation.file_system import SimulatedFileSystem, everything_survived

HOUR_S = 3600
WITH_GRACE = attrs.evolve(SELDOM, conversion=attrs.evolve(SELDOM.conversion, delta_grace_s=GRACE_S))


class ClockedConverter(Converter):
    """Writes the times of trio's clock into the log of the table, and takes long to write a file if it is told so."""

    gather_s = 0.0

    async def gather(self, plan: SharedPlan) -> GatheredFiles:
        await trio.sleep(self.gather_s)
        return await super().gather(plan)

    async def update_table(self, request: TableRequest) -> TableVersion:
        await trio.lowlevel.checkpoint()
        now_ms = 1_700_000_000_000 + round(trio.current_time() * 1000)
        self.tables.append(update_table(self._files, request, JsonLog(self._files), now_ms))
        return self.tables[-1]


async def trimmed(engine: Engine, files: SimulatedFileSystem) -> None:
    """Have a shared file to which nothing refers, and which the table does not have any more."""
    await fill(engine, *NAMES)
    await gathered(engine, *NAMES)
    for name in NAMES:
        await engine.parts.commands.trim(name, 8)
    await engine.parts.checkpointer.checkpoint()
    await until(lambda: listed(files) == [] and engine.parts.history.is_current)


async def test_restarts_do_not_prolong_the_time_that_a_file_stays_for_readers(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files, ClockedConverter(files), WITH_GRACE) as engine:
        await trimmed(engine, files)
        removed_at = trio.current_time()
        assert engine.parts.history.status.waiting_files == 1
    for number in range(4):
        async with opened(files, ClockedConverter(files), WITH_GRACE) as engine:
            await until(lambda: engine.parts.history.is_current)
            assert engine.parts.history.status.waiting_files == 1
            await trio.sleep(GRACE_S / 5)
            assert len(shared_files(files)) == 1
            if number % 2:
                stop_without_checkpoint(engine)
        files = files.crash(everything_survived) if number % 2 else files
    async with opened(files, ClockedConverter(files), WITH_GRACE) as engine:
        # The last checkpoint of before has found that the file is not needed: no other one is waited for.
        await trio.sleep(removed_at + GRACE_S + 10 - trio.current_time())
        assert engine.parts.checkpointer.checkpoints == 0
        assert len(engine.parts.views.files) == 0
    assert shared_files(files) == []


async def test_a_file_whose_removal_no_commit_tells_of_stays_for_the_whole_time(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files, ClockedConverter(files), WITH_GRACE) as engine:
        await trimmed(engine, files)
    for name in files.listdir(f"{ROOT}/{LOG}"):
        files.remove(f"{ROOT}/{LOG}/{name}")
    await trio.sleep(2 * GRACE_S)
    async with opened(files, ClockedConverter(files), WITH_GRACE) as engine:
        await trio.sleep(GRACE_S - 10)
        assert len(shared_files(files)) == 1
        await trio.sleep(20)
        assert shared_files(files) == []


@pytest.mark.slow("hours pass on a simulated clock")
async def test_trimmed_records_leave_the_table_within_an_hour_of_a_busy_server(autojump_clock: object) -> None:
    assert LONGEST_DEAD_S + SHARED_DROPS_WAIT_S <= HOUR_S
    files = SimulatedFileSystem()
    converter = ClockedConverter(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await engine.parts.checkpointer.checkpoint()
        old = sealed(engine, NAMES[1])[0].path
        # Few of the records in the file, so that only time makes it due.
        await engine.parts.commands.trim(NAMES[0], 8)
        trimmed_at = trio.current_time()
        converter.gather_s = 300

        async def keep_gathering() -> None:
            while True:
                for _ in range(4):
                    await append(engine, NAMES[2], b"more" * 1000)
                await engine.parts.commands.roll(NAMES[2])
                await trio.sleep(converter.gather_s / 3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_gathering)
            await until(lambda: old not in listed(files), step_s=20)
            nursery.cancel_scope.cancel()
        # One gathering was under way when the rewriting was due.
        assert trio.current_time() - trimmed_at <= HOUR_S + 2 * converter.gather_s + 10
        assert all(sealed(engine, name)[0].path in listed(files) for name in NAMES[1:])


async def test_the_log_tells_when_the_table_lost_a_file(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files, ClockedConverter(files), WITH_GRACE) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await until(lambda: listed(files) != [])
        (path,) = (each.removeprefix(f"{ROOT}/") for each in listed(files))
        assert removal_times(files, ROOT, [path, "date=2023-11-14/0000000000000001.parquet"]) == {}
        await trio.sleep(100)
        for name in NAMES:
            await engine.parts.commands.trim(name, 8)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: listed(files) == [])
        found = removal_times(files, ROOT, [path, "date=2023-11-14/0000000000000001.parquet"])
        assert list(found) == [path]
        assert found[path] - 1_700_000_000_000 >= 100_000
        status = engine.parts.history.status
        assert (status.behind_s, status.failures, status.waiting_files) == (0, 0, 1)
        assert status.version == JsonLog(files).read(ROOT).version > 0
        assert status.committed_at_s * 1000 == found[path]
