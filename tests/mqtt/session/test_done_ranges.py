"""A set of places in ranges is just the set, whatever order they come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt.session.done_ranges import DoneRanges

places = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=60)


def lsn_of(offset: int) -> int:
    return 10 + offset // 3


@given(places)
def test_it_holds_what_was_put_in_and_nothing_else(added: list[tuple[str, int]]) -> None:
    ranges = DoneRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    assert {(shard, offset) for shard in "ab" for offset in range(-1, 33) if (shard, offset) in ranges} == set(added)
    items = list(ranges.items())
    assert len(ranges) == len(items)
    assert sum(next_offset - first_offset for _, first_offset, next_offset, _ in items) == len(set(added))


@given(places)
def test_neighbours_share_a_range_whatever_order_they_come_in(added: list[tuple[str, int]]) -> None:
    ranges = DoneRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    beginnings = {(shard, offset) for shard, offset in added if (shard, offset - 1) not in added}
    assert {(shard, first_offset) for shard, first_offset, _, _ in ranges.items()} == beginnings
    for _, _, next_offset, last_lsn in ranges.items():
        assert last_lsn == lsn_of(next_offset - 1)


@given(places, st.integers(9, 22))
def test_forgetting_keeps_everything_above_the_position(added: list[tuple[str, int]], position_lsn: int) -> None:
    ranges = DoneRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    ranges.forget(position_lsn)
    for shard, offset in added:
        assert lsn_of(offset) <= position_lsn or (shard, offset) in ranges
    assert all(last_lsn > position_lsn for _, _, _, last_lsn in ranges.items())
    assert len(ranges) == len(list(ranges.items()))


@given(places)
def test_its_items_make_it_anew(added: list[tuple[str, int]]) -> None:
    ranges = DoneRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    assert sorted(DoneRanges(ranges.items()).items()) == sorted(ranges.items())


@given(places)
def test_a_bounded_set_stops_growing_and_never_claims_what_was_not_put_in(added: list[tuple[str, int]]) -> None:
    ranges = DoneRanges(max_ranges=3)
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
        assert len(ranges) == len(list(ranges.items())) <= 3
    held = {(shard, offset) for shard in "ab" for offset in range(33) if (shard, offset) in ranges}
    assert held <= set(added)
