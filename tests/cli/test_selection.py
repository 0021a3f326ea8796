"""A read shows the records up to its end, its count, and from its time on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journal.cli.shown_records import Selection
from shards.format.record import Gap, StoredRecord


def records(first: int, next_: int) -> list[StoredRecord | Gap]:
    return [StoredRecord(offset, 1, 1, timestamp_us=offset * 10) for offset in range(first, next_)]


def offsets(chosen: list[StoredRecord | Gap]) -> list[int]:
    return [record.first_offset if isinstance(record, Gap) else record.offset for record in chosen]


def test_without_bounds_everything_is_shown() -> None:
    selection = Selection()
    assert offsets(selection.take(records(0, 5))) == [0, 1, 2, 3, 4]
    assert not selection.finished


def test_the_end_is_not_passed() -> None:
    selection = Selection(end_offset=3)
    assert offsets(selection.take(records(0, 5))) == [0, 1, 2]
    assert selection.finished
    assert selection.take(records(5, 9)) == []


def test_a_gap_does_not_count_as_a_record() -> None:
    selection = Selection(count=2)
    assert offsets(selection.take([*records(0, 1), Gap(1, 4), *records(4, 9)])) == [0, 1, 4]
    assert selection.finished


def test_a_gap_after_the_end_is_not_shown() -> None:
    assert offsets(Selection(end_offset=1).take([*records(0, 1), Gap(1, 4)])) == [0]


def test_a_count_of_zero_is_finished_before_it_begins() -> None:
    assert Selection(count=0).finished


def test_records_before_the_time_are_skipped_but_later_ones_out_of_order_are_not() -> None:
    late = StoredRecord(6, 1, 1, timestamp_us=1)
    selection = Selection(from_us=40)
    assert offsets(selection.take([*records(0, 6), late])) == [4, 5, 6]


@given(st.integers(0, 30), st.integers(0, 30), st.lists(st.integers(1, 7), max_size=8))
def test_how_the_records_are_cut_into_fetches_makes_no_difference(end: int, count: int, sizes: list[int]) -> None:
    selection = Selection(end_offset=end, count=count)
    shown: list[StoredRecord | Gap] = []
    at = 0
    for size in sizes:
        shown += selection.take(records(at, at + size))
        at += size
    assert offsets(shown) == list(range(min(at, end, count)))
