"""The algorithms of the log, by simulation: at random, and step by step where other systems lost writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from journal.logstore.checkpoints import Checkpoint, create_checkpoint
from journal.logstore.collection import collect
from journal.logstore.driver import run
from journal.logstore.errors import LogDamagedError, StoreDeposedError
from journal.logstore.ownership import own
from journal.logstore.settling import settle_create
from journal.logstore.steps import Create
from tests.logstore.defects import DEFECTS
from tests.logstore.model import ROOT, STORE_ID, BrokenPromiseError, Owner, Task, World

STEPS: Final = 1500
FOUND: Final = (BrokenPromiseError, LogDamagedError, StoreDeposedError)


def serving(world: World) -> Owner:
    """A new owner that has read all."""
    owner = Owner(world, world.name())
    while not owner.is_serving:
        owner.advance()
    return owner


def write(owner: Owner, count: int) -> None:
    """Write so many slots, one after the other, and have them acknowledged."""
    assert owner.writer is not None
    for _ in range(count):
        number = owner.next_lsn
        value = b"%d-%d" % (owner.name, number)
        slot = owner.writer.prepare(value, number + 1, owner.world.nonce())
        settlement = run(owner.world.store, settle_create(slot.key, slot.data))
        for done in owner.writer.settle(slot.position, settlement.is_ours):
            owner._acknowledge(done)
        if owner.writer.is_fenced:
            raise StoreDeposedError(slot.position.epoch)


def checkpoint(owner: Owner) -> None:
    assert owner.writer is not None
    made = Checkpoint(owner.writer.acknowledged, owner.next_lsn, b",".join(owner.values))
    run(owner.world.store, create_checkpoint(ROOT, STORE_ID, owner.member.node_id, owner.world.nonce(), made))


def write_and_collect(owner: Owner) -> None:
    """Two checkpoints with slots before, between and after them, and the collection of what they make superfluous."""
    assert owner.ownership is not None
    for count in (3, 2, 1):
        write(owner, count)
        if count > 1:
            checkpoint(owner)
    run(owner.world.store, collect(owner.member, owner.ownership.epoch))


def advance_to_fence(world: World, name: int) -> Task:
    """The steps of a node that takes over, up to the request that creates a fence, which is not sent yet."""
    claimant = Owner(world, name)
    assert claimant.task is not None
    while not (isinstance(claimant.task.operation, Create) and "/log/" in claimant.task.operation.key):
        claimant.task.advance(world)
    return claimant.task


def calm() -> World:
    """A world without faults, one write at a time."""
    return World(1, fault_share=0.0, window=1)


def a_sleeping_writer_wakes_up_after_a_collection() -> None:
    world = calm()
    first = serving(world)
    write(first, 2)
    # It sends its next slot, and the request is under way for very long.
    assert first.writer is not None
    slot = first.writer.prepare(b"late", first.next_lsn + 1, world.nonce())
    second = serving(world)
    write_and_collect(second)
    settlement = run(world.store, settle_create(slot.key, slot.data))
    for done in first.writer.settle(slot.position, settlement.is_ours):
        first._acknowledge(done)
    assert first.writer.is_fenced
    world.quiesce()


def a_sleeping_claimant_fences_a_collected_slot() -> None:
    world = calm()
    first = serving(world)
    takeover = advance_to_fence(world, world.name())
    write_and_collect(first)
    while not takeover.advance(world):
        pass
    with pytest.raises(StoreDeposedError):
        write(first, 1)
    world.quiesce()


def a_slow_reader_meets_a_fence_in_the_place_of_a_collected_slot() -> None:
    world = calm()
    first = serving(world)
    follower = Owner(world, world.name())
    takeover = advance_to_fence(world, world.name())
    write_and_collect(first)
    while not takeover.advance(world):
        pass
    second = serving(world)
    write(second, 1)
    # Its position is that of the fence, at the beginning of the first epoch.
    while follower.next_lsn < second.next_lsn:
        follower.learn(run(world.store, follower.reader.read()))
    world.quiesce()


def a_claimant_sleeps_before_it_looks_at_the_claims_again() -> None:
    world = calm()
    write(serving(world), 1)
    claimant = Owner(world, world.name())
    assert claimant.task is not None
    while world.store.get(f"{ROOT}/log/0000000001/0000000000000001") is None:
        claimant.task.advance(world)
    write(serving(world), 2)
    with pytest.raises(StoreDeposedError):
        while not claimant.is_serving:
            claimant.advance()


SCENARIOS: Final[dict[str, Callable[[], None]]] = {
    "fences are collected like slots, and a sleeping writer does not meet them (SlateDB 352, 1622)": (
        a_sleeping_writer_wakes_up_after_a_collection
    ),
    "a fence in the place of a collected slot is taken for one (SlateDB 1682)": (
        a_sleeping_claimant_fences_a_collected_slot
    ),
    "a reader takes a fence in the place of a collected slot for the end of an epoch": (
        a_slow_reader_meets_a_fence_in_the_place_of_a_collected_slot
    ),
    "claims are not looked at again after the fences": a_claimant_sleeps_before_it_looks_at_the_claims_again,
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.__name__)
def test_nothing_acknowledged_is_lost_when(scenario: Callable[[], None]) -> None:
    scenario()


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenario_fails_with_its_defect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[name](monkeypatch)
    with pytest.raises((*FOUND, AssertionError, pytest.fail.Exception)):
        SCENARIOS[name]()


@pytest.mark.parametrize("seed", range(8))
def test_nothing_acknowledged_is_lost_whatever_nodes_and_store_do(seed: int) -> None:
    world = World(seed)
    world.play(STEPS)
    assert world.counts["taken over"] > 1


@pytest.mark.slow("hundreds of simulated worlds")
@pytest.mark.parametrize("block", range(10))
def test_nothing_acknowledged_is_lost_in_many_worlds(block: int) -> None:
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        World(seed).play(STEPS)


@pytest.mark.parametrize("name", [name for name in DEFECTS if name not in SCENARIOS])
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[name](monkeypatch)
    with pytest.raises(FOUND):
        for seed in range(30):
            World(seed).play(STEPS)


def test_a_fence_ahead_stops_a_writer_that_takes_every_free_slot() -> None:
    """A writer as fast as the claimant took each slot just before a fence was created in it, without end."""
    world = calm()
    first = serving(world)
    claimant = Owner(world, world.name())
    assert claimant.task is not None
    creates = 0
    with pytest.raises(StoreDeposedError):
        while True:
            operation = claimant.task.operation
            if isinstance(operation, Create) and "/log/" in operation.key:
                creates += 1
                write(first, 1)
            if claimant.task.advance(world):
                break
        write(first, 1)
    assert creates < 12
    world.quiesce()


def test_an_epoch_has_one_owner_when_nodes_race_and_answers_are_lost() -> None:
    world = World(1, fault_share=0.5)
    tasks = [Task(own(Owner(world, name).member, world.nonce(), about=b"1", window_of=int)) for name in range(1, 6)]
    owned = []
    while tasks:
        task = world.random.choice(tasks)
        try:
            if task.advance(world):
                owned.append(task.result.epoch)
                tasks.remove(task)
        except StoreDeposedError:
            tasks.remove(task)
    assert len(owned) == len(set(owned)) > 0
