"""Which file is read for each offset of a shard, where several have it. Pure.

While shared files are rewritten, old and new files lie beside each other until the old ones are removed. The views of a
data directory say which ones count. In a copy of the files alone they all look alike, and have the same records under
the same offsets; so it does not matter which one is read, as long as each offset is read once.
"""

from __future__ import annotations

from collections.abc import Iterable

from spark_export.sealed_files import SharedName
from spark_export.snapshot import SegmentRange


def distinct(rows: Iterable[SegmentRange]) -> list[SegmentRange]:
    """Ranges that have each offset once, and every offset of the given ranges, in the order of offsets.

    Args:
        rows: Records in shared files, in any order; of several that begin at the same offset the longest one is taken
            first.
    """
    found = []
    end = 0
    for one in sorted(rows, key=_order):
        first = max(one.base_offset, end)
        if first < one.next_offset:
            end = one.next_offset
            found.append(one.clipped(first, end))
    return found


def _order(one: SegmentRange) -> tuple[int, int, SharedName]:
    assert one.place is not None  # it is in a shared file
    return one.base_offset, -one.next_offset, one.place.file
