"""The power goes in every step by which closed segments come into shared files, and by which these go again.

Each step is met and counted: a life without a crash tells which operations of the file system lie in it, and for each
of them a life of the same seed loses the power there.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from journal.engine.parquet.gatherer import Gatherer
from journal.engine.parquet.history_table import HistoryTable
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.write.commands import Commands
from tests.crash.simulation import GATHERING
from tests.crash.test_simulated_crashes import Life, choices

STEPS: dict[str, tuple[type, str]] = {
    "the files are written": (Gatherer, "write"),
    "they get a note and their places": (SegmentFiles, "place_shared"),
    "the entry is committed": (Commands, "record_files_converted"),
    "the note is removed": (SegmentFiles, "discard_shared"),
    "the table gets a commit": (HistoryTable, "bring_up_to_date"),
    "logs are removed": (Checkpointer, "remove_files"),
    "a checkpoint is made": (Checkpointer, "checkpoint"),
    "replaced files and their records are removed": (Checkpointer, "_remove_shared_files"),
}
WITHDRAWN = "files that could not be placed are withdrawn"


@attrs.define
class Watch:
    """Which operations of a life lie in which step.

    Attributes:
        life: The life.
        within: Numbers of the operations by the step.
    """

    life: Life
    within: dict[str, list[int]] = attrs.Factory(dict)

    def note(self, step: str, before: int) -> None:
        """Note the operations since an earlier count, the one that was cut off by a crash included."""
        self.within.setdefault(step, []).extend(range(before + 1, len(self.life.files.operations) + 1))


@contextmanager
def watching(life: Life) -> Iterator[Watch]:
    """Note the operations of each step for the length of the block."""
    watch = Watch(life)
    with pytest.MonkeyPatch.context() as patch:
        for step, (owner, method) in {**STEPS, WITHDRAWN: (SegmentFiles, "withdraw_shared")}.items():
            patch.setattr(owner, method, _noting(watch, step, getattr(owner, method)))
        yield watch


def _noting(watch: Watch, step: str, original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def noting(self: object, *arguments: Any, **keywords: Any) -> Any:
        before = len(watch.life.files.operations)
        try:
            return await original(self, *arguments, **keywords)
        finally:
            watch.note(step, before)

    return noting


def operations_of(seed: int) -> dict[str, list[int]]:
    """Operations of each step in an undisturbed life."""
    with watching(Life(seed, GATHERING)) as watch:
        assert watch.life.start() is None
    return watch.within


def placements_of(seed: int) -> list[int]:
    """Operations of an undisturbed life that give shared files their places."""
    life = Life(seed, GATHERING)
    assert life.start() is None
    named = enumerate(life.files.operations, 1)
    return [number for number, name in named if name.startswith("rename ") and "/sealed/date=" in name]


def crash_at(seed: int, operation: int, kind: int) -> set[str]:
    """Lose the power at an operation, look, and lose it again; returns the steps that the first time met."""
    with watching(Life(seed, GATHERING)) as watch:
        life = watch.life
        life.files.crash_at(operation)
        life.start()
        assert life.files.crashed
        met = {step for step, within in watch.within.items() if operation in within}
        life.crash(choices(kind))
        assert life.start(steps=4) is None
    life.crash(choices(kind + 1))
    assert life.start(steps=4) is None
    assert life.start(steps=0) is None
    return met


def fail_then_crash_in_withdrawal(seed: int, operation: int, number: int, kind: int) -> int:
    """Let the placing of files fail, and lose the power in the withdrawal; returns how many crashes were in it."""
    with watching(Life(seed, GATHERING)) as watch:
        watch.life.files.fail_at(operation, number)
        watch.life.start()
        withdrawing = watch.within.get(WITHDRAWN, [])
    for at in withdrawing:
        life = Life(seed, GATHERING)
        life.files.fail_at(operation, number)
        life.files.crash_at(at)
        life.start()
        life.crash(choices(kind))
        assert life.start(steps=4) is None
        assert life.start(steps=0) is None
    return len(withdrawing)


def some(numbers: list[int], count: int) -> list[int]:
    """So many of the numbers, the first and the last among them."""
    return sorted({numbers[at * (len(numbers) - 1) // max(1, count - 1)] for at in range(count)})


def life_with(step: str, first: int) -> tuple[int, list[int]]:
    """The first seed from one on whose undisturbed life has operations in the step, and these operations."""
    for seed in range(first, first + 50):
        if within := operations_of(seed).get(step):
            return seed, within
    raise AssertionError(f"no life from seed {first} on has an operation in which {step}")


def test_a_log_of_which_a_flush_has_written_a_part_is_not_taken_for_damaged() -> None:
    """In this life a flush begins after a segment in memory was chosen, and ends before its last records."""
    with watching(Life(203, GATHERING)) as watch:
        assert watch.life.start() is None


@pytest.mark.few_cases(3, "a crash in each step")
@pytest.mark.parametrize("step", STEPS)
def test_the_power_goes_in_a_step_of_gathering(step: str) -> None:
    seed, within = life_with(step, 21)
    for kind, operation in enumerate(some(within, 2)):
        assert step in crash_at(seed, operation, kind)


@pytest.mark.slow("an engine after each place of a crash")
@pytest.mark.parametrize("step", STEPS)
def test_the_power_goes_at_more_operations_of_a_step_of_gathering(step: str) -> None:
    seed, within = life_with(step, 22)
    for operation in some(within, 5):
        assert step in crash_at(seed, operation, operation % 5)


@pytest.mark.slow("an engine after each place of a crash")
def test_the_power_goes_while_files_are_withdrawn_that_could_not_be_placed() -> None:
    assert fail_then_crash_in_withdrawal(21, placements_of(21)[0], errno.ENOSPC, 0) > 0


@pytest.mark.long
@pytest.mark.timeout(0)
def test_the_power_goes_at_every_operation_of_every_step_of_gathering(capsys: pytest.CaptureFixture[str]) -> None:
    """CRASH_SEEDS sets the number of lives (4)."""
    met: Counter[str] = Counter()
    for seed in range(200, 200 + int(os.environ.get("CRASH_SEEDS", "4"))):
        for operation in sorted({each for within in operations_of(seed).values() for each in within}):
            met.update(crash_at(seed, operation, (seed + operation) % 12))
        for operation in placements_of(seed):
            met[WITHDRAWN] += fail_then_crash_in_withdrawal(seed, operation, errno.ENOSPC, operation % 4)
        with capsys.disabled():
            print(f"\rseed {seed}: " + ", ".join(f"{count} while {step}" for step, count in met.items()), flush=True)
    assert set(met) >= {*STEPS, WITHDRAWN}
    assert min(met.values()) > 0
