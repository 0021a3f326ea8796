"""How full a queue is, as one of its writers knows it between two looks at the store. Pure.

Records are counted, not offsets: after a crash of the store the offsets of a shard in memory mode go on behind those
that were reserved, a million higher.

A writer learns of records that others put in by the offsets of its own: all below them were taken before. It does not
see what is drained, so between two looks it takes the queue for fuller than it is, never for emptier by more than what
others have under way.
"""

from __future__ import annotations

from typing import Final

import attrs

from broker_adapter.cache_queue.ranges import Range
from shards.model import SegmentInfo, ShardInfo

LONGEST_STRETCH: Final = 1 << 19
"""Offsets that others may have taken between two appends of one writer. The store reserves twice as many for records in
memory, and gives up at least so many of them when it dies: a longer jump is such a gap, and the next look tells. The
others would have to put in two million records a second to be taken for one."""


def gives_up_offsets(known_end: int, gap_end: int) -> bool:
    """Whether a gap in the records ends with offsets that no record had.

    A store that dies gives up what it had reserved; one that ends in order gives up nothing, and its gap ends with the
    last record.

    Args:
        known_end: End of records at or below the end of the gap.
    """
    return gap_end - known_end >= LONGEST_STRETCH


@attrs.frozen(slots=True)
class Depth:
    """What waits.

    Attributes:
        first_offset: Where what waits begins; ``next_offset`` if nothing does.
        record_count: Records; offsets in a gap have none.
        size_bytes: As the store keeps them, with a part of the oldest segment in proportion.
    """

    first_offset: int
    next_offset: int
    record_count: int
    size_bytes: int


def depth_of(info: ShardInfo, done_offset: int, end_offset: int | None = None) -> Depth:
    """How full a queue is.

    Args:
        info: Its shard, with segments.
        done_offset: Everything below is done with.
        end_offset: What lies at or above it is left out.
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
    """Ranges of offsets from one on that no segment has: what lay there in memory is lost, or never was."""
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
    """The lowest offset from which on no more than so many records wait."""
    for segment in reversed(info.segments):
        held = segment.next_offset - segment.base_offset
        if held >= record_count:
            return segment.next_offset - record_count
        record_count -= held
    return info.start_offset


def offset_with_bytes_behind(info: ShardInfo, depth: Depth, size_bytes: int) -> int:
    """The lowest offset from which on no more than so many bytes wait, by the mean size in each segment."""
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
    """The depth of a queue since the last look, with what its writer has put in or learnt since."""

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
        """The store is asked now: what is settled from here on may or may not be in its answer."""
        self._new_count = 0
        self._new_bytes = 0
        self._new_offset = 0
        for at, value in enumerate(self._committed):
            self._committed_before[at] += value
        self._committed = [0, 0]

    def look(self, depth: Depth) -> None:
        """Take over what the store said. What is under way may be in it already: until it is known it counts twice.

        So do the bytes of what was settled meanwhile, until the next look. A queue that was made anew begins again.
        """
        self._depth = depth
        self._committed_before = [0, 0]
        self._next_offset = max(depth.next_offset, self._new_offset)
        self._added_count = max(0, min(self._new_count, self._new_offset - depth.next_offset))
        self._added_bytes = self._new_bytes if self._new_offset > depth.next_offset else 0

    def put(self, count: int, size_bytes: int) -> None:
        """Records were handed over."""
        self._under_way_count += count
        self._under_way_bytes += size_bytes

    def settled(self, count: int, size_bytes: int, next_offset: int | None) -> None:
        """Their outcome is known.

        Args:
            next_offset: Offset behind them; None if they were not stored, or nobody knows where.
        """
        self._under_way_count -= count
        self._under_way_bytes -= size_bytes
        if next_offset is not None and next_offset > self._next_offset:
            # All that came since the last look, ours and others', at our mean size.
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
        """Records were put in by a commit, whose outcome is not told here: the look after the next knows of them."""
        self._committed[0] += count
        self._committed[1] += size_bytes

    @property
    def record_count(self) -> int:
        """Records that wait or are on their way."""
        return self._depth.record_count + self._added_count + self._under_way_count + self._unlocated(0)

    @property
    def size_bytes(self) -> int:
        """Bytes that wait or are on their way, about."""
        return self._depth.size_bytes + self._added_bytes + self._under_way_bytes + self._unlocated(1)

    def _unlocated(self, at: int) -> int:
        """Records, or bytes, that were committed and are not known to be in what the store said."""
        return self._committed_before[at] + self._committed[at]
