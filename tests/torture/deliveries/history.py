"""What was handed over, what was acknowledged, where it arrived, and what was done meanwhile: values, nothing else.

One history describes one way from sources to a destination: of a cache queue with its bridge and sink, or of an export
or drain with its target. All times are in seconds of one monotonic clock.
"""

from __future__ import annotations

import enum
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs

NEVER: Final = math.inf
"""When something of unknown outcome ends: it may take effect at any later time."""


LIFE_OFFSETS: Final = 1 << 40
"""Between the offsets of two lives of a store, as a history has them; see `Restore`."""


class Outcome(enum.StrEnum):
    """What is known of something that was asked for."""

    OK = "ok"
    REFUSED = "refused"
    """It certainly had no effect."""
    UNKNOWN = "unknown"


@attrs.frozen(order=True)
class Message:
    """A message, or a record: each source (a publisher's topic, a shard) numbers its own from 0."""

    source: str
    number: int


@attrs.define
class Offer:
    """A message that was handed over.

    Attributes:
        began_s: When it was handed over first.
        ended_s: When it was acknowledged or refused.
        writes: How often it was written to a connection; each may have stored it.
        content: What it holds, to be compared with what arrives; empty if that is not compared.
        is_poison: The destination refuses it by itself.
        expires_s: From when on it need not arrive any more.
    """

    message: Message
    began_s: float
    ended_s: float = NEVER
    outcome: Outcome = Outcome.UNKNOWN
    writes: int = 1
    content: str = ""
    is_poison: bool = False
    expires_s: float = NEVER


@attrs.frozen
class Arrival:
    """A message at the destination, or among the dead letters.

    Attributes:
        offset: Which it had on its way, in its queue or shard. One that was written twice may have two.
        at_s: When it arrived, if that is known.
    """

    message: Message
    offset: int
    at_s: float = math.nan
    content: str = ""


@attrs.frozen(kw_only=True)
class Interval:
    """Something that took some time.

    Attributes:
        ended_s: `NEVER` if its outcome is not known.
    """

    began_s: float
    ended_s: float = NEVER


@attrs.frozen(kw_only=True)
class Purge(Interval):
    """What waited was thrown away."""


@attrs.frozen(kw_only=True)
class PutBack(Interval):
    """Dead letters were put back: they are new records at the end of their queue."""

    count: int


@attrs.frozen(kw_only=True)
class ModeChange(Interval):
    """Where acknowledged records lie was changed.

    Attributes:
        is_file: On disk; else in memory, at least for a while.
    """

    is_file: bool


@attrs.frozen(kw_only=True)
class StoreDeath(Interval):
    """The process that had the records in its memory was killed."""


@attrs.frozen(kw_only=True)
class Restore(Interval):
    """The store was stopped, and a backup of it put in its place.

    Offsets of the store alone mean two things then: from each restore on those of arrivals and of progress are
    `LIFE_OFFSETS` higher here.

    Attributes:
        backup_began_s: What was acknowledged before is in the backup.
        backup_ended_s: What was handed over later is not.
    """

    backup_began_s: float
    backup_ended_s: float


@attrs.frozen(kw_only=True)
class Trim(Interval):
    """Records of a source below a number were removed; all of them if the source was deleted.

    Attributes:
        before: `NEVER` for a deletion, of the records from before it.
    """

    source: str
    before: float


@attrs.frozen(kw_only=True)
class Disturbance(Interval):
    """Something that may hold messages up as long as it lasts: a sink that is out, a process that is frozen."""

    what: str


@attrs.frozen(kw_only=True)
class Run(Interval):
    """A run of an export or a drain.

    Attributes:
        outcome: ``REFUSED`` if it ended with an error that says what is lost.
        passes_over_loss: It has the option to skip losses.
        record_count: How many records it says that it has added.
    """

    outcome: Outcome
    passes_over_loss: bool = False
    record_count: int = 0


@attrs.frozen(kw_only=True)
class Command(Interval):
    """An operator asked for something that has to be done within a time, whatever was killed before.

    Attributes:
        outcome: What came of it.
        within_s: The time.
        detail: The error, if there was one.
    """

    what: str
    outcome: Outcome
    within_s: float
    detail: str = ""


@attrs.frozen
class Progress:
    """How far the queue was done with, seen from outside."""

    at_s: float
    offset: int


@attrs.frozen
class Ending:
    """A process that was not killed ended."""

    process: str
    status: int


@attrs.frozen
class Tally:
    """What the queue itself says at the end, when nothing waits.

    Attributes:
        next_offset: Behind its newest record.
        done_offset: Up to which it is done with.
        counts: Of what became of its records: confirmed, dead_lettered, dropped_oldest, expired, lost, purged.
        kept_letters: Dead letters that are kept.
    """

    next_offset: int
    done_offset: int
    counts: Counter[str]
    kept_letters: int


@attrs.frozen(kw_only=True)
class Promises:
    """What the documents say of a destination.

    Attributes:
        most_repeated: How far its offsets may go back, in records: a window of batches; 0 if none comes twice.
        has_order: Whether each source's messages arrive in order.
        held_up_s: How long a message may be under way when nothing is out; infinite if that is not judged.
        writers_look_s: Within which time every writer knows a change of the queue's mode, and what has left it.
        most_records: How many may wait at least before any is refused; None if refusals are not judged.
        is_in_memory: Whether records are in memory before the first change of mode.
        numbers_are_offsets: The arrivals' offsets are those of one queue, without holes while it is in files.
    """

    most_repeated: int = 0
    has_order: bool = True
    held_up_s: float = math.inf
    writers_look_s: float = 0.0
    most_records: int | None = None
    is_in_memory: bool = False
    numbers_are_offsets: bool = True


@attrs.define
class History:
    """All that clients, operators and the injector of faults know.

    Attributes:
        offers: By message.
        arrivals: What the destination holds, in its order.
        letters: Dead letters that are kept, in their order.
        events: All else.
        tally: None for what has no queue.
    """

    promises: Promises = attrs.Factory(Promises)
    offers: dict[Message, Offer] = attrs.Factory(dict)
    arrivals: list[Arrival] = attrs.Factory(list)
    letters: list[Arrival] = attrs.Factory(list)
    events: list[Interval] = attrs.Factory(list)
    progress: list[Progress] = attrs.Factory(list)
    endings: list[Ending] = attrs.Factory(list)
    tally: Tally | None = None

    def write(self, path: Path) -> None:
        """Write it down, a line of JSON for each value, to look into a broken promise."""
        values: list[Any] = [self.promises, *self.offers.values(), *self.events, *self.progress, *self.endings]
        with path.open("w") as file:
            for value in (*values, *([self.tally] if self.tally else [])):
                file.write(json.dumps({"kind": type(value).__name__, **attrs.asdict(value)}) + "\n")
            for name, arrivals in (("arrival", self.arrivals), ("letter", self.letters)):
                for each in arrivals:
                    file.write(json.dumps({"kind": name, **attrs.asdict(each)}) + "\n")
