"""Histories of a store that keeps its promises, and ways to spoil them: what the checker is tested with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import attrs

from tests.torture.history import (
    NEVER,
    Append,
    Death,
    Delete,
    Get,
    GroupPosition,
    Observed,
    Operation,
    Outcome,
    Poll,
    Put,
    Read,
    Shard,
    Trim,
)


@attrs.define
class _Log:
    """One shard: records and lost offsets by offset."""

    name: str
    always_file: bool
    records: dict[int, Observed] = attrs.Factory(dict)
    volatile: set[int] = attrs.Factory(set)
    lost: set[int] = attrs.Factory(set)
    start_offset: int = 0
    next_offset: int = 0
    in_memory: bool = False

    def look(self, first: int, end: int) -> tuple[list[Observed], list[tuple[int, int]]]:
        """Records and gaps of a range."""
        records = [self.records[offset] for offset in range(first, end) if offset in self.records]
        gaps = [(offset, offset + 1) for offset in range(first, end) if offset in self.lost]
        return records, gaps


class CorrectModel:
    """Carries out random operations of some clients, one after another, as a store should; times overlap a little."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.operations: list[Operation] = []
        self._now = 0
        self._lsn = 0
        self._count = 0
        self._logs = [_Log("f", always_file=True), _Log("g", always_file=True), _Log("m", always_file=False)]
        self._values: dict[str, tuple[str, int]] = {}
        self._positions: dict[str, int] = {}
        self._group_position = 0
        self._numbers: dict[tuple[str, str], int] = {}
        for log in self._logs:
            self._note(Shard(who="setup", shard=log.name, always_file=log.always_file))

    def run(self, steps: int) -> list[Operation]:
        """A history that ends with a complete read."""
        acts: Sequence[Callable[[], None]] = (
            *(self._append, self._append, self._append, self._read, self._poll, self._group_poll),
            *(self._put, self._put, self._get, self._delete, self._trim, self._die, self._switch, self._transaction),
        )
        for _ in range(steps):
            self.rng.choice(acts)()
        self._die()
        for log in self._logs:
            records, gaps = log.look(log.start_offset, log.next_offset)
            for offset, found in ((log.start_offset, records), (log.next_offset, [])):
                shown = gaps if found is records else []
                self._read_of(log, offset, found, shown, last=True)
        for key in ("state/k", "state/l", "cursor/f/c"):
            self._get_of(key)
        position = GroupPosition(who="last", group="g", shard="f", offset=self._group_position)
        self._note(position)
        return sorted(self.operations, key=lambda operation: operation.began_ns)

    def _note(self, operation: Operation, outcome: Outcome = Outcome.OK) -> None:
        self._now += 10
        # One that begins before the end of the one before is concurrent with it.
        began = self._now - self.rng.randrange(9)
        ended = NEVER if outcome is Outcome.UNKNOWN else self._now + 1
        self.operations.append(attrs.evolve(operation, began_ns=began, ended_ns=ended, outcome=outcome))

    def _outcome(self) -> Outcome:
        return self.rng.choice((Outcome.OK, Outcome.OK, Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN))

    def _store(self, log: _Log, values: Sequence[str]) -> int:
        self._lsn += 1
        offset = log.next_offset
        for value in values:
            log.records[log.next_offset] = Observed(log.next_offset, self._lsn, self._now, value)
            if log.in_memory:
                log.volatile.add(log.next_offset)
            log.next_offset += 1
        return offset

    def _append(self) -> None:
        log = self.rng.choice(self._logs)
        stream = self.rng.choice(("p", "q"))
        number = self._numbers[stream, log.name] = self._numbers.get((stream, log.name), -1) + 1
        values = [f"{stream}/{log.name}/{number}/{place}" for place in range(self.rng.randrange(1, 4))]
        outcome = self._outcome()
        is_stored = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and self.rng.random() < 0.5)
        offset = self._store(log, values) if is_stored else -1
        append = Append(who=stream, shard=log.name, values=values, stream=stream, number=number)
        if outcome is Outcome.OK:
            append = attrs.evolve(append, offset=offset, level="memory" if log.in_memory else "durable")
        self._note(append, outcome)

    def _transaction(self) -> None:
        self._count += 1
        name = f"t/{self._count}"
        outcome = self._outcome()
        is_stored = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and self.rng.random() < 0.5)
        for log in self._logs[:2]:
            values = [f"{name}/{log.name}"]
            offset = self._store(log, values) if is_stored else -1
            append = Append(who="t", shard=log.name, values=values, transaction=name)
            if outcome is Outcome.OK:
                append = attrs.evolve(append, offset=offset, level="durable")
            self._note(append, outcome)

    def _read(self) -> None:
        log = self.rng.choice(self._logs)
        first = self.rng.randint(log.start_offset, log.next_offset)
        end = self.rng.randint(first, log.next_offset)
        if end == first < log.next_offset:
            end += 1
        records, gaps = log.look(first, end)
        self._read_of(log, first, records, gaps)

    def _read_of(
        self, log: _Log, first: int, records: list[Observed], gaps: list[tuple[int, int]], *, last: bool = False
    ) -> None:
        end = first + len(records) + len(gaps)
        found = {"records": records, "gaps": gaps, "next_offset": end, "start_offset": log.start_offset}
        self._note(Read(who="r", shard=log.name, offset=first, last=last, **found))

    def _poll(self) -> None:
        log = self.rng.choice(self._logs)
        first = max(self._positions.get(log.name, 0), log.start_offset)
        end = self.rng.randint(first, log.next_offset)
        if first == end:
            return
        records, gaps = log.look(first, end)
        self._positions[log.name] = end
        self._note(
            Poll(
                who="s",
                assignment="s",
                shard=log.name,
                first_offset=first,
                next_offset=end,
                records=records,
                gaps=gaps,
            )
        )

    def _group_poll(self) -> None:
        log = self._logs[0]
        first = max(self._group_position, log.start_offset)
        end = self.rng.randint(first, log.next_offset)
        if first == end:
            return
        records, gaps = log.look(first, end)
        self._group_position = end
        self._note(
            Poll(
                who="s",
                assignment="member",
                shard=log.name,
                first_offset=first,
                group="g",
                next_offset=end,
                records=records,
                gaps=gaps,
                acknowledged=True,
            )
        )

    def _put(self) -> None:
        key = self.rng.choice(("state/k", "state/l", "cursor/f/c"))
        self._count += 1
        self._lsn += 1
        now = self._values.get(key, ("", 0))[1]
        expected = self.rng.choice((None, now))
        outcome = self._outcome()
        put = Put(who="c", key=key, value=f"v{self._count}", expected=expected)
        if outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and self.rng.random() < 0.5):
            self._values[key] = (put.value, self._lsn)
        self._note(attrs.evolve(put, version=self._lsn) if outcome is Outcome.OK else put, outcome)

    def _get(self) -> None:
        self._get_of(self.rng.choice(("state/k", "state/l", "cursor/f/c")))

    def _get_of(self, key: str) -> None:
        value, version = self._values.get(key, (None, 0))
        self._note(Get(who="r", key=key, value=value, version=version))

    def _delete(self) -> None:
        key = "state/l"
        self._lsn += 1
        self._values.pop(key, None)
        self._note(Delete(who="c", key=key))

    def _trim(self) -> None:
        log = self.rng.choice(self._logs[1:])
        log.start_offset = self.rng.randint(log.start_offset, log.next_offset)
        self._note(Trim(who="a", shard=log.name, before=log.start_offset))

    def _switch(self) -> None:
        self._logs[2].in_memory = not self._logs[2].in_memory

    def _die(self) -> None:
        log = self._logs[2]
        for offset in log.volatile:
            del log.records[offset]
            log.lost.add(offset)
        log.volatile.clear()
        self._note(Death(who="driver"))


