"""What becomes of a create, whatever the store answers to its attempts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import pytest
import trio

from journal.logstore import drive, run
from journal.logstore.errors import (
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.settling import Settlement, settle_create, settle_get
from journal.logstore.steps import Create, Get, Operation, Pause
from journal.logstore.store import Created
from journal.logstore.stores.memory import Fault, MemoryLogStore
from shards.back_off import BackOff
from tests.logstore.model import Task, World

KEY: Final = "store/log/1"

# What the store does to the attempts in turn, and what comes of it.
TABLE: Final[list[tuple[Sequence[object], object]]] = [
    ([Created.OURS], Settlement(True, b"mine")),
    ([Created.EXISTS, b"mine"], Settlement(True, b"mine")),
    ([Created.EXISTS, b"other"], Settlement(False, b"other")),
    ([Created.EXISTS, None, Created.OURS], Settlement(True, b"mine")),
    ([Created.EXISTS, None, Created.EXISTS, b"other"], Settlement(False, b"other")),
    ([Created.EXISTS, UnknownOutcomeError, Created.EXISTS, b"mine"], Settlement(True, b"mine")),
    ([Created.EXISTS, StoreUnreachableError] * 3, UnknownOutcomeError),
    ([UnknownOutcomeError, Created.OURS], Settlement(True, b"mine")),
    ([UnknownOutcomeError, Created.EXISTS, b"mine"], Settlement(True, b"mine")),
    ([UnknownOutcomeError, Created.EXISTS, b"other"], Settlement(False, b"other")),
    ([UnknownOutcomeError] * 3, UnknownOutcomeError),
    ([StoreUnreachableError] * 3, StoreUnreachableError),
    ([StoreUnreachableError, StoreUnreachableError, Created.OURS], Settlement(True, b"mine")),
    ([UnknownOutcomeError, StoreUnreachableError, StoreUnreachableError], UnknownOutcomeError),
    ([StoreUnreachableError, StoreUnreachableError, UnknownOutcomeError], UnknownOutcomeError),
    ([StoreCredentialsError], StoreCredentialsError),
    ([StoreFullError], StoreFullError),
    ([UnknownOutcomeError, StoreFullError, StoreCredentialsError], UnknownOutcomeError),
    ([UnknownOutcomeError, StoreCredentialsError, Created.EXISTS, b"mine"], Settlement(True, b"mine")),
]


def play(answers: Sequence[object]) -> tuple[object, list[Operation]]:
    """The outcome of a create of which at most three attempts are made, and its operations."""
    steps = settle_create(KEY, b"mine", attempts=3)
    asked: list[Operation] = []
    rest = iter(answers)
    try:
        operation = next(steps)
        while True:
            asked.append(operation)
            answer: Any = None if isinstance(operation, Pause) else next(rest)
            is_error = isinstance(answer, type)
            operation = steps.throw(answer("injected")) if is_error else steps.send(answer)
    except StopIteration as end:
        assert next(rest, "none") == "none", "an answer was not asked for"
        return end.value, asked
    except LogStoreError as error:
        return type(error), asked


@pytest.mark.parametrize(("answers", "outcome"), TABLE)
def test_the_outcome_of(answers: Sequence[object], outcome: object) -> None:
    found, asked = play(answers)
    assert found == outcome
    assert {operation for operation in asked if isinstance(operation, Create)} == {Create(KEY, b"mine")}


def test_a_pause_is_before_every_attempt_but_the_first() -> None:
    _, asked = play([UnknownOutcomeError, Created.EXISTS, None, Created.OURS])
    create, read = Create(KEY, b"mine"), Get(KEY)
    assert asked == [create, Pause(1), create, read, Pause(2), create]


@pytest.mark.parametrize("faults", list(itertools.product(Fault, repeat=2)))
def test_of_two_rivals_one_wins_whatever_happens_to_their_creates(faults: tuple[Fault, Fault]) -> None:
    """In every order of their requests, and with late ones applied between any two."""
    for seed in range(20):
        world = World(seed, fault_share=0.0)
        injected = iter(faults)
        world.store = MemoryLogStore(lambda _, injected=injected: next(injected, Fault.NONE))
        tasks = [Task(settle_create(KEY, data)) for data in (b"one", b"other")]
        waiting = list(tasks)
        while waiting:
            if world.store.late and world.random.random() < 0.3:
                world.store.apply_late()
            task = world.random.choice(waiting)
            if task.advance(world):
                waiting.remove(task)
        while world.store.late:
            world.store.apply_late()
        winner = world.store.get(KEY)
        assert [task.result.is_ours for task in tasks] == [winner == b"one", winner == b"other"]
        assert {task.result.found for task in tasks} == {winner}


async def test_a_create_is_repeated_beside_an_event_loop(autojump_clock: trio.abc.Clock) -> None:
    faults = iter((Fault.UNAVAILABLE, Fault.CONFLICT, Fault.ANSWER_LOST))
    store = MemoryLogStore(lambda _: next(faults, Fault.NONE))
    settlement = await drive(store, settle_create(KEY, b"mine"), trio.CapacityLimiter(1))
    assert settlement == Settlement(True, b"mine")
    assert next(faults, None) is None


async def test_a_cancelled_create_is_neither_carried_on_nor_left_open() -> None:
    store = MemoryLogStore(lambda _: Fault.UNAVAILABLE)
    steps = settle_create(KEY, b"mine")
    with trio.move_on_after(0.05):
        await drive(store, steps, trio.CapacityLimiter(1))
    assert steps.gi_frame is None
    assert store.get(KEY) is None


def test_a_create_is_repeated_in_the_calling_thread() -> None:
    faults = iter((Fault.LATE, Fault.REFUSED))
    store = MemoryLogStore(lambda _: next(faults, Fault.NONE))
    assert run(store, settle_create(KEY, b"mine"), BackOff(0.0, 0.0)) == Settlement(True, b"mine")
    store.apply_late()
    assert store.get(KEY) == b"mine"


def test_a_read_is_repeated_until_the_store_answers() -> None:
    steps = settle_get(KEY, attempts=3)
    assert next(steps) == Get(KEY)
    assert steps.throw(UnknownOutcomeError("lost")) == Pause(1)
    assert steps.send(None) == Get(KEY)
    assert steps.throw(StoreUnreachableError("gone")) == Pause(2)
    steps.send(None)
    with pytest.raises(StopIteration) as end:
        steps.send(b"found")
    assert end.value.value == b"found"


def test_refused_credentials_are_not_tried_again() -> None:
    steps = settle_get(KEY)
    next(steps)
    with pytest.raises(StoreCredentialsError):
        steps.throw(StoreCredentialsError("refused"))
