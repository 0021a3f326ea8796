"""What can happen to a node in a sequence of failures: values that print as what they do, and their random choice.

A `Life` is one run of the engine, in which calls fail, the process is killed or the power goes. Everything else happens
while no engine runs.
"""

from __future__ import annotations

import errno
import random
from typing import Literal

import attrs

from tests.simulation.file_system import Choose, everything_lost, everything_survived

ALL_LOST, ALL_THERE = 0, 1

ANY = ""
GROUP_WRITE = r"^write \d+ bytes at [^0].*/data/journal/"
JOURNAL_SYNC = r"^f(data)?sync /data/journal/"
JOURNAL_NAME = r"^(rename|create) /data/journal/"
JOURNAL_DIRECTORY = r"^sync directory /data/journal"
LOG = r"/data/log/"
LOG_SYNC = r"^fdatasync /data/log/"
STORE = r"/data/state/"
SEALED = r"/data/seal"
TABLE_LOG = r"/data/sealed/_delta_log"
DIRECTORY = r"^sync directory "
COPY = r"/backup/|/data/snapshots/"

# How many operations of each sort a life has, more or less, at `sequences.STEPS`.
NUMBERS = {
    ANY: 350,
    GROUP_WRITE: 16,
    JOURNAL_SYNC: 28,
    JOURNAL_NAME: 8,
    JOURNAL_DIRECTORY: 12,
    LOG: 63,
    LOG_SYNC: 14,
    STORE: 32,
    SEALED: 90,
    DIRECTORY: 70,
    COPY: 250,
}

End = Literal["close", "kill", "power"]


def choices(kind: int) -> Choose:
    """How unsynced writes fare: all lost (0), all there (1), or torn by a seed."""
    if kind < 2:
        return (everything_lost, everything_survived)[kind]
    return random.Random(kind).randrange


@attrs.frozen
class Stop:
    """The process ends at the nth operation that matches, as the life's `end` says.

    Attributes:
        written: How much of that operation is done, if it is a write.
    """

    pattern: str
    nth: int
    written: float = 1.0


@attrs.frozen
class Fail:
    """The nth operation that matches fails."""

    pattern: str
    nth: int
    number: int = errno.EIO
    reached_disk: bool = False
    keep_entries: bool = True


@attrs.frozen
class Full:
    """The disk or the quota is full from one operation on, for a while."""

    nth: int
    lasts: int
    number: int = errno.ENOSPC


@attrs.frozen
class Move:
    """At one operation a part of the data directory is moved away, and put back later, at the latest at the life's end.

    Attributes:
        what: Which part, such as ``log``.
        left: What is in its place meanwhile: nothing, an empty directory or a copy.
        nth: The number of the operation after the start.
        lasts: For so many operations.
    """

    what: str
    left: Literal["nothing", "empty", "copy"]
    nth: int
    lasts: int


@attrs.frozen
class Life:
    """One run of the engine: it starts, is checked, works and ends.

    Attributes:
        faults: What goes wrong meanwhile.
        end: How it ends when all is done, or where `Stop` says: closed, its process killed, or its machine's power off.
        kind: How unsynced writes fare in the end, see `choices`.
        backup: It ends with a backup.
        clock_jumps_s: How far the clock jumps while it works.
        aligned: Its only client commits pairs whose entries begin where sectors begin.
    """

    faults: tuple[Stop | Fail | Full | Move, ...] = ()
    end: End = "kill"
    kind: int = ALL_LOST
    backup: bool = False
    clock_jumps_s: float = 0
    aligned: bool = False


@attrs.frozen
class PowerLoss:
    """The power goes while no engine runs."""

    kind: int = ALL_LOST


@attrs.frozen
class Evict:
    """The machine drops its clean pages: what a failed sync left is read no more."""


@attrs.frozen
class LosePages:
    """The kernel fails to write back what is not synced, and no later process gets the error."""


@attrs.frozen
class SetClock:
    """The clock is set, by so much."""

    seconds: float


@attrs.frozen
class Vanish:
    """Something is missing at the next start, which refuses or does without it; then it is put back if it is needed.

    Attributes:
        what: A directory that is empty, as when its mount is missing (``journal/``, ``log/``, ``sealed/``,
            ``state/``); or a file that is gone: ``newest journal``, ``oldest journal``, ``log``, ``parquet``.
    """

    what: str


