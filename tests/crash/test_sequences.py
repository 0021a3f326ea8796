"""Every promise is kept in every order of failures: generated sequences, and enumerated ones over a short workload.

A failing test prints the seed and the list of fates; ``python -m tests.crash.shrinking SEED`` makes it shorter (with
``--short-steps`` and ``--gathering`` if the failure names them). `make crash` runs more seeds (SEQUENCE_SEEDS, 2,000)
and all triples of the enumerated fates.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.crash import fates, shrinking
from tests.crash.fates import (
    ALL_LOST,
    ALL_THERE,
    Evict,
    Fail,
    Fate,
    Full,
    Life,
    LosePages,
    Move,
    PowerLoss,
    Restore,
    SetClock,
    Stop,
    Vanish,
    random_life,
)
from tests.crash.sequences import run_fates, run_sequence

SEEDS = 12
FOUND = (770051, 4200013, 2112596931, 55510066, 91200057)
"""Seeds that found a defect, of the engine or of the checks.

A trim under a conversion that was called a failing disk; a right mark that was called damage; a log file that was put
back after a start had rightly done without it, and was called left over; a Parquet file of a deleted shard that could
not be removed and was forgotten; a gap between recycled journal files that the offline check called damage.
"""
FOUND_IN_SHORT_STEPS = (55510008, 330011326, 440000144)
"""The same, with long work in short steps: a client that sent a batch again without those before it; records that were
stored again in place of lost ones, and once more after two restarts; a start that could not remove half a snapshot.
"""

FOUND_WHILE_GATHERING = (3,)
"""The same, with closed segments that are gathered into shared files: an empty segment kept a shard from taking its
part, which was written again and again.
"""

ENUMERATED: dict[str, Fate] = {
    "closed": Life(end="close"),
    "killed": Life(),
    "killed-in-write": Life((Stop(fates.GROUP_WRITE, 9, written=0.6),)),
    "killed-before-sync": Life((Stop(fates.JOURNAL_SYNC, 12),)),
    "killed-before-name-is-durable": Life((Stop(fates.JOURNAL_DIRECTORY, 2),)),
    "killed-in-checkpoint": Life((Stop(fates.STORE, 4),), kind=ALL_THERE),
    "killed-in-flush": Life((Stop(fates.LOG, 6, written=0.5),)),
    "journal-sync-fails": Life((Fail(fates.JOURNAL_SYNC, 9),)),
    "log-sync-fails": Life((Fail(fates.LOG_SYNC, 2, errno.ENOSPC),)),
    "directory-sync-fails": Life((Fail(fates.DIRECTORY, 9),)),
    "disk-full": Life((Full(60, 40),), end="close"),
    "power-lost": Life((Stop(fates.ANY, 150),), end="power", kind=7),
    "power": PowerLoss(ALL_LOST),
    "evicted": Evict(),
    "pages-lost": LosePages(),
    "clock-back": SetClock(-50),
    "journal-missing": Vanish("newest journal"),
}


@pytest.mark.slow("sequences of crashes")
@pytest.mark.parametrize("short_steps", [False, True])
def test_a_sequence_can_be_repeated_exactly(short_steps: bool) -> None:
    assert run_sequence(3, short_steps=short_steps) == run_sequence(3, short_steps=short_steps)


@pytest.mark.slow("sequences of crashes")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_acknowledged_survives_a_sequence_of_failures(seed: int) -> None:
    run_sequence(seed)


@pytest.mark.few_cases(2, "long sequences")
@pytest.mark.parametrize("seed", FOUND)
def test_a_sequence_that_found_a_defect_passes(seed: int) -> None:
    run_sequence(seed, short_steps=False, gathering=False)


@pytest.mark.slow("sequences of crashes")
@pytest.mark.parametrize("seed", FOUND_IN_SHORT_STEPS)
def test_a_sequence_that_found_a_defect_in_short_steps_passes(seed: int) -> None:
    run_sequence(seed, short_steps=True, gathering=False)


@pytest.mark.parametrize("seed", FOUND_WHILE_GATHERING)
def test_a_sequence_that_found_a_defect_while_segments_are_gathered_passes(seed: int) -> None:
    run_sequence(seed, short_steps=False, gathering=True)


@pytest.mark.slow("sequences of crashes")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_gathered_survives_a_sequence_of_failures(seed: int) -> None:
    run_sequence(seed, gathering=True)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--short-steps", "short_steps=True"),
        ("--no-short-steps", "short_steps=False"),
        ("--gathering", "gathering=True"),
        ("--no-gathering", "gathering=False"),
    ],
)
def test_a_seed_can_be_looked_at_with_the_options_that_a_test_chose_for_it(
    option: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shrinking.main(["3", option]) == 0
    assert expected in capsys.readouterr().out


def enumerated(length: int) -> list[tuple[str, ...]]:
    return list(itertools.product(ENUMERATED, repeat=length))


def run_enumerated(names: tuple[str, ...], seed: int, *, gathering: bool = False) -> None:
    # Something must be there before the first of them, and something must be asked for after each.
    listed: list[Fate] = [Life(end="close")]
    for name in names:
        fate = ENUMERATED[name]
        listed += [fate] if isinstance(fate, Life) else [fate, Life((Stop(fates.ANY, 120),))]
    run_fates(listed, seed, steps=3, gathering=gathering)


@pytest.mark.few_cases(3, "each pair of fates")
@pytest.mark.parametrize("names", random.Random(1).sample(enumerated(2), 8), ids="-then-".join)
def test_two_fates_after_one_another(names: tuple[str, ...]) -> None:
    run_enumerated(names, seed=1)


@pytest.mark.parametrize("names", random.Random(2).sample(enumerated(2), 4), ids="-then-".join)
def test_two_fates_after_one_another_while_segments_are_gathered(names: tuple[str, ...]) -> None:
    run_enumerated(names, seed=1, gathering=True)


@pytest.mark.slow("sequences of crashes")
@pytest.mark.parametrize("what", fates.MOVED)
@pytest.mark.parametrize("left", ["nothing", "empty", "copy"])
def test_a_directory_that_is_moved_while_the_engine_runs_and_put_back_has_everything(
    what: str, left: Literal["nothing", "empty", "copy"]
) -> None:
    moves: list[tuple[int, int, fates.End]] = [(20, 3, "kill"), (101, 10_000, "close"), (161, 30, "close")]
    for nth, lasts, end in moves:
        moved = Life((Move(what, left, nth, lasts),), end=end, backup=nth == 20)
        run_fates([Life(end="close"), moved, Life(), PowerLoss(ALL_LOST), Life()], seed=nth, steps=3)


@pytest.mark.slow("sequences of crashes")
@pytest.mark.parametrize("seed", range(4))
def test_nothing_relies_on_pages_that_were_not_written_back_between_two_lives(seed: int) -> None:
    """A write error that the kernel reports while no server runs is lost; later syncs succeed without it."""
    rng = random.Random(seed)
    listed: list[Fate] = []
    for fate in fates.random_fates(rng, 6):
        listed += [fate, LosePages()] if isinstance(fate, Life) else [fate]
    run_fates(listed, seed)


lives = st.integers(0, 2**32).map(lambda seed: random_life(random.Random(seed)))
kinds = st.integers(0, 50)
sequences = st.lists(
    st.one_of(
        lives,
        lives,
        st.builds(PowerLoss, kinds),
        st.builds(SetClock, st.sampled_from([-1000.0, 1000.0])),
        st.builds(Vanish, st.sampled_from([*fates.DIRECTORIES, *fates.FILES])),
        st.just(Restore()),
        st.just(Evict()),
        st.just(LosePages()),
    ),
    min_size=4,
    max_size=8,
)


def check_any_sequence(listed: list[Fate], seed: int) -> None:
    run_fates(listed, seed, steps=4, gathering=bool(seed % 2))


@pytest.mark.slow("sequences of crashes")
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(listed=sequences, seed=st.integers(0, 100))
def test_hypothesis_finds_no_sequence_that_breaks_a_promise(listed: list[Fate], seed: int) -> None:
    check_any_sequence(listed, seed)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_many_sequences(capsys: pytest.CaptureFixture[str]) -> None:
    count = int(os.environ.get("SEQUENCE_SEEDS", "2000"))
    for seed in range(1000, 1000 + count):
        with capsys.disabled():
            print(f"\rsequence {seed} of 1000 to {999 + count}  ", end="", flush=True)
        run_sequence(seed)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_hypothesis_finds_no_sequence_in_many(capsys: pytest.CaptureFixture[str]) -> None:
    run = settings(max_examples=1000, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
    run(given(listed=sequences, seed=st.integers(0, 1000))(check_any_sequence))()


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("length", [2, 3])
@pytest.mark.parametrize("gathering", [False, True], ids=["own-files", "shared-files"])
def test_every_order_of_fates(length: int, gathering: bool, capsys: pytest.CaptureFixture[str]) -> None:
    orders = enumerated(length)
    for number, names in enumerate(orders, 1):
        with capsys.disabled():
            print(f"\rorder {number} of {len(orders)} of {length} fates  ", end="", flush=True)
        run_enumerated(names, seed=number, gathering=gathering)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("end", ["kill", "power"])
@pytest.mark.parametrize("gathering", [False, True], ids=["own-files", "shared-files"])
def test_the_process_ends_at_every_operation_and_then_the_power_goes(
    end: fates.End, gathering: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    for operation in range(1, 450):
        with capsys.disabled():
            print(f"\r{end} at operation {operation}  ", end="", flush=True)
        life = Life((Stop(fates.ANY, operation),), end=end, kind=operation % 9)
        listed: list[Fate] = [life, Life((Stop(fates.ANY, 1 + operation * 37 % 300),)), PowerLoss(), Life()]
        run_fates(listed, seed=operation % 7, gathering=gathering)


@pytest.mark.parametrize(
    ("ends", "number"),
    [
        pytest.param((Stop(fates.JOURNAL_SYNC, 10), Stop(fates.JOURNAL_SYNC, 1)), 7, id="killed-before-the-sync"),
        pytest.param((Fail(fates.JOURNAL_SYNC, 5), Stop(fates.JOURNAL_SYNC, 3)), 2, id="a-failed-sync"),
        pytest.param((Stop(fates.JOURNAL_DIRECTORY, 4), Stop(fates.JOURNAL_SYNC, 4)), 4, id="a-name-not-durable"),
    ],
)
def test_what_a_start_finds_in_the_page_cache_is_not_lost_when_the_power_goes(
    ends: tuple[Stop | Fail, Stop], number: int
) -> None:
    """A killed process, or one whose sync failed, left pages that the next took for durable: records were lost."""
    first, second = ends
    run_fates([Life((first,)), Life((second,)), PowerLoss(ALL_LOST)], number)
