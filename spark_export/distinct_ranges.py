"""Which file is read for each offset of a shard, where several have it. Pure.

While shared files are rewritten, old and new files lie beside each other until the old ones are removed. The views of a
data directory say which ones count. In a copy of the files alone they all look alike, and have the same records under
the same offsets; so it does not matter which one is read, as long as each offset is read once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from spark_export.sealed_files import SharedName
from spark_export.snapshot import SegmentRange


def distinct(own: Sequence[SegmentRange], shared: Iterable[SegmentRange]) -> list[SegmentRange]:
    """Ranges that have each offset once, and every offset of the given ranges, in the order of offsets.

    Args:
        own: Segments with files of their own, in the order of offsets, which do not overlap. All of them are taken.
        shared: Records in shared files, in any order. Of these, those that are in no range before are taken; of several
            that begin at the same offset the longest one first.
    """
    found = list(own)
    ends = [one.next_offset for one in own]
    end = 0
    for one in sorted(shared, key=_order):
        first = max(one.base_offset, end)
        if first < one.next_offset:
            end = one.next_offset
            found += [one.clipped(*piece) for piece in _uncovered(first, end, own, ends)]
    return sorted(found, key=lambda one: one.base_offset)


def _order(one: SegmentRange) -> tuple[int, int, SharedName]:
    assert one.place is not None  # it is in a shared file
    return one.base_offset, -one.next_offset, one.place.file


def _uncovered(first: int, end: int, own: Sequence[SegmentRange], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The ranges from ``first`` up to ``end`` that are in no segment with a file of its own."""
    at = bisect_right(ends, first)
    while first < end:
        covered = own[at] if at < len(own) else None
        stop = end if covered is None else min(end, covered.base_offset)
        if first < stop:
            yield first, stop
        if covered is None:
            return
        first, at = max(first, covered.next_offset), at + 1