# Ways to spoil a history; each gives None where there is nothing to spoil so.


def _last_reads(operations: Sequence[Operation], shard: str = "f") -> list[int]:
    return [
        index
        for index, one in enumerate(operations)
        if isinstance(one, Read) and one.last and one.shard == shard and one.records
    ]


def _with(operations: Sequence[Operation], index: int, **fields: object) -> list[Operation]:
    changed = list(operations)
    changed[index] = attrs.evolve(changed[index], **fields)
    return changed


def lose_the_end(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """The newest record, acknowledged as durable, is not there in the end, and the shard ends before it."""
    durable = [
        one.offset + len(one.values)
        for one in operations
        if isinstance(one, Append) and one.shard == "f" and one.level == "durable"
    ]
    for index in _last_reads(operations):
        read = operations[index]
        assert isinstance(read, Read)
        if max(durable, default=-1) == read.next_offset:
            changed = _with(operations, index, records=read.records[:-1], next_offset=read.next_offset - 1)
            for at, one in enumerate(changed):
                if isinstance(one, Read) and one.last and one.shard == "f" and not one.records:
                    changed[at] = attrs.evolve(one, offset=one.offset - 1, next_offset=one.next_offset - 1)
            return changed
    return None


def lose_in_the_middle(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A record is not there in the end, and the ones beside it are."""
    for index in _last_reads(operations):
        read = operations[index]
        assert isinstance(read, Read)
        gone = rng.randrange(len(read.records))
        return _with(operations, index, records=[*read.records[:gone], *read.records[gone + 1 :]])
    return None


def store_twice(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A value is at two offsets."""
    for index in _last_reads(operations):
        read = operations[index]
        assert isinstance(read, Read)
        again = rng.choice(read.records)._replace(offset=read.next_offset)
        return _with(operations, index, records=[*read.records, again], next_offset=read.next_offset + 1)
    return None


def exchange(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """Two neighbours have changed places."""
    for index in _last_reads(operations):
        read = operations[index]
        assert isinstance(read, Read)
        if len(read.records) > 1:
            at = rng.randrange(len(read.records) - 1)
            first, second = read.records[at], read.records[at + 1]
            if first.value.split("/")[0] == second.value.split("/")[0] or first.lsn != second.lsn:
                records = list(read.records)
                records[at] = second._replace(offset=first.offset)
                records[at + 1] = first._replace(offset=second.offset)
                return _with(operations, index, records=records)
    return None


def change_a_value(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A reader is given a value that was not appended."""
    for index in _last_reads(operations):
        read = operations[index]
        assert isinstance(read, Read)
        at = rng.randrange(len(read.records))
        records = list(read.records)
        records[at] = records[at]._replace(value="damaged")
        return _with(operations, index, records=records)
    return None


def skip_a_poll(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A subscription passes over what one delivery had."""
    polls = [
        index for index, one in enumerate(operations) if isinstance(one, Poll) and one.shard == "f" and not one.group
    ]
    if len(polls) < 3:
        return None
    gone = polls[rng.randrange(1, len(polls) - 1)]
    return [one for index, one in enumerate(operations) if index != gone]


def repeat_a_poll(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A subscription gives a delivery again."""
    polls = [index for index, one in enumerate(operations) if isinstance(one, Poll) and one.shard == "f"]
    if not polls:
        return None
    again = rng.choice(polls)
    return [*operations[: again + 1], operations[again], *operations[again + 1 :]]


def forget_a_group_delivery(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A group's position is behind records that no member was done with."""
    polls = [index for index, one in enumerate(operations) if isinstance(one, Poll) and one.group]
    if not polls:
        return None
    return _with(operations, rng.choice(polls), acknowledged=False)


def read_an_old_version(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A read at the end gives a version that was replaced long before."""
    puts = [one for one in operations if isinstance(one, Put) and one.key == "state/k" and one.version]
    for index in range(len(operations) - 1, -1, -1):
        last = operations[index]
        if isinstance(last, Get) and last.key == "state/k":
            if len(puts) > 1 and last.version > puts[0].version:
                return _with(operations, index, value=puts[0].value, version=puts[0].version)
            return None
    return None


def compare_stale(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """Two compare-and-sets succeed from one version."""
    puts = [
        index
        for index, one in enumerate(operations)
        if isinstance(one, Put) and one.key == "state/k" and one.version and one.expected
    ]
    if len(puts) < 2:
        return None
    first = operations[puts[0]]
    assert isinstance(first, Put)
    return _with(operations, puts[-1], expected=first.expected)


def tear_a_transaction(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """A transaction of unknown outcome is there in one shard and not in the other."""
    trimmed = any(isinstance(one, Trim) and one.before for one in operations)
    there = {record.value for one in operations if isinstance(one, Read) and one.last for record in one.records}
    for one in operations:
        if isinstance(one, Append) and one.transaction and one.shard == "f" and one.values[0] in there and not trimmed:
            name = f"{one.transaction}/g"
            changed = []
            for other in operations:
                if isinstance(other, Append) and other.transaction == one.transaction:
                    other = attrs.evolve(other, outcome=Outcome.UNKNOWN, ended_ns=NEVER, offset=-1)
                if isinstance(other, Read | Poll) and any(record.value == name for record in other.records):
                    other = attrs.evolve(
                        other, records=[r._replace(value="t/0/g") if r.value == name else r for r in other.records]
                    )
                changed.append(other)
            # Something else lies where it lay.
            return [Append(who="x", shard="g", values=["t/0/g"], began_ns=0), *changed]
    return None


def refuse_what_is_there(operations: Sequence[Operation], rng: random.Random) -> list[Operation] | None:
    """An append that failed is there."""
    there = {record.value for one in operations if isinstance(one, Read) for record in one.records}
    for index, one in enumerate(operations):
        if isinstance(one, Append) and one.outcome is Outcome.OK and one.values[0] in there:
            return _with(operations, index, outcome=Outcome.FAILED, offset=-1, level="")
    return None


MUTATIONS: tuple[Callable[[Sequence[Operation], random.Random], list[Operation] | None], ...] = (
    lose_the_end,
    lose_in_the_middle,
    store_twice,
    exchange,
    change_a_value,
    skip_a_poll,
    repeat_a_poll,
    forget_a_group_delivery,
    read_an_old_version,
    compare_stale,
    tear_a_transaction,
    refuse_what_is_there,
)
