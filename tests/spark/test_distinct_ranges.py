"""Each offset of a shard is read from one file, however many files have it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shards.model import SegmentKind
from spark_export.distinct_ranges import distinct
from spark_export.sealed_files import SharedName
from spark_export.snapshot import PlaceInFile, SegmentRange


def rows(file: int, first: int, end: int) -> SegmentRange:
    """Rows whose number in the file is their offset and 1,000 for each file."""
    return SegmentRange(
        SegmentKind.PARQUET, first, end, 100 * (end - first), PlaceInFile(SharedName(0, file), first + 1000 * file)
    )


def test_of_two_shared_files_with_the_same_offsets_one_is_read() -> None:
    assert distinct([rows(2, 0, 5), rows(1, 0, 5), rows(2, 9, 12)]) == [rows(1, 0, 5), rows(2, 9, 12)]
    assert distinct([rows(1, 0, 5), rows(2, 2, 8), rows(3, 3, 4)]) == [rows(1, 0, 5), rows(2, 5, 8)]


_bounds = st.tuples(st.integers(0, 30), st.integers(1, 12))


@given(st.lists(st.tuples(st.integers(1, 3), _bounds), max_size=6))
def test_every_offset_comes_once(shared: list[tuple[int, tuple[int, int]]]) -> None:
    runs = [rows(file, first, first + count) for file, (first, count) in shared]
    found = distinct(runs)
    offsets = [offset for one in found for offset in range(one.base_offset, one.next_offset)]
    assert offsets == sorted({offset for one in runs for offset in range(one.base_offset, one.next_offset)})
    for one in found:
        assert one.place is not None
        assert one == rows(one.place.file.file_id, one.base_offset, one.next_offset)
