"""The simulated store across crashes and kills at every step. The store contract tests its behaviour otherwise."""

from __future__ import annotations

import errno
import random

import pytest

from shards.errors import DiskFullError, StorageFailedError
from shards.seams.store import Family, Mutations
from tests.simulation.file_system import (
    Choose,
    CrashNow,
    Fault,
    SimulatedFileSystem,
    Trigger,
    everything_lost,
    everything_survived,
)
from tests.simulation.store import SimulatedStore

FLUSHES = 4


def run(disk: SimulatedFileSystem) -> int:
    """Write the numbers from 1 on into two families, flushing every second one; return the last one flushed."""
    flushed = 0
    try:
        store = SimulatedStore(disk, "/data/store", disk=disk.disk)
        for number in range(1, 2 * FLUSHES + 1):
            mutations = Mutations()
            mutations.put(Family.META, b"n", b"%d" % number)
            mutations.put(Family.STATE, b"%d" % number, bytes(700))
            store.write(mutations)
            if number % 2 == 0:
                store.flush()
                flushed = number
    except CrashNow:
        pass
    return flushed


def workload_operations() -> int:
    disk = SimulatedFileSystem()
    assert run(disk) == 2 * FLUSHES
    return len(disk.operations)


@pytest.mark.parametrize("killed", [False, True], ids=["power-loss", "kill"])
@pytest.mark.parametrize(
    "choose", [everything_lost, everything_survived, *(random.Random(seed).randrange for seed in range(5))]
)
def test_a_crash_at_any_step_leaves_a_prefix_that_has_the_last_flush(choose: Choose, killed: bool) -> None:
    seen = set()
    for operation in range(1, workload_operations() + 1):
        disk = SimulatedFileSystem()
        disk.crash_at(operation)
        flushed = run(disk)
        store = SimulatedStore(disk.kill(choose) if killed else disk.crash(choose), "/data/store")
        found = int(store.get(Family.META, b"n") or b"0")
        assert flushed <= found <= flushed + 2
        assert len(list(store.scan(Family.STATE))) == found
        seen.add(found - flushed)
    if choose is everything_lost and not killed:
        assert seen == {0}


def written(disk: SimulatedFileSystem, count: int, **options: Choose) -> SimulatedStore:
    """A store with so many writes after its last flush."""
    store = SimulatedStore(disk, "/data/store", disk=disk.disk, **options)
    for number in range(1, count + 1):
        mutations = Mutations()
        mutations.put(Family.META, b"n", b"%d" % number)
        mutations.put(Family.STATE, b"n", b"%d" % number)
        store.write(mutations)
    return store


@pytest.mark.parametrize("end", ["crash", "kill"])
def test_any_prefix_of_what_was_not_flushed_may_survive(end: str) -> None:
    seen = set()
    for seed in range(60):
        disk = SimulatedFileSystem()
        written(disk, 4)
        choose = random.Random(seed).randrange
        found = disk.kill(choose) if end == "kill" else disk.crash(choose)
        store = SimulatedStore(found, "/data/store")
        numbers = {store.get(family, b"n") for family in (Family.META, Family.STATE)}
        assert len(numbers) == 1
        seen |= numbers
    assert seen == {None, b"1", b"2", b"3", b"4"}


def test_a_store_that_is_closed_keeps_what_its_choice_says() -> None:
    disk = SimulatedFileSystem()
    written(disk, 2).close()
    assert SimulatedStore(disk, "/data/store").get(Family.META, b"n") is None
    written(disk, 2, at_close=everything_survived).close()
    assert SimulatedStore(disk, "/data/store").get(Family.META, b"n") == b"2"


def test_a_flush_that_failed_installs_nothing_and_is_final() -> None:
    disk = SimulatedFileSystem()
    store = written(disk, 2)
    disk.inject(Fault(Trigger(1, "fsync /data/store/content.new"), errno.EIO))
    for _ in range(2):
        with pytest.raises(StorageFailedError, match="Input/output error"):
            store.flush()
    with pytest.raises(StorageFailedError):
        store.write(Mutations())
    assert SimulatedStore(disk.kill(everything_lost), "/data/store").get(Family.META, b"n") is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_flush_without_space_installs_nothing_and_can_be_repeated(number: int) -> None:
    disk = SimulatedFileSystem()
    store = written(disk, 2)
    disk.inject(Fault(Trigger(1, "fsync /data/store/content.new"), number))
    with pytest.raises(DiskFullError):
        store.flush()
    store.flush()
    assert SimulatedStore(disk.crash(everything_lost), "/data/store").get(Family.META, b"n") == b"2"
