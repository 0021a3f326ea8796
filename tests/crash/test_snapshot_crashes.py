"""A server that is killed at any operation of a snapshot starts again, and nothing of the snapshot stays."""

from __future__ import annotations

import pytest

from journal.engine import Engine
from shards.model import ShardConfig
from shards.seams.clock import ManualClock
from tests.crash.simulation import DATA, run
from tests.journal.engines import append, values_of
from tests.simulation.file_system import SimulatedFileSystem, everything_survived

SNAPSHOTS = f"{DATA}/snapshots"


@pytest.mark.slow("an engine after each place of a crash")
def test_a_start_removes_what_a_crash_left_at_any_operation_of_a_snapshot() -> None:
    """A marker that had not got its name yet was taken for a directory, and no start succeeded any more."""
    clock = ManualClock()
    nth = 0
    was_stopped = True
    while was_stopped:
        nth += 1
        files = SimulatedFileSystem()
        files.crash_at(nth, pattern=f"{SNAPSHOTS}/", written=0.5)

        async def snapshot(engine: Engine) -> None:
            await engine.create_shard("s", ShardConfig())
            await append(engine, "s", b"value")
            async with engine.parts.snapshots.take():
                pass

        was_stopped = run(files, snapshot, seed=nth, clock=clock) is not None
        files = files.kill(everything_survived)

        async def look(engine: Engine) -> None:
            assert await values_of(engine, "s") == [b"value"]

        assert run(files, look, seed=nth, clock=clock) is None
        assert files.listdir(SNAPSHOTS) == [], nth
    assert nth > 20
