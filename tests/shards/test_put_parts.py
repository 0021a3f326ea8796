"""Parts of shared files take the place of the segments of the same range, in whatever files these are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.model import Mode, ShardConfig
from shards.segments.chunks import ChunkPool
from shards.segments.parquet_segment import ParquetSegment, SharedPlace
from shards.segments.segment import Segment
from shards.segments.shard import Shard

POOL = ChunkPool(1 << 20)


def parts_of(ranges: list[tuple[int, int]], file_id: int = 1) -> list[ParquetSegment]:
    return [
        ParquetSegment(
            "/sealed",
            "s",
            7,
            base_offset=first,
            next_offset=end,
            size_bytes=end - first,
            created_us=1,
            newest_append_us=1,
            last_lsn=end,
            newest_us=1,
            place=SharedPlace(1, file_id, 100 + first),
        )
        for first, end in ranges
    ]


def shard_of(counts: list[int], mode: Mode = Mode.FILE) -> Shard:
    """A shard with closed segments of so many records, and an open one behind them."""
    shard = Shard(7, "s", ShardConfig(), 1)
    for count in counts:
        segment = shard.open_segment(mode, shard.next_offset, 1, "/log", POOL)
        segment.append(b"x" * count, shard.next_offset + count, shard.next_offset + count, 1, 1)
        shard.next_offset += count
    shard.open_segment(Mode.FILE, shard.next_offset, 1, "/log", POOL)
    shard.publish(shard.published_now())
    return shard


def ranges_of(shard: Shard) -> list[tuple[int, int, bool]]:
    return [(each.base_offset, each.next_offset, isinstance(each, ParquetSegment)) for each in shard.segments]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_any_division_of_a_range_of_whole_segments_replaces_it_once(counts: list[int], data: st.DataObject) -> None:
    shard = shard_of(counts)
    bounds = [segment.base_offset for segment in shard.segments]
    first, last = sorted(data.draw(st.tuples(st.integers(0, len(counts) - 1), st.integers(0, len(counts) - 1))))
    begin, end = bounds[first], bounds[last + 1]
    cuts = sorted({begin, end, *data.draw(st.lists(st.integers(begin, end), max_size=3))})
    parts = parts_of(list(pairwise(cuts)))
    trimmed = data.draw(st.integers(0, begin))
    shard.trim(trimmed)
    old: list[Segment] = [each for each in shard.segments if begin <= each.base_offset < end]
    assert shard.put_parts(parts) == old
    assert shard.put_parts(parts) == [], "put in their place twice"
    assert [segment for segment in shard.segments if segment in parts] == parts
    following = shard.segments[0].base_offset
    for segment in shard.segments:
        assert segment.base_offset == following
        following = segment.next_offset
    for offset in range(shard.start_offset, shard.published_offset):
        found, at = shard.segment_at(offset)
        assert found is not None
        assert found.base_offset <= at == offset < found.next_offset
    again = parts_of([(begin, end)], file_id=2)
    assert shard.put_parts(again) == parts, "rewritten"
    assert shard.put_parts(again) == []


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.data())
def test_parts_below_a_trim_within_the_range_are_left_out(counts: list[int], data: st.DataObject) -> None:
    """A segment with records of two days, the first trimmed: its parts were not put, and written again for ever."""
    shard = shard_of(counts)
    end = shard.next_offset
    cuts = sorted({0, end, *data.draw(st.lists(st.integers(0, end), max_size=3))})
    parts = parts_of(list(pairwise(cuts)))
    trimmed = data.draw(st.integers(0, end - 1))
    shard.trim(trimmed)
    old = shard.segments[:-1]
    assert shard.put_parts(parts) == old
    assert shard.put_parts(parts) == [], "put in their place twice"
    *sealed, following = shard.segments
    assert all(isinstance(segment, ParquetSegment) for segment in sealed)
    assert [segment.next_offset for segment in sealed] == [
        part.next_offset for part in parts if part.next_offset > trimmed
    ]
    assert sealed[0].base_offset <= trimmed
    assert all(one.next_offset == two.base_offset for one, two in pairwise([*sealed, following]))


def test_what_was_trimmed_is_not_needed_at_the_beginning() -> None:
    shard = shard_of([3, 3, 3])
    shard.trim(7)
    assert [each.base_offset for each in shard.put_parts(parts_of([(0, 3), (3, 6), (6, 9)]))] == [6]
    assert ranges_of(shard) == [(6, 9, True), (9, 9, False)]
    merged = parts_of([(0, 9)], file_id=2)
    assert [each.base_offset for each in shard.put_parts(merged)] == [6]
    assert ranges_of(shard) == [(7, 9, True), (9, 9, False)]
    assert shard.put_parts(merged) == [], "put in their place twice"


def test_a_range_that_is_not_there_any_more_is_left_alone() -> None:
    shard = shard_of([3, 3])
    shard.trim(6)
    assert shard.put_parts(parts_of([(0, 3), (3, 6)])) == []
    for other in ([(0, 4)], [(1, 3)], [(3, 7)], [(20, 22)]):
        whole = shard_of([3, 3])
        before = ranges_of(whole)
        assert whole.put_parts(parts_of(other)) == [], other
        assert ranges_of(whole) == before


def test_segments_in_memory_and_open_ones_are_not_replaced() -> None:
    memory = shard_of([3], Mode.MEMORY)
    assert memory.put_parts(parts_of([(0, 3)])) == []
    open_one = Shard(7, "s", ShardConfig(), 1)
    open_one.open_segment(Mode.FILE, 0, 1, "/log", POOL).append(b"x" * 3, 3, 3, 1, 1)
    open_one.next_offset = 3
    open_one.publish(open_one.published_now())
    assert open_one.put_parts(parts_of([(0, 3)])) == []


def test_the_published_segment_may_be_replaced() -> None:
    shard = shard_of([3])
    shard.segments.pop()
    shard.publish(shard.published_now())
    (log,) = shard.segments
    assert shard.published_segment is log
    parts = parts_of([(0, 2), (2, 3)])
    assert shard.put_parts(parts) == [log]
    assert shard.published_segment is parts[-1]
    assert shard.visible_end(parts[0]) == 2
    assert shard.info(with_segments=False).size_bytes == 3


@pytest.mark.parametrize("mode", [Mode.MEMORY, Mode.FILE])
@pytest.mark.parametrize("counts", [[0, 3, 2], [3, 0, 2], [0, 3, 0, 2]])
def test_segments_without_records_are_in_no_part_and_in_the_way_of_none(counts: list[int], mode: Mode) -> None:
    """A switch to memory and back at once left one: the parts were not put, and written again and again."""
    shard = Shard(7, "s", ShardConfig(), 1)
    for count in counts:
        segment = shard.open_segment(Mode.FILE if count else mode, shard.next_offset, 1, "/log", POOL)
        if count:
            segment.append(b"x" * count, shard.next_offset + count, shard.next_offset + count, 1, 1)
            shard.next_offset += count
    shard.open_segment(Mode.FILE, shard.next_offset, 1, "/log", POOL)
    shard.publish(shard.published_now())
    assert len(shard.put_parts(parts_of([(0, 5)]))) == len(counts)
    assert ranges_of(shard) == [(0, 5, True), (5, 5, False)]


def test_a_part_of_which_half_was_trimmed_begins_behind_the_trimmed_records() -> None:
    shard = shard_of([10])
    (whole,) = parts_of([(0, 10)])
    shard.put_parts([whole])
    assert shard.trim(4) == []
    assert shard.segments[0] is whole, "fewer than half of the records were trimmed"
    assert shard.trim(5) == [whole]
    shorter = shard.segments[0]
    assert isinstance(shorter, ParquetSegment)
    assert (shorter.base_offset, shorter.next_offset, shorter.size_bytes, shorter.place.first_row) == (5, 10, 5, 105)
    assert not shorter.is_recorded
    assert shard.put_parts([whole]) == [], "the decision of the whole part is applied again after a crash"
    assert shard.trim(7) == []
    assert shard.segments[0] is shorter
    assert [each.base_offset for each in shard.trim(10)] == [5]


def test_a_published_part_stays_visible_as_a_whole_when_it_gets_shorter() -> None:
    shard = shard_of([10])
    del shard.segments[1]
    shard.published_segment, shard.published_position = shard.segments[0], shard.segments[0].end
    shard.put_parts(parts_of([(0, 10)]))
    shard.trim(8)
    assert shard.published_segment is shard.segments[0]
    assert shard.visible_end(shard.segments[0]) == shard.segments[0].end == 2
    assert shard.segment_at(8) == (shard.segments[0], 8)


@given(st.integers(1, 50), st.lists(st.integers(0, 50), max_size=8).map(sorted))
def test_at_most_half_of_the_records_that_a_part_counts_were_trimmed(count: int, trims: list[int]) -> None:
    shard = shard_of([count])
    shard.put_parts(parts_of([(0, count)]))
    changes = 0
    for offset in trims:
        before = shard.segments[0]
        shard.trim(min(offset, count - 1))
        first = shard.segments[0]
        assert isinstance(first, ParquetSegment)
        changes += first is not before
        live = first.next_offset - shard.start_offset
        assert first.base_offset <= shard.start_offset
        assert first.next_offset - first.base_offset < 2 * live + 1
        assert first.place.first_row == 100 + first.base_offset, "rows follow offsets"
    assert changes <= count.bit_length()


def test_a_published_segment_of_which_all_was_trimmed_moves_to_the_new_file_as_well() -> None:
    """Otherwise the file that was rewritten would stay, and be rewritten again and again."""
    shard = shard_of([3, 3])
    del shard.segments[2]
    shard.published_segment, shard.published_position = shard.segments[1], shard.segments[1].end
    (whole,) = parts_of([(0, 6)])
    shard.put_parts([whole])
    assert shard.trim(6) == []
    (rewritten,) = parts_of([(0, 6)], file_id=2)
    assert shard.put_parts([rewritten]) == [whole]
    assert shard.segments == [rewritten]
    assert shard.published_segment is rewritten
    assert shard.put_parts([rewritten]) == [], "put in its place twice"
