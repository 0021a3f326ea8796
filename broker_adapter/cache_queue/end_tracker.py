"""What one writer knows about which offsets have records, from its appends and from reads of the shard. Pure.

It matters only for records in memory: when the store's node dies they are lost, together with the offsets that were
reserved for more of them. Only the writers know where the records ended in such a gap.
"""

from __future__ import annotations

from itertools import pairwise

from broker_adapter.cache_queue.gauge import LONGEST_STRETCH, gaps_of, gives_up_offsets
from broker_adapter.cache_queue.ranges import from_offset, intersection
from broker_adapter.cache_queue.stored import KnownEnd
from shards.model import Mode, SegmentKind, ShardInfo


class EndTracker:
    """The knowledge of one writer about one queue.

    Attributes:
        known: The value to store; None while there is none.
    """

    def __init__(self) -> None:
        self.known: KnownEnd | None = None
        self._stretches: list[tuple[int, int]] = []

    def appended(self, base_offset: int, next_offset: int) -> None:
        """Records of this writer were acknowledged with these offsets."""
        if self._stretches and 0 <= base_offset - self._stretches[-1][1] < LONGEST_STRETCH:
            self._stretches[-1] = (self._stretches[-1][0], next_offset)
        else:
            self._stretches.append((base_offset, next_offset))

    def look(self, info: ShardInfo, done_offset: int) -> None:
        """Use the state of the shard that was read.

        Args:
            info: The queue's shard, with segments.
            done_offset: Offsets below it do not matter any more.
        """
        stretches, self._stretches = self._stretches, []
        known = self.known if self.known is not None and self.known.shard_id == info.shard_id else None
        gaps = gaps_of(info, done_offset)
        may_lose = info.config.mode is Mode.MEMORY or any(each.kind is SegmentKind.MEMORY for each in info.segments)
        if known is None and not may_lose and not gaps:
            self.known = None
            return
        if known is not None:
            stretches = [(known.end_offset, known.end_offset), *stretches]
        ends = [next_offset for _, next_offset in stretches]
        # If the store died more than once since the last read, there is a jump for each time.
        jumps = [
            (end, base_offset)
            for (_, end), (base_offset, _) in pairwise(stretches)
            if base_offset - end >= LONGEST_STRETCH
        ]
        unused = list(known.unused) if known is not None else []
        for first, after in gaps:
            if known is not None and after <= known.end_offset:
                continue
            unused += intersection([(first, after)], [jump for jump in jumps if jump[1] < after])
            before = [end for end in ends if end <= after]
            if before and gives_up_offsets(max(before), after):
                unused.append((max(first, *before), after))
        self.known = KnownEnd(info.shard_id, max(info.next_offset, *ends, 0), from_offset(unused, done_offset))
