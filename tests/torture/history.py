"""What clients of a store did and saw, as a list of operations, and the file that they are written to.

An operation that changes something is written twice: before it is sent, and when its outcome is known. One whose
outcome is never known (the connection was lost, the client was killed) has the outcome ``unknown`` and no end. What
only reads is written once. All times are those of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import enum
import itertools
import json
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import attrs

NEVER: Final = math.inf
"""When an operation of unknown outcome ends: it may take effect at any later time."""


class Outcome(enum.StrEnum):
    """What is known of an operation."""

    OK = "ok"
    FAILED = "failed"
    """It certainly had no effect."""
    UNKNOWN = "unknown"


class Observed(NamedTuple):
    """One record as a reader got it."""

    offset: int
    lsn: int
    time_us: int
    value: str


def _observed(rows: Iterable[Iterable[Any]]) -> tuple[Observed, ...]:
    return tuple(Observed(*row) for row in rows)


def _pairs(rows: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(tuple(row) for row in rows)


@attrs.frozen(kw_only=True)
class Operation:
    """What all operations have.

    Attributes:
        who: Which client task.
        began_ns: When it was asked for.
        ended_ns: When its outcome was known; `NEVER` if it is unknown.
    """

    who: str
    began_ns: float = 0
    ended_ns: float = NEVER
    outcome: Outcome = attrs.field(default=Outcome.UNKNOWN, converter=Outcome)

    @property
    def took_effect_before(self) -> float:
        """The time from which it certainly holds."""
        return self.ended_ns if self.outcome is Outcome.OK else NEVER


@attrs.frozen(kw_only=True)
class Shard(Operation):
    """Of which sort a shard is.

    Attributes:
        always_file: It is in file mode from its creation to the end.
    """

    shard: str
    always_file: bool = True


@attrs.frozen(kw_only=True)
class Append(Operation):
    """Records appended together.

    Attributes:
        stream: The producer; the appends of one stream to one shard keep the order of ``number``.
        number: Counts the appends of a stream to a shard; -1 if the append has no place in an order.
        values: Unique over the whole history.
        level: What was acknowledged, ``memory`` or ``durable``.
        offset: Where it was acknowledged to lie; -1 if that is not known.
        transaction: What it is part of, if it is.
    """

    shard: str
    values: tuple[str, ...] = attrs.field(converter=tuple)
    stream: str = ""
    number: int = -1
    level: str = ""
    offset: int = -1
    transaction: str = ""


@attrs.frozen(kw_only=True)
class Read(Operation):
    """A read of a shard from an offset on; with the outcome ``failed`` the offset was refused as out of range.

    Attributes:
        gaps: Lost ranges that were shown: first offset, next offset.
        next_offset: Where to go on. If it was refused: the end of the shard.
        start_offset: First offset that was still there.
        last: It belongs to a complete read at the end of the history.
    """

    shard: str
    offset: int
    records: tuple[Observed, ...] = attrs.field(default=(), converter=_observed)
    gaps: tuple[tuple[int, int], ...] = attrs.field(default=(), converter=_pairs)
    next_offset: int = -1
    start_offset: int = 0
    last: bool = False


@attrs.frozen(kw_only=True)
class Poll(Operation):
    """What a subscription delivered.

    Attributes:
        assignment: The subscription; within it and a shard, polls follow one another without a hole or a repetition.
            In a group: the member and its connection, to which no range is given twice.
        group: Name of the group; empty outside one.
        acknowledged: The member said that it was done with it.
        epoch: Over which of the subscription's connections it came, from 1.
    """

    assignment: str
    shard: str
    first_offset: int
    next_offset: int
    records: tuple[Observed, ...] = attrs.field(default=(), converter=_observed)
    gaps: tuple[tuple[int, int], ...] = attrs.field(default=(), converter=_pairs)
    group: str = ""
    acknowledged: bool = False
    epoch: int = 0


@attrs.frozen(kw_only=True)
class Put(Operation):
    """A versioned value is set: a key of the state store, or a cursor.

    Attributes:
        expected: The version that it had to have, 0 for "not there"; None: any.
        version: What it got.
    """

    key: str
    value: str
    expected: int | None = None
    version: int = 0
    transaction: str = ""


@attrs.frozen(kw_only=True)
class Delete(Operation):
    """A versioned value is removed."""

    key: str
    expected: int | None = None


@attrs.frozen(kw_only=True)
class Get(Operation):
    """A versioned value is read.

    Attributes:
        value: None if it is not there.
        version: 0: it is not there.
    """

    key: str
    value: str | None = None
    version: int = 0


@attrs.frozen(kw_only=True)
class Trim(Operation):
    """Records below an offset are dropped."""

    shard: str
    before: int


@attrs.frozen(kw_only=True)
class Death(Operation):
    """The server's process ended, in whatever way, between the two times."""

    how: str = ""


@attrs.frozen(kw_only=True)
class Event(Operation):
    """Something that is not judged, and may explain what is: a start, an injected fault, a conversion, a new mode.

    Attributes:
        what: In words.
        shard: Which one it concerns; empty if it concerns all.
        assignment: Which subscription it concerns; empty if it concerns all.
    """

    what: str
    shard: str = ""
    assignment: str = ""


@attrs.frozen(kw_only=True)
class GroupPosition(Operation):
    """The stored position of a group in a shard, read when nothing is consumed any more."""

    group: str
    shard: str
    offset: int


@attrs.frozen(kw_only=True)
class Fault(Operation):
    """The server reported what must not be: damage, or an error that it did not expect."""

    error: str


_KINDS: Final[dict[str, type[Operation]]] = {
    kind.__name__.lower(): kind
    for kind in (Shard, Append, Read, Poll, Put, Delete, Get, Trim, Death, Event, GroupPosition, Fault)
}
_IDS: Final = itertools.count()


@attrs.define
class Recorder:
    """Writes operations to a file, a line each time, so that only the line being written is lost with the process."""

    who: str
    file: TextIO

    def begin(self, kind: type[Operation], **fields: Any) -> str:
        """Note that an operation is about to be asked for; gives what `end` needs."""
        number = f"{self.who}-{next(_IDS)}"
        self._write({"id": number, "f": kind.__name__.lower(), "began_ns": time.monotonic_ns(), **fields})
        return number

    def end(self, number: str, outcome: Outcome, **fields: Any) -> None:
        """Note the outcome. An unknown one needs no note, but the line says why in ``error``."""
        at: float = time.monotonic_ns() if outcome is not Outcome.UNKNOWN else NEVER
        line: dict[str, Any] = {"id": number, "outcome": outcome, **fields}
        if at != NEVER:
            line["ended_ns"] = at
        self._write(line)

    def note(self, kind: type[Operation], began_ns: float, outcome: Outcome = Outcome.OK, **fields: Any) -> None:
        """Write an operation that is over."""
        self._write(
            {
                "id": f"{self.who}-{next(_IDS)}",
                "f": kind.__name__.lower(),
                "began_ns": began_ns,
                "ended_ns": time.monotonic_ns(),
                "outcome": outcome,
                **fields,
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        line.setdefault("who", self.who)
        self.file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self.file.flush()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield json.loads(line)


def load(paths: Iterable[Path]) -> list[Operation]:
    """Read the files of all processes; operations come in the order in which they began."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for line in _lines(path):
            found.setdefault(line.pop("id"), {}).update(line)
    operations = []
    for fields in found.values():
        kind = _KINDS[fields.pop("f")]
        if kind is not Fault:
            fields.pop("error", None)
        operations.append(kind(**fields))
    return sorted(operations, key=lambda operation: operation.began_ns)
