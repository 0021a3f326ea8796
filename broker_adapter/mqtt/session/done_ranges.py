"""Which records beyond a position are finished with: ranges of offsets by shard. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter

Range = tuple[int, int, int]
"""First offset, offset after the last one, highest lsn in between."""

_FIRST = itemgetter(0)


class DoneRanges:
    """A set of (shard, offset) that costs little where neighbours are in it, and forgets by lsn.

    Offsets of a shard rise with their lsn, and one offset has one lsn for ever.

    Args:
        ranges: (shard, first offset, next offset, highest lsn), as `items` gives them.
    """

    def __init__(self, ranges: Iterable[tuple[str, int, int, int]] = ()) -> None:
        self._ranges: dict[str, list[Range]] = {}
        for shard, first_offset, next_offset, last_lsn in ranges:
            self._ranges.setdefault(shard, []).append((first_offset, next_offset, last_lsn))
        for of_shard in self._ranges.values():
            of_shard.sort()

    def __len__(self) -> int:
        """Number of ranges."""
        return sum(map(len, self._ranges.values()))

    def __contains__(self, place: tuple[str, int]) -> bool:
        shard, offset = place
        of_shard = self._ranges.get(shard)
        if not of_shard:
            return False
        at = bisect_right(of_shard, offset, key=_FIRST) - 1
        return at >= 0 and offset < of_shard[at][1]

    def add(self, shard: str, offset: int, lsn: int) -> None:
        """Put one record in."""
        of_shard = self._ranges.get(shard)
        if of_shard is None:
            self._ranges[shard] = [(offset, offset + 1, lsn)]
            return
        first_offset, next_offset, last_lsn = of_shard[-1]
        if offset == next_offset:  # nearly always: acknowledgements come in order
            of_shard[-1] = (first_offset, offset + 1, max(last_lsn, lsn))
        else:
            _insert(of_shard, offset, lsn)

    def forget(self, position_lsn: int) -> None:
        """Drop the ranges that hold no lsn above a position."""
        for shard, of_shard in list(self._ranges.items()):
            if of_shard[-1][2] <= position_lsn:
                del self._ranges[shard]
            elif of_shard[0][2] <= position_lsn:
                self._ranges[shard] = [one for one in of_shard if one[2] > position_lsn]

    def items(self) -> Iterator[tuple[str, int, int, int]]:
        """All ranges."""
        for shard, of_shard in self._ranges.items():
            for first_offset, next_offset, last_lsn in of_shard:
                yield shard, first_offset, next_offset, last_lsn


def _insert(of_shard: list[Range], offset: int, lsn: int) -> None:
    at = bisect_right(of_shard, offset, key=_FIRST)
    first_offset, next_offset, last_lsn = offset, offset + 1, lsn
    start, stop = at, at
    if at > 0 and of_shard[at - 1][1] >= offset:
        start = at - 1
        first_offset, next_offset = of_shard[start][0], max(of_shard[start][1], next_offset)
        last_lsn = max(last_lsn, of_shard[start][2])
    if at < len(of_shard) and of_shard[at][0] == next_offset:
        stop = at + 1
        next_offset, last_lsn = of_shard[at][1], max(last_lsn, of_shard[at][2])
    of_shard[start:stop] = [(first_offset, next_offset, last_lsn)]
