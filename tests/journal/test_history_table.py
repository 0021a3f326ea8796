"""The Delta table follows the shared files: at once, exactly, again after a crash, and files stay for its readers."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest
import trio
from attrs import evolve

from journal.engine import Engine
from journal.engine.parquet.rewriting import MERGED_AT_ONCE
from shards.delta.actions import table_path
from shards.delta.log_files import LOG
from shards.errors import ConversionFailedError
from shards.segments.segment_paths import shared_path
from tests.crash.segment_files import check_files
from tests.journal.engines import DATA, stop_without_checkpoint, values_of
from tests.journal.test_gathering import (
    GATHERING,
    NAMES,
    Converter,
    damages,
    fill,
    gathered,
    opened,
    roll,
    sealed,
    shared_files,
    until,
)
from tests.simulation.delta_log import JsonLog
from tests.simulation.file_system import Fault, SimulatedFileSystem, Trigger, everything_lost, everything_survived

ROOT = f"{DATA}/sealed"
GRACE_S = 600
WITH_GRACE = evolve(GATHERING, conversion=evolve(GATHERING.conversion, delta_grace_s=GRACE_S))
WITHOUT = evolve(GATHERING, conversion=evolve(GATHERING.conversion, delta=False))


def listed(files: SimulatedFileSystem) -> list[str]:
    """The files in the table."""
    return sorted(f"{ROOT}/{path}" for path in JsonLog(files).read(ROOT).files)


def in_use(engine: Engine) -> list[str]:
    """The files in which segments of shards are now."""
    return sorted({segment.path for name in NAMES for segment in sealed(engine, name)})


async def gather_times(engine: Engine, times: int) -> None:
    for number in range(times):
        await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await until(lambda many=number + 1: all(len(sealed(engine, name)) == many for name in NAMES))
        await until(lambda: engine.parts.history.is_current)


async def merged(engine: Engine) -> None:
    await gather_times(engine, MERGED_AT_ONCE)
    await engine.parts.checkpointer.checkpoint()
    await until(lambda: all(len(sealed(engine, name)) == 1 for name in NAMES))


async def until_removed(engine: Engine, files: SimulatedFileSystem) -> None:
    """Have the table brought up to date, and removed what it does not name."""
    await until(lambda: engine.parts.history.is_current)
    await engine.parts.checkpointer.checkpoint()
    await until(lambda: shared_files(files) == listed(files))


async def test_each_gathering_is_a_commit_with_its_lsn(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        await gather_times(engine, 2)
        assert [(table.version, table.added, table.removed) for table in converter.tables] == [(0, 1, 0), (1, 1, 0)]
        assert listed(files) == sorted(shared_files(files)) == in_use(engine)
        newest = max(file.lsn for file in engine.parts.views.files)
        assert newest <= JsonLog(files).read(ROOT).lsn <= engine.parts.committer.journal_lsn


async def test_a_rewriting_is_one_commit_and_exact_before_a_checkpoint(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await merged(engine)
        await until(lambda: engine.parts.history.is_current)
        # No checkpoint has saved that nothing refers to the old files.
        assert len([file for file in engine.parts.views.files if file.live_records]) == MERGED_AT_ONCE
        assert listed(files) == in_use(engine)
        log = JsonLog(files).read(ROOT)
        assert log.version == MERGED_AT_ONCE
        content = files.open(f"{ROOT}/{LOG}/{log.version:020}.json", write=False).pread(1 << 20, 0)
        assert content.count(b'"dataChange":false') == MERGED_AT_ONCE + 1
        assert b'"dataChange":true' not in content


async def test_a_rewriting_that_a_crash_left_without_a_commit_gets_it_at_the_start(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        await gather_times(engine, MERGED_AT_ONCE)
        converter.table_failures += [ConversionFailedError("no space")] * 1000
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: all(len(sealed(engine, name)) == 1 for name in NAMES))
        before = {name: await values_of(engine, name) for name in NAMES}
        stop_without_checkpoint(engine)
    files = files.crash(everything_survived)
    assert len(listed(files)) == MERGED_AT_ONCE
    for _ in range(2):
        converter = Converter(files)
        async with opened(files, converter) as engine:
            await until(lambda: engine.parts.history.is_current)
            assert listed(files) == in_use(engine)
            assert len(listed(files)) == 1
            assert {name: await values_of(engine, name) for name in NAMES} == before
            stop_without_checkpoint(engine)
        # The second start finds the commit of the first one.
        assert JsonLog(files).read(ROOT).version == MERGED_AT_ONCE
        files = files.kill(everything_survived)
    async with opened(files) as engine:
        await check_files(engine, files, DATA)
    assert damages(files) == []


@pytest.mark.few_cases(1, "many files are gathered first")
@pytest.mark.parametrize("drop", ["trim", "delete"])
async def test_records_that_are_dropped_while_they_are_rewritten_are_in_one_file(
    drop: str, autojump_clock: object
) -> None:
    """A file whose records were all dropped meanwhile stayed in the table, beside the file that has them as well."""
    files = SimulatedFileSystem()
    converter = Converter(files)
    dropped, *others = NAMES
    async with opened(files, converter) as engine:
        await gather_times(engine, MERGED_AT_ONCE - 1)
        await fill(engine, dropped)
        await roll(engine, dropped)
        await until(lambda: len(sealed(engine, dropped)) == MERGED_AT_ONCE and engine.parts.history.is_current)
        assert len(listed(files)) == MERGED_AT_ONCE
        converter.open, converter.asked = trio.Event(), trio.Event()
        await engine.parts.checkpointer.checkpoint()
        await converter.asked.wait()
        if drop == "trim":
            # A segment after it: the last one is not dropped.
            await fill(engine, dropped)
            await engine.parts.commands.trim(dropped, 8 * MERGED_AT_ONCE)
        else:
            await engine.delete_shard(dropped)
        converter.open.set()
        await until(lambda: all(len(sealed(engine, name)) == 1 for name in others) and engine.parts.history.is_current)
        assert listed(files) == sorted({segment.path for name in others for segment in sealed(engine, name)})
        stop_without_checkpoint(engine)
    files = files.crash(everything_survived)
    for _ in range(2):
        async with opened(files, Converter(files)) as engine:
            await until(lambda: engine.parts.history.version >= 0)
            assert len(listed(files)) == 1
            stop_without_checkpoint(engine)
        files = files.kill(everything_survived)


@pytest.mark.parametrize("ends", ["later", "at once"])
async def test_a_commit_whose_sync_failed_is_put_again(ends: str, autojump_clock: object) -> None:
    """A second sync of the directory proved nothing: after a power loss the table named the old files, without them."""
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await until(lambda: engine.parts.history.is_current)
        (before,) = listed(files)
        files.inject(Fault(Trigger(1, r"^sync directory .*_delta_log$"), errno.EIO, keep_entries=False))
        for name in NAMES[:2]:
            await engine.parts.commands.trim(name, 8)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: engine.parts.history.failures == 1)
        if ends == "later":
            await until_removed(engine, files)
        stop_without_checkpoint(engine)
    if ends == "at once":
        files = files.kill(everything_survived)
        async with opened(files) as engine:
            await until_removed(engine, files)
            stop_without_checkpoint(engine)
    files = files.crash(everything_lost)
    assert listed(files) == shared_files(files) != [before]


async def test_a_commit_that_fails_is_made_later_and_nothing_else_waits(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        await gather_times(engine, 1)
        (present,) = listed(files)
        converter.table_failures += [ConversionFailedError("no space left")] * 1000
        before = await fill(engine, *NAMES)
        await roll(engine, *NAMES)
        await until(lambda: len(converter.tables_asked_at) > 4)
        assert engine.parts.history.last_failure == f"the Delta table in {ROOT} is not up to date: no space left"
        assert listed(files) == [present]
        assert {name: await values_of(engine, name) for name in NAMES} == before
        _, *attempts = converter.tables_asked_at[:5]
        assert [round(later - one) for one, later in pairwise(attempts)] == [1, 2, 4]
        converter.table_failures.clear()
        # The clock jumps while a thread reads: meanwhile there may have been more attempts, and the pauses are longer.
        await until(lambda: engine.parts.history.is_current, step_s=10)
        assert engine.parts.history.last_failure == ""
        assert listed(files) == in_use(engine)


async def test_a_file_stays_for_readers_who_have_planned(autojump_clock: object) -> None:
    """No checkpoint is needed at the end of the grace time."""
    files = SimulatedFileSystem()
    async with opened(files, config=WITH_GRACE) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        (path,) = shared_files(files)
        for name in NAMES:
            await engine.parts.commands.trim(name, 8)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: listed(files) == [] and shared_files(files) == [path])
    assert damages(files) == []
    converter = Converter(files)
    async with opened(files, converter, config=WITH_GRACE) as engine:
        await until(lambda: engine.parts.history.is_current)
        assert shared_files(files) == [path]
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: len(engine.parts.views.files) == 0, step_s=1)
        assert trio.current_time() >= converter.tables_asked_at[-1] + GRACE_S
        assert engine.parts.checkpointer.checkpoints == 1
        assert shared_files(files) == []


async def test_a_file_stays_until_a_commit_without_it(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    converter = Converter(files)
    async with opened(files, converter) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await until(lambda: engine.parts.history.is_current)
        converter.table_failures += [ConversionFailedError("not now")] * 4
        for name in NAMES:
            await engine.parts.commands.trim(name, 8)
        await engine.parts.checkpointer.checkpoint()
        await until(lambda: len(converter.table_failures) == 1)
        assert listed(files) == shared_files(files) != []
        await until(lambda: len(engine.parts.views.files) == 0)
        assert shared_files(files) == listed(files) == []


async def test_a_file_with_a_stopped_shard_is_not_rewritten(autojump_clock: object) -> None:
    """What is not known of the shard could not be put into the new file, and both files would have the other rows."""
    files = SimulatedFileSystem()
    async with opened(files) as engine:
        before = await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        await until(lambda: engine.parts.history.is_current)
        (path,) = shared_files(files)
        engine.parts.views.stop(engine.parts.table.by_name(NAMES[1]), "a test")
        await engine.parts.commands.trim(NAMES[0], 8)
        await engine.parts.commands.trim(NAMES[2], 6)
        await engine.parts.checkpointer.checkpoint()
        await trio.sleep(120)
        assert listed(files) == shared_files(files) == [path]
        assert await values_of(engine, NAMES[2]) == before[NAMES[2]][6:]


async def test_without_a_table_nothing_waits(autojump_clock: object) -> None:
    files = SimulatedFileSystem()
    async with opened(files, config=WITHOUT) as engine:
        await fill(engine, *NAMES)
        await gathered(engine, *NAMES)
        (path,) = shared_files(files)
        key = next(iter(engine.parts.views.files)).key
        assert path == shared_path(ROOT, *key) == f"{ROOT}/{table_path(*key)}"
        for name in NAMES:
            await engine.parts.commands.trim(name, 8)
        await engine.parts.checkpointer.checkpoint()
        assert shared_files(files) == []
        assert not files.exists(f"{ROOT}/{LOG}")
        assert engine.parts.history.is_current
