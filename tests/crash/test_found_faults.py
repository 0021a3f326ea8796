"""Faults that the crash tests or reading for them found, each as the shortest story that shows it."""

from __future__ import annotations

import contextlib

from journal.engine import Engine
from shards.errors import StorageError
from shards.format.batch import encode_values
from shards.format.record import StoredRecord
from shards.model import Mode, ShardConfig
from shards.position import Start
from shards.seams.clock import ManualClock
from tests.crash.segment_files import check_files
from tests.crash.simulated_workload import read_all
from tests.crash.simulation import DATA, QUIET, run
from tests.simulation.file_system import SimulatedFileSystem, everything_lost, everything_survived


def test_a_time_is_not_found_in_trimmed_records() -> None:
    async def story(engine: Engine) -> None:
        await engine.create_shard("s", ShardConfig())
        shard = engine.parts.table.by_name("s")
        for timestamp_us in (1000, 10):
            await engine.append(shard, encode_values([b"v"], timestamp_us=timestamp_us))
        await engine.trim("s", 1)
        assert await engine.parts.reader.find_offset(shard, Start.time(500)) == shard.published_offset

    assert run(SimulatedFileSystem(), story, seed=1, clock=ManualClock(), config=QUIET) is None


def test_trimming_empty_segments_leaves_the_file_that_they_share_with_another() -> None:
    async def story(engine: Engine) -> None:
        await engine.create_shard("s", ShardConfig())
        shard = engine.parts.table.by_name("s")
        for mode in (Mode.MEMORY, Mode.FILE, Mode.MEMORY, Mode.FILE):
            await engine.set_mode("s", mode)
        for value in (b"0", b"1"):
            await engine.append(shard, encode_values([value], timestamp_us=1))
        await engine.parts.checkpointer.flush()
        await engine.trim("s", 1)
        await engine.parts.checkpointer.remove_files()
        assert [record.value for record in await read_all(engine, shard) if isinstance(record, StoredRecord)] == [b"1"]

    assert run(SimulatedFileSystem(), story, seed=1, clock=ManualClock(), config=QUIET) is None


def test_a_removed_file_does_not_come_back_for_good_when_the_process_is_killed_and_then_the_power_goes() -> None:
    """A log file of trimmed records was there again after a kill, a start and a power loss, and stayed for ever.

    The killed process had removed it without a sync of the directory. The next one found it gone, so it synced nothing,
    and forgot at its checkpoint that there had been such a file.
    """
    files, clock = SimulatedFileSystem(), ManualClock()

    async def trim(engine: Engine) -> None:
        await engine.create_shard("s", ShardConfig())
        shard = engine.parts.table.by_name("s")
        await engine.append(shard, encode_values([b"0"], timestamp_us=1))
        await engine.roll("s")
        await engine.append(shard, encode_values([b"1"], timestamp_us=1))
        await engine.parts.checkpointer.checkpoint()
        await engine.trim("s", 1)
        await engine.parts.checkpointer.remove_files()
        files.stop()

    async def checkpoint(engine: Engine) -> None:
        await engine.parts.checkpointer.checkpoint()

    async def look(engine: Engine) -> None:
        await check_files(engine, files, DATA)

    run(files, trim, seed=1, clock=clock, config=QUIET)
    files = files.kill(everything_lost)
    assert run(files, checkpoint, seed=2, clock=clock, config=QUIET) is None
    files = files.crash(everything_lost)
    assert run(files, look, seed=3, clock=clock, config=QUIET) is None


def test_a_log_file_that_is_missing_is_not_made_anew_with_zeros_where_acknowledged_records_were() -> None:
    """A start without a log file wrote the newest records into a new file of that name, behind a hole.

    A checkpoint then recycled the journal, so that putting the missing file back lost those records.
    """
    files, clock = SimulatedFileSystem(), ManualClock()

    async def append(engine: Engine) -> None:
        await engine.create_shard("s", ShardConfig())
        shard = engine.parts.table.by_name("s")
        for value in (b"0", b"1"):
            await engine.append(shard, encode_values([value], timestamp_us=1))
            if value == b"0":
                await engine.parts.checkpointer.checkpoint()
        files.stop()

    async def checkpoint(engine: Engine) -> None:
        with contextlib.suppress(StorageError):
            await engine.parts.checkpointer.checkpoint()

    async def look(engine: Engine) -> None:
        found = await read_all(engine, engine.parts.table.by_name("s"))
        assert [record.value for record in found if isinstance(record, StoredRecord)] == [b"0", b"1"]

    run(files, append, seed=1, clock=clock, config=QUIET)
    files = files.kill(everything_lost)
    vanished = files.disk.vanish(f"{DATA}/log/01/0000000000000001-00000000000000000000.log")
    with contextlib.suppress(StorageError):
        run(files, checkpoint, seed=2, clock=clock, config=QUIET)
    files = files.kill(everything_lost)
    files.disk.put_back(vanished)
    assert run(files, look, seed=3, clock=clock, config=QUIET) is None


def test_the_store_of_a_start_that_was_killed_is_there_after_a_power_loss() -> None:
    """The next start found it in the page cache and synced nothing: after the power loss no start was possible."""
    files, clock = SimulatedFileSystem(), ManualClock()

    async def nothing(engine: Engine) -> None:
        raise AssertionError("the start was to be killed")

    async def look(engine: Engine) -> None:
        await engine.create_shard("s", ShardConfig())

    files.crash_at(1, pattern="^rename /data/state/", written=1.0)
    assert run(files, nothing, seed=1, clock=clock) is not None
    files = files.kill(everything_survived)
    # The first write to the journal: from here on it counts as used.
    files.crash_at(3, pattern="^f(data)?sync /data/journal/", written=1.0)
    assert run(files, nothing, seed=2, clock=clock) is not None
    files = files.crash(everything_lost)
    assert run(files, look, seed=3, clock=clock) is None