@attrs.frozen
class Restore:
    """The newest backup is restored into another directory, started and checked."""


@attrs.frozen
class Settle:
    """The engine is started and left alone until it has nothing to do; it is compared with its files, and killed."""


Fate = Life | PowerLoss | Evict | LosePages | SetClock | Vanish | Restore | Settle

MOVED = ("journal", "log", "sealed", "sealing", "snapshots")
DIRECTORIES = ("journal/", "log/", "sealed/", "state/")
SEGMENT_FILES = ("log", "parquet")
FILES = ("newest journal", "oldest journal", *SEGMENT_FILES)


def random_life(rng: random.Random, *, clocks: bool = True) -> Life:
    """A life in which one or two things go wrong; without ``clocks`` its clock runs on evenly."""
    faults: list[Stop | Fail | Full] = []
    if rng.random() < 0.35:
        pattern = rng.choice([ANY, JOURNAL_SYNC, LOG, LOG_SYNC, STORE, SEALED, DIRECTORY, JOURNAL_DIRECTORY])
        number = rng.choice([errno.EIO, errno.EIO, errno.ENOSPC, errno.EDQUOT])
        faults.append(
            Fail(
                pattern, _number(rng, pattern), number, reached_disk=rng.random() < 0.3, keep_entries=rng.random() < 0.7
            )
        )
    elif rng.random() < 0.2:
        faults.append(Full(_number(rng, ANY), rng.choice([3, 20, 200]), rng.choice([errno.ENOSPC, errno.EDQUOT])))
    stops = rng.random() < 0.75
    if stops:
        pattern = rng.choice([ANY, ANY, GROUP_WRITE, GROUP_WRITE, JOURNAL_SYNC, *NUMBERS])
        faults.append(Stop(pattern, _number(rng, pattern), rng.choice([1.0, 1.0, 0.5, rng.random()])))
    return Life(
        tuple(faults),
        end=rng.choice(["kill", "kill", "power"] if stops else ["kill", "close"]),
        kind=rng.choice([ALL_LOST, ALL_THERE, rng.randrange(2, 1000), rng.randrange(2, 1000)]),
        backup=rng.random() < 0.2,
        clock_jumps_s=rng.choice([0, 0, 1, 100_000]) if clocks else 0,
        aligned=rng.random() < 0.1,
    )


def _number(rng: random.Random, pattern: str) -> int:
    # Starts and the first steps are where most of the interesting orders are: half of the numbers are small.
    most = NUMBERS[pattern]
    return rng.randint(1, most if rng.random() < 0.5 else max(2, most // 6))


def with_moves(rng: random.Random, fates: list[Fate]) -> list[Fate]:
    """The same, with a directory that is moved in some of the lives."""
    return [
        attrs.evolve(fate, faults=(*fate.faults, _random_move(rng)))
        if isinstance(fate, Life) and rng.random() < 0.1
        else fate
        for fate in fates
    ]


def _random_move(rng: random.Random) -> Move:
    left: Literal["nothing", "empty", "copy"] = rng.choice(["nothing", "empty", "copy"])
    return Move(rng.choice(MOVED), left, _number(rng, ANY), rng.choice([3, 20, 200, 10_000]))


def random_fates(rng: random.Random, count: int, *, clocks: bool = True) -> list[Fate]:
    """A sequence of so many fates; every second one is a life, at least."""
    fates: list[Fate] = []
    while len(fates) < count:
        fates.append(random_life(rng, clocks=clocks))
        choice = rng.randrange(14)
        if choice < 4:
            fates.append(PowerLoss(rng.choice([ALL_LOST, ALL_LOST, rng.randrange(2, 1000)])))
        elif choice == 4:
            fates.append(Evict())
        elif choice == 5 and clocks:
            fates.append(SetClock(rng.choice([-100_000, -10, 10, 100_000])))
        elif 6 <= choice < 8:
            fates.append(Vanish(rng.choice([*DIRECTORIES, *FILES])))
        elif choice == 8:
            fates.append(Restore())
    return fates
