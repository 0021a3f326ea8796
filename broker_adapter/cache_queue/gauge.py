"""How full a queue is, as one of its writers estimates it between two reads of the store. Pure.

Records are counted, not offsets: after a crash of the store the offsets of a shard in memory mode continue after those
that were reserved, a million higher.

A writer learns about records of other writers from the offsets of its own: all lower offsets were taken before. It does
not see records that are drained, so between two reads its estimate is too high, and too low by no more than what others
have in flight.
"""

from __future__ import annotations

from typing import Final

import attrs

from broker_adapter.cache_queue.ranges import Range
from shards.model import SegmentInfo, ShardInfo

LONGEST_STRETCH: Final = 1 << 19
"""Most offsets that others may have taken between two appends of one writer. The store reserves twice as many for
records in memory, and skips at least this many when it dies: a longer jump is such a gap, and the next read shows it.
Others would have to append two million records per second to be mistaken for a gap."""


def gives_up_offsets(known_end: int, gap_end: int) -> bool:
    """Whether a gap in the records ends with offsets that no record had.

    A store that dies skips the offsets that it had reserved; a store that stops in order skips none, and its gap ends
    with the last record.

    Args:
        known_end: Highest known end of records at or below the end of the gap.
    """
    return gap_end - known_end >= LONGEST_STRETCH


@attrs.frozen(slots=True)
class Depth:
    """The records that wait.

    Attributes:
        first_offset: Offset of the first one; ``next_offset`` if there is none.
        record_count: Number of records; offsets in a gap have none.
        size_bytes: Their stored size, with a proportional part of the oldest segment.
    """

    first_offset: int
    next_offset: int
    record_count: int
    size_bytes: int


def depth_of(info: ShardInfo, done_offset: int, end_offset: int | None = None) -> Depth:
    """How full a queue is.

    Args:
        info: Its shard, with segments.
        done_offset: Everything below it is finished.
        end_offset: Records at or above it are left out.
    """
    next_offset = info.next_offset if end_offset is None else min(info.next_offset, max(end_offset, info.start_offset))
    first_offset = max(info.start_offset, min(done_offset, next_offset))
    record_count = sum(
        max(0, min(segment.next_offset, next_offset) - max(segment.base_offset, first_offset))
        for segment in info.segments
    )
    size_bytes = sum(
        _bytes_from(segment, first_offset) - _bytes_from(segment, next_offset) for segment in info.segments
    )
    return Depth(first_offset, next_offset, record_count, size_bytes)


def gaps_of(info: ShardInfo, first_offset: int) -> list[Range]:
    """Ranges of offsets, from one on, that are in no segment: their records in memory are lost, or never existed."""
    offset = max(info.start_offset, first_offset)
    gaps: list[Range] = []
    for segment in info.segments:
        if segment.base_offset > offset:
            gaps.append((offset, segment.base_offset))
        offset = max(offset, segment.next_offset)
    if info.next_offset > offset:
        gaps.append((offset, info.next_offset))
    return gaps


def offset_with_records_behind(info: ShardInfo, record_count: int) -> int:
    """The lowest offset from which on at most this many records wait."""
    for segment in reversed(info.segments):
        held = segment.next_offset - segment.base_offset
        if held >= record_count:
            return segment.next_offset - record_count
        record_count -= held
    return info.start_offset


def offset_with_bytes_behind(info: ShardInfo, depth: Depth, size_bytes: int) -> int:
    """The lowest offset from which on at most this many bytes wait, by the mean size in each segment."""
    excess = depth.size_bytes - size_bytes
    offset = depth.first_offset
    for segment in info.segments:
        if excess <= 0:
            break
        held = _bytes_from(segment, offset)
        if held <= excess:
            excess -= held
            offset = max(offset, segment.next_offset)
        else:
            span = segment.next_offset - max(offset, segment.base_offset)
            offset = max(offset, segment.base_offset) + -(-span * excess // held)
            excess = 0
    return min(offset, info.next_offset)


def _bytes_from(segment: SegmentInfo, offset: int) -> int:
    """A segment's bytes from an offset on, in proportion."""
    count = segment.next_offset - segment.base_offset
    if offset <= segment.base_offset or count <= 0:
        return segment.size_bytes if offset < segment.next_offset else 0
    return segment.size_bytes * max(0, segment.next_offset - offset) // count


class Gauge:
    """Estimate of a queue's depth: the last read, plus what its writer has put in or learnt since."""

    def __init__(self) -> None:
        self._depth = Depth(0, 0, 0, 0)
        self._under_way_count = 0
        self._under_way_bytes = 0
        self._added_count = 0
        self._added_bytes = 0
        self._next_offset = 0
        self._new_count = 0
        self._new_bytes = 0
        self._new_offset = 0
        self._committed = [0, 0]
        self._committed_before = [0, 0]

    def begin_look(self) -> None:
        """A read of the store begins: appends settled from now on may or may not be in its result."""
        self._new_count = 0
        self._new_bytes = 0
        self._new_offset = 0
        for at, value in enumerate(self._committed):
            self._committed_before[at] += value
        self._committed = [0, 0]

    def look(self, depth: Depth) -> None:
        """Use the result of a read. Appends in flight may be included already; they count twice until settled.

        So do the bytes of appends settled meanwhile, until the next read. A queue that was created again starts at 0.
        """
        self._depth = depth
        self._committed_before = [0, 0]
        self._next_offset = max(depth.next_offset, self._new_offset)
        self._added_count = max(0, min(self._new_count, self._new_offset - depth.next_offset))
        self._added_bytes = self._new_bytes if self._new_offset > depth.next_offset else 0

    def put(self, count: int, size_bytes: int) -> None:
        """Records were appended; the outcome is not known yet."""
        self._under_way_count += count
        self._under_way_bytes += size_bytes

    def settled(self, count: int, size_bytes: int, next_offset: int | None) -> None:
        """The outcome of appended records is known.

        Args:
            next_offset: Offset after them; None if they were not stored, or if that is unknown.
        """
        self._under_way_count -= count
        self._under_way_bytes -= size_bytes
        if next_offset is not None and next_offset > self._next_offset:
            # All records appended since the last read, by this writer and others, at this writer's mean size.
            added_count = next_offset - self._next_offset
            if added_count - count >= LONGEST_STRETCH:
                added_count = count
            added_bytes = -(-size_bytes * added_count // max(count, 1))
            self._added_count += added_count
            self._new_count += added_count
            self._added_bytes += added_bytes
            self._new_bytes += added_bytes
            self._next_offset = self._new_offset = next_offset

    def committed(self, count: int, size_bytes: int) -> None:
        """Records were put in by a commit, whose outcome is not reported here: the second next read includes them."""
        self._committed[0] += count
        self._committed[1] += size_bytes

    @property
    def record_count(self) -> int:
        """Records that wait or are in flight."""
        return self._depth.record_count + self._added_count + self._under_way_count + self._unlocated(0)

    @property
    def size_bytes(self) -> int:
        """Approximate bytes that wait or are in flight."""
        return self._depth.size_bytes + self._added_bytes + self._under_way_bytes + self._unlocated(1)

    def _unlocated(self, at: int) -> int:
        """Records, or bytes, that were committed and are perhaps not in the result of the last read."""
        return self._committed_before[at] + self._committed[at]
