"""The assignment of one shard's offsets to the members of a group: a pure state machine over offset ranges.

It has ranges, not records: records that a lost member held are read from the shard again for the next member. The
caller reads the shard, sends records, stores the group's committed offset and reports events to this class. One
instance serves one (group, shard) pair.

How a caller uses it::

    wanted = assignment.wanted()                  # lowest offsets that no member holds or has acknowledged
    for member in assignment.members_with_room(): # the least loaded first; the caller may skip members without credit
        ... read the shard from wanted.first_offset, at most up to wanted.next_offset ...
        assignment.assign(member, read_up_to)     # the member owns [wanted.first_offset, read_up_to) now
    assignment.acknowledge(member, first, next)   # True: the committed offset moved; store it
    assignment.leave(member)                      # its unacknowledged ranges are wanted again, lowest offset first
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

import attrs

Member = TypeVar("Member", bound=Hashable)

STICKY_PREFIX: Final = "sticky/"
"""Prefix of the names of groups whose shards go to one member each: see `GroupAssignment`."""

END_OF_SHARD = 2**63 - 1
"""Means "no upper bound" in a wanted range: all offsets from its first one on, whether written already or not."""


@attrs.frozen(slots=True, order=True)
class OffsetRange:
    """Offsets from ``first_offset`` up to but not including ``next_offset``."""

    first_offset: int
    next_offset: int


class RangeSet:
    """Disjoint offset ranges in order; adjacent ranges are merged.

    Two plain lists, since a group on a filter has one of these for each shard, and few ranges in each.
    """

    __slots__ = ("_firsts", "_nexts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._nexts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[OffsetRange]:
        return map(OffsetRange, self._firsts, self._nexts)

    def lowest(self) -> OffsetRange | None:
        """The range with the lowest offsets, or None when the set is empty."""
        return OffsetRange(self._firsts[0], self._nexts[0]) if self._firsts else None

    def overlaps(self, first_offset: int, next_offset: int) -> bool:
        """Whether any offset of the range is in the set."""
        at = bisect_right(self._nexts, first_offset)
        return at < len(self._firsts) and self._firsts[at] < next_offset

    def add(self, first_offset: int, next_offset: int) -> None:
        """Add all offsets of the range."""
        if first_offset >= next_offset:
            return
        # All overlapping or adjacent ranges are merged with it.
        at, end = bisect_left(self._nexts, first_offset), bisect_right(self._firsts, next_offset)
        if at < end:
            first_offset = min(first_offset, self._firsts[at])
            next_offset = max(next_offset, self._nexts[end - 1])
        self._firsts[at:end] = [first_offset]
        self._nexts[at:end] = [next_offset]

    def remove(self, first_offset: int, next_offset: int) -> bool:
        """Remove all offsets of the range; returns whether any of them was in the set."""
        if first_offset >= next_offset:
            return False
        at, end = bisect_right(self._nexts, first_offset), bisect_left(self._firsts, next_offset)
        if at >= end:
            return False
        kept = [
            (first, next_)
            for first, next_ in ((self._firsts[at], first_offset), (next_offset, self._nexts[end - 1]))
            if first < next_
        ]
        self._firsts[at:end] = [first for first, _ in kept]
        self._nexts[at:end] = [next_ for _, next_ in kept]
        return True


@attrs.define(slots=True)
class _Assigned:
    """The ranges of a member: as assigned, in order, and their unacknowledged part."""

    ranges: list[tuple[int, int]] = attrs.field(factory=list)
    unacknowledged: RangeSet = attrs.field(factory=RangeSet)


@attrs.define(slots=True)
class _Held:
    """The ranges that one member holds; a group on a filter has one for each shard and member, mostly empty."""

    served_at: int = 0
    weight: bytes = b""
    assigned: _Assigned | None = None

    @property
    def count(self) -> int:
        return 0 if self.assigned is None else len(self.assigned.ranges)

    def assign(self, given: OffsetRange) -> None:
        if self.assigned is None:
            self.assigned = _Assigned()
        insort(self.assigned.ranges, (given.first_offset, given.next_offset))
        self.assigned.unacknowledged.add(given.first_offset, given.next_offset)

    def remove(self, first_offset: int, next_offset: int) -> bool:
        """Remove offsets, and assigned ranges without unacknowledged ones; returns whether any was held."""
        assigned = self.assigned
        if assigned is None or not assigned.unacknowledged.remove(first_offset, next_offset):
            return False
        assigned.ranges = [
            (first, next_)
            for first, next_ in assigned.ranges
            if next_ <= first_offset or first >= next_offset or assigned.unacknowledged.overlaps(first, next_)
        ]
        if not assigned.ranges:
            self.assigned = None
        return True

    def lowest_offset(self) -> int:
        lowest = None if self.assigned is None else self.assigned.unacknowledged.lowest()
        return END_OF_SHARD if lowest is None else lowest.first_offset


def sticky_key(group: str, shard: str) -> str | None:
    """The ``sticky_key`` for the assignment of a group's shard, according to the group's name."""
    return shard if group.startswith(STICKY_PREFIX) else None


class GroupAssignment(Generic[Member]):
    """Assigns a shard's offsets to the members of a group, each offset to one live member at a time.

    Members are served in turn. With ``sticky_key`` all offsets go to one member as long as it is in the group and no
    other one is preferred: each member has a weight in each shard (rendezvous hashing), so a new member takes over its
    part of the shards, and the part of a leaving member is divided among all others. A shard is passed on only when
    none of its offsets is held.

    Invariants (checked by the Hypothesis state machine in the tests):
        - An offset from `committed_offset` on is wanted, held by exactly one member, or acknowledged.
        - `committed_offset` never moves back and never passes an unacknowledged offset.
        - `wanted` is the lowest range that no member holds, so ranges of a lost member come before new ones.

    Args:
        committed_offset: The group's position: the stored cursor, or the start position of a new group.
        max_ranges_per_member: Number of assigned ranges that a member may leave unacknowledged.
        sticky_key: Identifies this shard among the group's shards; None: members are served in turn.
    """

    __slots__ = (
        "_acknowledged_to",
        "_clock",
        "_held_by_member",
        "_joined_count",
        "_max_ranges_per_member",
        "_sticky_key",
        "_wanted",
    )

    def __init__(
        self, committed_offset: int, *, max_ranges_per_member: int = 64, sticky_key: str | None = None
    ) -> None:
        if max_ranges_per_member < 1:
            raise ValueError(f"max_ranges_per_member is {max_ranges_per_member}; it must be at least 1")
        self._max_ranges_per_member = max_ranges_per_member
        self._wanted = RangeSet()
        self._wanted.add(committed_offset, END_OF_SHARD)
        self._held_by_member: dict[Member, _Held] = {}
        self._acknowledged_to = committed_offset
        self._clock = 0
        self._sticky_key = sticky_key
        self._joined_count = 0

    @property
    def committed_offset(self) -> int:
        """Lowest offset that is not acknowledged; stored in the group's cursor, where a restart begins."""
        return self._acknowledged_to

    @property
    def members(self) -> tuple[Member, ...]:
        """All members, in the order in which they joined."""
        return tuple(self._held_by_member)

    def is_held_by(self, member: Member) -> bool:
        """Whether a member holds offsets that it has not acknowledged."""
        held = self._held_by_member.get(member)
        return held is not None and held.count > 0

    def held(self, member: Member) -> list[OffsetRange]:
        """The unacknowledged ranges of a member, in order; adjacent ones are merged."""
        assigned = self._held_by_member[member].assigned
        return [] if assigned is None else list(assigned.unacknowledged)

    def join(self, member: Member, number: int | None = None) -> None:
        """Add a new member.

        Args:
            member: The member.
            number: Number from which its weight in a sticky shard is computed; by default the number of joins so far. A
                group that adds its members to its shards later, in any order, uses one number for each member.

        Raises:
            ValueError: It is a member already.
        """
        if member in self._held_by_member:
            raise ValueError(f"{member!r} is a member of the group already")
        self._joined_count += 1
        weight = b""
        if self._sticky_key is not None:
            number = self._joined_count if number is None else number
            weight = hashlib.blake2b(f"{number}/{self._sticky_key}".encode(), digest_size=8).digest()
        self._held_by_member[member] = _Held(served_at=self._clock, weight=weight)

    def leave(self, member: Member) -> None:
        """Remove a member; its unacknowledged offsets are wanted again. Unknown members are ignored."""
        held = self._held_by_member.pop(member, None)
        if held is not None and held.assigned is not None:
            for lost in held.assigned.unacknowledged:
                self._wanted.add(lost.first_offset, lost.next_offset)

    def wanted(self) -> OffsetRange:
        """The next range to deliver: the lowest wanted one. It ends at `END_OF_SHARD` if only new records are wanted.

        It may be longer than what is assigned at once: the caller reads from its start, but never past its end, since
        the offsets after it are held or acknowledged.
        """
        lowest = self._wanted.lowest()
        assert lowest is not None  # Invariant: the range up to END_OF_SHARD is only ever shortened from its start.
        return lowest

    def members_with_room(self) -> list[Member]:
        """Members that may get another range: those with the fewest ranges first, then those not served for longest.

        In a sticky shard it is at most one: none while another one holds offsets, or while it has no room.
        """
        limit = self._max_ranges_per_member
        if self._sticky_key is not None:
            return self._preferred(limit)
        free = [(held.count, held.served_at, at) for at, held in enumerate(self._held_by_member.values())]
        members = list(self._held_by_member)
        return [members[at] for count, _, at in sorted(free) if count < limit]

    def _preferred(self, limit: int) -> list[Member]:
        members = self._held_by_member
        preferred = max(members, key=lambda member: members[member].weight, default=None)
        if preferred is None or members[preferred].count >= limit:
            return []
        if any(held.assigned for member, held in members.items() if member is not preferred):
            return []
        return [preferred]

    def assign(self, member: Member, next_offset: int) -> OffsetRange:
        """Assign the start of the wanted range, up to ``next_offset``, to a member.

        Returns:
            The assigned range; it is shorter than requested if the wanted range ends before ``next_offset``.

        Raises:
            KeyError: It is not a member.
            ValueError: The range is empty, or the member has no room (see `members_with_room`).
        """
        held = self._held_by_member[member]
        wanted = self.wanted()
        given = OffsetRange(wanted.first_offset, min(next_offset, wanted.next_offset))
        if given.first_offset >= given.next_offset or given.next_offset == END_OF_SHARD:
            raise ValueError(
                f"cannot assign offsets {given.first_offset} up to {next_offset}: the range has no records"
            )
        if held.count >= self._max_ranges_per_member:
            raise ValueError(f"{member!r} holds {held.count} ranges, the most that a member may hold")
        self._wanted.remove(given.first_offset, given.next_offset)
        held.assign(given)
        self._clock += 1
        held.served_at = self._clock
        return given

    def acknowledge(self, member: Member, first_offset: int, next_offset: int) -> bool:
        """Note that a member has processed offsets; only those that it holds are acknowledged.

        So a late acknowledgement of a range that was passed on to another member has no effect: the records count as
        delivered when their present holder acknowledges them.

        Returns:
            Whether `committed_offset` moved.
        """
        held = self._held_by_member.get(member)
        if held is None or not held.remove(first_offset, next_offset):
            return False
        return self._advance()

    def skip_to(self, start_offset: int) -> bool:
        """Drop all offsets below ``start_offset``, which were trimmed from the shard.

        Returns:
            Whether `committed_offset` moved.
        """
        self._wanted.remove(0, start_offset)
        for held in self._held_by_member.values():
            held.remove(0, start_offset)
        return self._advance()

    def _advance(self) -> bool:
        """Move the committed offset up to the lowest one that is wanted or held."""
        lowest = self.wanted().first_offset
        for held in self._held_by_member.values():
            lowest = min(lowest, held.lowest_offset())
        moved = lowest > self._acknowledged_to
        self._acknowledged_to = lowest
        return moved
