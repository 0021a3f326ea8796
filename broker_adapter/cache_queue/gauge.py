"""How full a queue is, as one of its writers knows it between two looks at the store. Pure.

A writer learns of records that others put in by the offsets of its own: all below them were taken before. It does not
see what is drained, so between two looks it takes the queue for fuller than it is, never for emptier by more than what
others have under way.
"""

from __future__ import annotations

import attrs

from shards.model import SegmentInfo, ShardInfo


@attrs.frozen(slots=True)
class Depth:
    """What waits.

    Attributes:
        first_offset: Oldest record that waits; ``next_offset`` if none does.
        size_bytes: As the store keeps them, with a part of the oldest segment in proportion.
    """

    first_offset: int
    next_offset: int
    size_bytes: int

    @property
    def record_count(self) -> int:
        """How many offsets that is."""
        return self.next_offset - self.first_offset


def depth_of(info: ShardInfo, cursor_offset: int) -> Depth:
    """How full a queue is.

    Args:
        info: Its shard, with segments.
        cursor_offset: Where its cursor is.
    """
    first_offset = max(info.start_offset, min(cursor_offset, info.next_offset))
    size_bytes = sum(_bytes_from(segment, first_offset) for segment in info.segments)
    return Depth(first_offset, info.next_offset, size_bytes)


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
        self._depth = Depth(0, 0, 0)
        self._under_way_count = 0
        self._under_way_bytes = 0
        self._added_bytes = 0
        self._next_offset = 0
        self._new_bytes = 0
        self._new_offset = 0
        self._committed = [0, 0]
        self._committed_before = [0, 0]

    def begin_look(self) -> None:
        """The store is asked now: what is settled from here on may or may not be in its answer."""
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
            added_bytes = -(-size_bytes * (next_offset - self._next_offset) // max(count, 1))
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
        return self._next_offset - self._depth.first_offset + self._under_way_count + self._unlocated(0)

    @property
    def size_bytes(self) -> int:
        """Bytes that wait or are on their way, about."""
        return self._depth.size_bytes + self._added_bytes + self._under_way_bytes + self._unlocated(1)

    def _unlocated(self, at: int) -> int:
        """Records, or bytes, that were committed and are not known to be in what the store said."""
        return self._committed_before[at] + self._committed[at]
