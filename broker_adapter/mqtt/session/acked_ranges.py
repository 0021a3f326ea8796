"""Records after a position that are finished: ranges of offsets by shard. Pure."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter

from broker_adapter.mqtt.model.position import ReachedLsn

Range = tuple[int, int, int]
"""First offset, offset after the last one, highest lsn of the range."""

_FIRST = itemgetter(0)


class AckedRanges:
    """A set of (shard, offset, lsn) that stores neighbours as one range, and drops ranges by lsn.

    Offsets of a shard rise with their lsn. A shard that was deleted and created again begins at offset 0, with lsns
    higher than all before: ranges of the deleted shard say nothing about the new one.

    Args:
        ranges: (shard, first offset, next offset, highest lsn), as returned by `items`.
        max_ranges: A record that would begin one more range is not added; for a set that need not be complete.

    Attributes:
        count: Number of ranges; it changes only by calls.
    """

    __slots__ = ("_max_ranges", "_ranges", "count")

    def __init__(self, ranges: Iterable[tuple[str, int, int, int]] = (), *, max_ranges: int = sys.maxsize) -> None:
        self._max_ranges = max_ranges
        self.count = 0
        self._ranges: dict[str, list[Range]] = {}
        for shard, first_offset, next_offset, last_lsn in ranges:
            self._ranges.setdefault(shard, []).append((first_offset, next_offset, last_lsn))
            self.count += 1
        for of_shard in self._ranges.values():
            of_shard.sort()

    def __len__(self) -> int:
        """Number of ranges."""
        return self.count

    def __contains__(self, place: tuple[str, int, int]) -> bool:
        shard, offset, lsn = place
        of_shard = self._ranges.get(shard)
        if of_shard is None:
            return False
        if offset >= of_shard[-1][1]:  # nearly always: a message that is to be sent for the first time
            return False
        at = bisect_right(of_shard, offset, key=_FIRST) - 1
        return at >= 0 and offset < of_shard[at][1] and lsn <= of_shard[at][2]

    def add(self, shard: str, offset: int, lsn: int) -> None:
        """Add one record. REQUIRES: all records before it in its shard are finished, or are in the set."""
        of_shard = self._ranges.get(shard)
        if of_shard is None:
            if self.count < self._max_ranges:
                self._ranges[shard] = [(offset, offset + 1, lsn)]
                self.count += 1
            return
        first_offset, next_offset, last_lsn = of_shard[-1]
        if offset == next_offset:  # nearly always: acknowledgements come in order
            of_shard[-1] = (first_offset, offset + 1, max(last_lsn, lsn))
        else:
            self._insert(of_shard, offset, lsn)

    def add_all(self, shard: str, first_offset: int, next_offset: int, last_lsn: int) -> None:
        """`add` for records that follow one another, up to ``next_offset``; ``last_lsn`` is the lsn of the last one."""
        of_shard = self._ranges.get(shard)
        if of_shard is not None and of_shard[-1][1] == first_offset < next_offset:
            of_shard[-1] = (of_shard[-1][0], next_offset, max(of_shard[-1][2], last_lsn))
            return
        for offset in range(first_offset, next_offset):
            self.add(shard, offset, last_lsn)

    def is_behind(self, shard: str, offset: int) -> bool:
        """Whether all ranges of a shard end at or before an offset."""
        of_shard = self._ranges.get(shard)
        return of_shard is None or of_shard[-1][1] <= offset

    def forget(self, position_lsn: ReachedLsn) -> None:
        """Drop the ranges without an lsn above a position."""
        for shard, of_shard in list(self._ranges.items()):
            if of_shard[0][2] > position_lsn:
                continue
            kept = [one for one in of_shard if one[2] > position_lsn]
            self.count -= len(of_shard) - len(kept)
            if kept:
                self._ranges[shard] = kept
            else:
                del self._ranges[shard]

    def items(self) -> Iterator[tuple[str, int, int, int]]:
        """All ranges."""
        for shard, of_shard in self._ranges.items():
            for first_offset, next_offset, last_lsn in of_shard:
                yield shard, first_offset, next_offset, last_lsn

    def _insert(self, of_shard: list[Range], offset: int, lsn: int) -> None:
        """Insert a record anywhere but behind the last range, joining it with its neighbours."""
        if of_shard[-1][1] > offset and of_shard[-1][2] < lsn:
            # A lower offset with a higher lsn than all: the ranges from here on are those of a deleted shard.
            self.count -= len(of_shard)
            of_shard[:] = [one for one in of_shard if one[1] <= offset or one[2] >= lsn]
            self.count += len(of_shard)
        at = bisect_right(of_shard, offset, key=_FIRST)
        start = stop = at
        first_offset, next_offset, last_lsn = offset, offset + 1, lsn
        if at > 0 and of_shard[at - 1][1] >= offset:
            start = at - 1
            first_offset = of_shard[start][0]
            next_offset = max(of_shard[start][1], next_offset)
            last_lsn = max(of_shard[start][2], last_lsn)
        if at < len(of_shard) and of_shard[at][0] == next_offset:
            stop = at + 1
            next_offset = of_shard[at][1]
            last_lsn = max(of_shard[at][2], last_lsn)
        if start == stop and self.count >= self._max_ranges:
            return
        self.count += 1 - (stop - start)
        of_shard[start:stop] = [(first_offset, next_offset, last_lsn)]
