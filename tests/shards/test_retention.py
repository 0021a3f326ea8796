from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.model import Retention
from shards.segments.retention import due


@attrs.frozen
class Segment:
    base_offset: int
    next_offset: int
    size_bytes: int
    newest_append_us: int
    closed: bool = True


SECOND_US = 1_000_000


@st.composite
def segments_of_a_shard(draw: st.DrawFn) -> list[Segment]:
    """Segments as a shard has them: adjoining, ages falling, the last one active or closed."""
    segments: list[Segment] = []
    offset = draw(st.integers(0, 5))
    append_us = 0
    for _ in range(draw(st.integers(0, 6))):
        next_offset = offset + draw(st.integers(0, 20))
        append_us += draw(st.integers(0, 30)) * SECOND_US
        segments.append(Segment(offset, next_offset, draw(st.integers(0, 100)), append_us))
        offset = next_offset
    if draw(st.booleans()) and segments:
        segments[-1] = attrs.evolve(segments[-1], closed=False)
    return segments


bounds = st.integers(0, 1) | st.integers(0, 120)
retentions = st.builds(Retention, max_age_s=bounds, max_bytes=bounds, max_records=bounds)
times = st.integers(0, 200).map(lambda seconds: seconds * SECOND_US)


@given(segments=segments_of_a_shard(), now_us=times)
def test_without_a_bound_nothing_is_due(segments: list[Segment], now_us: int) -> None:
    assert due(Retention(), segments, now_us) == 0


@given(retention=retentions, segments=segments_of_a_shard(), now_us=times)
def test_only_whole_closed_segments_are_due(retention: Retention, segments: list[Segment], now_us: int) -> None:
    offset = due(retention, segments, now_us)
    borders = {segment.base_offset for segment in segments} | {segment.next_offset for segment in segments} | {0}
    assert offset in borders
    assert all(offset <= segment.base_offset for segment in segments if not segment.closed)


@given(retention=retentions, segments=segments_of_a_shard(), now_us=times)
def test_what_stays_passes_no_bound_unless_it_is_active(
    retention: Retention, segments: list[Segment], now_us: int
) -> None:
    offset = due(retention, segments, now_us)
    left = [segment for segment in segments if segment.base_offset >= offset and segment.next_offset > offset]
    if left and left[0].closed:
        assert not retention.max_age_s or now_us - left[0].newest_append_us <= retention.max_age_s * SECOND_US
        assert not retention.max_bytes or sum(s.size_bytes for s in left) <= retention.max_bytes
        assert not retention.max_records or left[-1].next_offset - left[0].base_offset <= retention.max_records


@given(retention=retentions, segments=segments_of_a_shard(), now_us=times)
def test_nothing_goes_that_could_have_stayed(retention: Retention, segments: list[Segment], now_us: int) -> None:
    offset = due(retention, segments, now_us)
    dropped = [segment for segment in segments if segment.next_offset <= offset and segment.base_offset < offset]
    if dropped:
        newest = dropped[-1]
        with_it = segments[segments.index(newest) :]
        assert (
            (retention.max_age_s and now_us - newest.newest_append_us > retention.max_age_s * SECOND_US)
            or (retention.max_bytes and sum(s.size_bytes for s in with_it) > retention.max_bytes)
            or (retention.max_records and with_it[-1].next_offset - newest.base_offset > retention.max_records)
        )


@given(retention=retentions, segments=segments_of_a_shard(), now_us=times, later_us=times)
def test_waiting_never_brings_records_back(
    retention: Retention, segments: list[Segment], now_us: int, later_us: int
) -> None:
    assert due(retention, segments, now_us + later_us) >= due(retention, segments, now_us)


@given(retention=retentions, segments=segments_of_a_shard(), now_us=times)
def test_deciding_again_after_the_trim_drops_no_more(
    retention: Retention, segments: list[Segment], now_us: int
) -> None:
    offset = due(retention, segments, now_us)
    left = [segment for segment in segments if segment.base_offset >= offset and segment.next_offset > offset]
    assert due(retention, left, now_us) == 0


OLD = Segment(0, 10, 100, 10 * SECOND_US)
NEWER = Segment(10, 20, 100, 20 * SECOND_US)
ACTIVE = Segment(20, 25, 50, 30 * SECOND_US, closed=False)


@pytest.mark.parametrize(
    ("retention", "offset"),
    [
        (Retention(max_age_s=90), 0),
        (Retention(max_age_s=89), 10),
        (Retention(max_age_s=1), 20),
        (Retention(max_bytes=250), 0),
        (Retention(max_bytes=249), 10),
        (Retention(max_bytes=1), 20),
        (Retention(max_records=25), 0),
        (Retention(max_records=24), 10),
        (Retention(max_records=1), 20),
        (Retention(max_age_s=89, max_bytes=149), 20),
        (Retention(max_age_s=1, max_records=1_000), 20),
    ],
)
def test_the_first_bound_that_is_passed_wins(retention: Retention, offset: int) -> None:
    assert due(retention, [OLD, NEWER, ACTIVE], 100 * SECOND_US) == offset


def test_a_shard_of_closed_segments_only_may_lose_all_of_them() -> None:
    assert due(Retention(max_age_s=1), [OLD, NEWER], 100 * SECOND_US) == 20


def test_what_was_lost_before_the_oldest_segment_is_not_trimmed_but_stays_a_gap() -> None:
    # A trim is silent, a gap is not: readers must learn of records that were lost with the memory.
    assert due(Retention(max_bytes=1_000), [NEWER, ACTIVE], 100 * SECOND_US) == 0
    assert due(Retention(max_bytes=149), [NEWER, ACTIVE], 100 * SECOND_US) == 20
