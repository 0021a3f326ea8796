"""The simulated store across crashes at every step. Its behaviour otherwise is the store contract's business."""

from __future__ import annotations

import random

import pytest

from shards.store import Family, Mutations
from tests.simulation.file_system import (
    Choose,
    CrashNow,
    SimulatedFileSystem,
    everything_lost,
    everything_survived,
)
from tests.simulation.store import SimulatedStore

FLUSHES = 4


def run(disk: SimulatedFileSystem) -> int:
    """Write the numbers from 1 on into two families, flushing every second one; return the last one flushed."""
    flushed = 0
    try:
        store = SimulatedStore(disk, "/data/store")
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


@pytest.mark.parametrize(
    "choose", [everything_lost, everything_survived, *(random.Random(seed).randrange for seed in range(5))]
)
def test_a_crash_at_any_step_leaves_the_last_flush_or_the_one_under_way(choose: Choose) -> None:
    for operation in range(1, workload_operations() + 1):
        disk = SimulatedFileSystem()
        disk.crash_at(operation)
        flushed = run(disk)
        store = SimulatedStore(disk.crash(choose), "/data/store")
        found = int(store.get(Family.META, b"n") or b"0")
        assert found in (flushed, flushed + 2)
        assert len(list(store.scan(Family.STATE))) == found


def test_without_a_flush_everything_is_lost() -> None:
    disk = SimulatedFileSystem()
    store = SimulatedStore(disk, "/data/store")
    mutations = Mutations()
    mutations.put(Family.META, b"n", b"1")
    store.write(mutations)
    assert SimulatedStore(disk.crash(everything_survived), "/data/store").get(Family.META, b"n") is None
