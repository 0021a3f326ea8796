"""Faults that the crash tests or reading for them found, each as the shortest story that shows it."""

from __future__ import annotations

from journal.engine import Engine
from shards.batch import encode_values
from shards.clock import ManualClock
from shards.model import Mode, ShardConfig
from shards.position import Start
from shards.record import StoredRecord
from tests.crash.simulated_workload import read_all
from tests.crash.simulation import QUIET, run
from tests.simulation.file_system import SimulatedFileSystem


def test_a_time_is_not_found_in_trimmed_records() -> None:
    async def story(engine: Engine) -> None:
        await engine.control.create_shard("s", ShardConfig())
        shard = engine.table.by_name("s")
        for timestamp_us in (1000, 10):
            await engine.append(shard, encode_values([b"v"], timestamp_us=timestamp_us))
        await engine.control.trim("s", 1)
        assert await engine.reader.find_offset(shard, Start.time(500)) == shard.published_offset

    assert run(SimulatedFileSystem(), story, seed=1, clock=ManualClock(), config=QUIET) is None


def test_trimming_empty_segments_leaves_the_file_that_they_share_with_another() -> None:
    async def story(engine: Engine) -> None:
        await engine.control.create_shard("s", ShardConfig())
        shard = engine.table.by_name("s")
        for mode in (Mode.MEMORY, Mode.FILE, Mode.MEMORY, Mode.FILE):
            await engine.control.set_mode("s", mode)
        for value in (b"0", b"1"):
            await engine.append(shard, encode_values([value], timestamp_us=1))
        await engine.maintenance.flush()
        await engine.control.trim("s", 1)
        await engine.maintenance.remove_files()
        assert [record.value for record in await read_all(engine, shard) if isinstance(record, StoredRecord)] == [b"1"]

    assert run(SimulatedFileSystem(), story, seed=1, clock=ManualClock(), config=QUIET) is None
