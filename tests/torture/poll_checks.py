"""What a history says about subscriptions: pure, operations in, anomalies out."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.torture.anomaly import Anomaly
from tests.torture.history import GroupPosition, Operation, Outcome, Poll, Read, Shard, Trim
from tests.torture.neighbours import Neighbours, seconds

_SHOWN = 3


def check_polls(operations: Sequence[Operation]) -> Iterator[Anomaly]:
    """Skipped and repeated polls, in subscriptions of one reader and in groups."""
    polls = [one for one in operations if isinstance(one, Poll) and one.outcome is Outcome.OK]
    there = _there_at_the_end(operations)
    alone = _Alone(operations)
    by_assignment: dict[tuple[str, str], list[Poll]] = defaultdict(list)
    for poll in polls:
        by_assignment[poll.assignment, poll.shard].append(poll)
    for (assignment, shard), found in by_assignment.items():
        where = f"{assignment} in {shard}"
        yield from _shared(where, found) if found[0].group else alone.anomalies(where, found)
    yield from _skipped_by_groups(operations, polls, there)


def _there_at_the_end(operations: Sequence[Operation]) -> dict[str, dict[int, str]]:
    there: dict[str, dict[int, str]] = defaultdict(dict)
    for read in operations:
        if isinstance(read, Read) and read.last:
            there[read.shard].update({record.offset: record.value for record in read.records})
    return there


def _trims(operations: Sequence[Operation]) -> dict[str, list[Trim]]:
    trims: dict[str, list[Trim]] = defaultdict(list)
    for one in operations:
        if isinstance(one, Trim) and one.outcome is not Outcome.FAILED:
            trims[one.shard].append(one)
    return trims


class _Alone:
    """Outside a group every poll begins where the one before ended, or behind a trim; what was lost is a gap in it."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._trims = _trims(operations)
        self._switched = {one.shard for one in operations if isinstance(one, Shard) and not one.always_file}
        self._neighbours = Neighbours(operations)

    def anomalies(self, where: str, polls: list[Poll]) -> Iterator[Anomaly]:
        shown = 0
        for before, poll in itertools.pairwise(polls):
            first = poll.first_offset
            if first == before.next_offset or shown == _SHOWN:
                continue
            if first > before.next_offset and self._is_trimmed(poll):
                continue
            shown += 1
            kind = "skipped poll" if first > before.next_offset else "repeated poll"
            yield Anomaly(
                kind, where, f"it goes on at {first}, after {before.next_offset}; {self._around(before, poll)}"
            )

    def _is_trimmed(self, poll: Poll) -> bool:
        """Whether a trim that may have taken effect by then leads to where the poll begins."""
        trims = [trim.before for trim in self._trims[poll.shard] if trim.began_ns < poll.ended_ns]
        if poll.shard in self._switched:
            return any(before >= poll.first_offset for before in trims)
        return poll.first_offset in trims

    def _around(self, before: Poll, poll: Poll) -> str:
        polls = (
            f"from {seconds(before.ended_ns)} over its connection {before.epoch} "
            f"to {seconds(poll.ended_ns)} over connection {poll.epoch}"
        )
        around = self._neighbours.around(poll.shard, poll.assignment, before.ended_ns, poll.ended_ns)
        return f"{polls}; around it: {around}"


def _shared(where: str, polls: list[Poll]) -> Iterator[Anomaly]:
    """A member of a group gets a range once over one connection."""
    end = -1
    ranges = sorted((poll.first_offset, poll.next_offset) for poll in polls)
    for first, next_offset in ranges:
        if first < end:
            yield Anomaly("repeated poll", where, f"from {first} on, though it was given up to {end} already")
            return
        end = max(end, next_offset)


def _skipped_by_groups(
    operations: Sequence[Operation], polls: list[Poll], there: dict[str, dict[int, str]]
) -> Iterator[Anomaly]:
    """What is below a group's stored position was delivered to a member that said it was done with it."""
    done: dict[tuple[str, str], set[int]] = defaultdict(set)
    for poll in polls:
        if poll.group and poll.acknowledged:
            done[poll.group, poll.shard].update(record.offset for record in poll.records)
    highest: dict[tuple[str, str], int] = defaultdict(int)
    for position in operations:
        if not isinstance(position, GroupPosition) or position.outcome is not Outcome.OK:
            continue
        key = position.group, position.shard
        where = f"group {position.group} in {position.shard}"
        if position.offset < highest[key]:
            yield Anomaly("cursor went back", where, f"from {highest[key]} to {position.offset}")
        highest[key] = max(highest[key], position.offset)
    for key, position_offset in highest.items():
        missing = [offset for offset in sorted(there[key[1]]) if offset < position_offset and offset not in done[key]]
        if missing:
            told = f"its position is {position_offset}, but no member was done with offsets {missing[:_SHOWN]}"
            yield Anomaly("skipped poll", f"group {key[0]} in {key[1]}", told)
