"""The power goes off at every file system operation of a workload; whatever was acknowledged is there afterwards.

A run is two lives of the engine with a crash at the end of each, and a third start. `make crash` takes every operation
and more ways in which unsynced writes survive; the default run takes some of them.
"""

from __future__ import annotations

import errno
import os
import random

import pytest

from journal.check import check_directory
from journal.engine import Engine
from journal.engine.directory.data_directory import is_complete
from journal.settings.server import ServerConfig
from shards.seams.clock import ManualClock
from tests.crash.ledger import Ledger, require
from tests.crash.segment_files import check_files
from tests.crash.simulated_workload import Workload, check
from tests.crash.simulation import DATA, GATHERING, TINY, run
from tests.simulation.file_system import Choose, SimulatedFileSystem, everything_lost, everything_survived
from tests.simulation.store import SimulatedStore

STEPS = 12


class Life:
    """What happens to one disk, start after start."""

    def __init__(self, seed: int, config: ServerConfig = TINY) -> None:
        self.seed = seed
        self.config = config
        self.ledger = Ledger()
        self.clock = ManualClock()
        self.files = SimulatedFileSystem()

    def start(self, *, steps: int = STEPS) -> BaseException | None:
        """Open the engine, check what is there, work, close; whatever ends it early is returned."""

        async def body(engine: Engine) -> None:
            await check(self.ledger, engine)
            if not steps:
                await check_files(engine, self.files, DATA)
                return
            self.clock.advance(seconds=1)
            await Workload(self.ledger, engine, random.Random(self.seed), self.clock, steps).run()

        # Parts of shared files reach their shards in steps: others must come in between.
        is_gathering = self.config is GATHERING
        ended = run(self.files, body, seed=self.seed, clock=self.clock, config=self.config, short_steps=is_gathering)
        self.seed += 1
        return ended

    def crash(self, choose: Choose) -> None:
        """Lose the power now; what is left is no damage, whenever that was."""
        files = self.files = self.files.crash(choose)
        if files.exists(f"{DATA}/FORMAT") and is_complete(files, DATA):
            report = check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
            require(not report.damages, "the offline check finds damage", report.damages)


def choices(kind: int) -> Choose:
    """How unsynced writes fare: all lost, all there, or torn by a seed."""
    if kind < 2:
        return (everything_lost, everything_survived)[kind]
    return random.Random(kind).randrange


def crash_twice(seed: int, first: int, second: int, kind: int, config: ServerConfig = TINY) -> None:
    """Crash at operation ``first`` of the first life and ``second`` of the second, then look and close cleanly."""
    choose = choices(kind)
    life = Life(seed, config)
    life.files.crash_at(first)
    life.start()
    life.crash(choose)
    life.files.crash_at(second)
    life.start()
    life.crash(choose)
    assert life.start(steps=4) is None
    assert life.start(steps=0) is None


def fail_then_crash(
    seed: int, operation: int, number: int, *, reached_disk: bool, kind: int, config: ServerConfig = TINY
) -> None:
    """Let one call fail, lose the power when the engine has ended, then look and close cleanly."""
    life = Life(seed, config)
    life.files.fail_at(operation, number, reached_disk=reached_disk)
    life.start()
    life.crash(choices(kind))
    assert life.start(steps=4) is None
    assert life.start(steps=0) is None


def operations(seed: int, config: ServerConfig = TINY) -> int:
    """Number of file system operations of one undisturbed life."""
    life = Life(seed, config)
    assert life.start() is None
    count = len(life.files.operations)
    assert life.start(steps=0) is None
    return count


def test_an_undisturbed_life_can_be_repeated_exactly() -> None:
    assert operations(1) == operations(1)


@pytest.mark.slow("an engine after each place of a crash")
@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=["all-lost", "all-there", "torn-2", "torn-3"])
def test_what_was_acknowledged_survives_two_crashes(kind: int) -> None:
    """Strides are primes, so that every kind of operation is met; a failure names its arguments."""
    seed = kind + 1
    count = operations(seed)
    for first in range(1 + kind, count + 1, 11):
        crash_twice(seed, first, 1 + first * 37 % count, kind)


@pytest.mark.slow("an engine after each place of a crash")
@pytest.mark.parametrize("kind", [0, 1, 2, 3], ids=["all-lost", "all-there", "torn-2", "torn-3"])
def test_gathered_segments_survive_two_crashes(kind: int) -> None:
    seed = 20 + kind
    count = operations(seed, GATHERING)
    for first in range(1 + kind, count + 1, 17):
        crash_twice(seed, first, 1 + first * 37 % count, kind, GATHERING)


@pytest.mark.slow("an engine after each place of a crash")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_nothing_is_acknowledged_after_a_failed_call_and_nothing_acknowledged_is_lost(number: int) -> None:
    count = operations(11)
    for operation in range(1, count + 1, 13):
        fail_then_crash(11, operation, number, reached_disk=operation % 2 == 0, kind=operation % 4)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("config", [TINY, GATHERING], ids=["own-files", "shared-files"])
def test_every_operation_of_many_lives(config: ServerConfig, capsys: pytest.CaptureFixture[str]) -> None:
    """Every operation, more seeds, more ways to tear. CRASH_SEEDS sets how many seeds (20)."""
    seeds = int(os.environ.get("CRASH_SEEDS", "20"))
    for seed in range(100, 100 + seeds):
        count = operations(seed, config)
        with capsys.disabled():
            print(f"\rseed {seed} of 100 to {99 + seeds}: {count} operations  ", end="", flush=True)
        for operation in range(1, count + 1):
            crash_twice(seed, operation, 1 + operation * 37 % count, (seed + operation) % 12, config)
            for number in (errno.EIO, errno.ENOSPC):
                kind = operation % 5
                fail_then_crash(seed, operation, number, reached_disk=operation % 2 == 0, kind=kind, config=config)
