"""Makes a failing sequence shorter: fates, faults and details are left out while it goes on failing in the same way.

Run it to look at a seed: ``python -m tests.crash.shrinking SEED``, with ``--short-steps`` if the failure names them and
``--no-short-steps`` if it does not, and ``--gathering`` or ``--no-gathering`` likewise; without them the seed decides,
as in `make torture`.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from collections.abc import Iterator, Sequence

import attrs

from tests.crash.fates import ALL_LOST, Fail, Fate, Life, PowerLoss
from tests.crash.sequences import SequenceFailedError, run_fates, run_sequence

_ENDS = 2
"""`run_fates` adds this many fates to those that it is given."""


def shrink(failed: SequenceFailedError) -> SequenceFailedError:
    """Return the same failure after fewer fates."""
    best = failed
    fates = failed.fates[:-_ENDS]
    progress = True
    while progress:
        progress = False
        for candidate in _simpler(fates):
            found = _failure_of(candidate, failed)
            if found is not None and _sort(found) == _sort(failed):
                best, fates, progress = found, candidate, True
                break
    return best


def _failure_of(fates: list[Fate], like: SequenceFailedError) -> SequenceFailedError | None:
    try:
        run_fates(fates, like.seed, short_steps=like.short_steps, gathering=like.gathering)
    except SequenceFailedError as failed:
        return failed
    return None


def _sort(failed: SequenceFailedError) -> str:
    """What went wrong, without the values."""
    return re.sub(r"/data/\S+|[0-9]+|'[^']*'", "", str(failed).partition("\n")[0])[:60]


def _simpler(fates: list[Fate]) -> Iterator[list[Fate]]:
    for at in range(len(fates)):
        yield fates[:at] + fates[at + 1 :]
    for at, fate in enumerate(fates):
        for simpler in _simpler_fate(fate):
            yield [*fates[:at], simpler, *fates[at + 1 :]]


def _simpler_fate(fate: Fate) -> Iterator[Fate]:
    if isinstance(fate, PowerLoss) and fate.kind:
        yield PowerLoss(ALL_LOST)
    if not isinstance(fate, Life):
        return
    for number, fault in enumerate(fate.faults):
        yield attrs.evolve(fate, faults=fate.faults[:number] + fate.faults[number + 1 :])
        if isinstance(fault, Fail) and (fault.reached_disk or not fault.keep_entries):
            plain = attrs.evolve(fault, reached_disk=False, keep_entries=True)
            yield attrs.evolve(fate, faults=(*fate.faults[:number], plain, *fate.faults[number + 1 :]))
    if fate.kind:
        yield attrs.evolve(fate, kind=ALL_LOST)
    if fate.backup:
        yield attrs.evolve(fate, backup=False)
    if fate.clock_jumps_s:
        yield attrs.evolve(fate, clock_jumps_s=0)
    if fate.end == "power":
        yield attrs.evolve(fate, end="kill")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seed that was given, and print the shortest sequence that fails like it."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.shrinking")
    parser.add_argument("seed", type=int)
    parser.add_argument("--no-clocks", action="store_true", help="leave out jumps of the clock")
    parser.add_argument(
        "--short-steps",
        action=argparse.BooleanOptionalAction,
        help="do long work of the engine in short steps; the seed decides if not given",
    )
    parser.add_argument(
        "--gathering",
        action=argparse.BooleanOptionalAction,
        help="gather closed segments into shared files; the seed decides if not given",
    )
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    try:
        print(
            run_sequence(
                given.seed,
                clocks=not given.no_clocks,
                short_steps=given.short_steps,
                gathering=given.gathering,
            )
        )
    except SequenceFailedError as failed:
        print(shrink(failed))
        return 1
    finally:
        logging.disable(logging.NOTSET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
