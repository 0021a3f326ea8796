"""A set of places in ranges is just the set, whatever order they come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt.session.acked_ranges import AckedRanges

places = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=60)


def lsn_of(offset: int) -> int:
    return 10 + offset // 3


def held_by(ranges: AckedRanges, *, above_lsn: int = 0) -> set[tuple[str, int]]:
    return {
        (shard, offset)
        for shard in "ab"
        for offset in range(-1, 33)
        if (shard, offset, above_lsn + lsn_of(offset)) in ranges
    }


@given(places)
def test_it_holds_what_was_put_in_and_nothing_else(added: list[tuple[str, int]]) -> None:
    ranges = AckedRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    assert held_by(ranges) == set(added)
    items = list(ranges.items())
    assert len(ranges) == len(items)
    assert sum(next_offset - first_offset for _, first_offset, next_offset, _ in items) == len(set(added))


@given(places)
def test_neighbours_share_a_range_whatever_order_they_come_in(added: list[tuple[str, int]]) -> None:
    ranges = AckedRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    beginnings = {(shard, offset) for shard, offset in added if (shard, offset - 1) not in added}
    assert {(shard, first_offset) for shard, first_offset, _, _ in ranges.items()} == beginnings
    for _, _, next_offset, last_lsn in ranges.items():
        assert last_lsn == lsn_of(next_offset - 1)


@given(places, st.integers(9, 22))
def test_forgetting_keeps_everything_above_the_position(added: list[tuple[str, int]], position_lsn: int) -> None:
    ranges = AckedRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    ranges.forget(position_lsn)
    for shard, offset in added:
        assert lsn_of(offset) <= position_lsn or (shard, offset, lsn_of(offset)) in ranges
    assert all(last_lsn > position_lsn for _, _, _, last_lsn in ranges.items())
    assert len(ranges) == len(list(ranges.items()))


@given(places)
def test_its_items_make_it_anew(added: list[tuple[str, int]]) -> None:
    ranges = AckedRanges()
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
    assert sorted(AckedRanges(ranges.items()).items()) == sorted(ranges.items())


@given(places)
def test_a_bounded_set_stops_growing_and_never_claims_what_was_not_put_in(added: list[tuple[str, int]]) -> None:
    ranges = AckedRanges(max_ranges=3)
    for shard, offset in added:
        ranges.add(shard, offset, lsn_of(offset))
        assert len(ranges) == len(list(ranges.items())) <= 3
    assert held_by(ranges) <= set(added)


@given(places, st.integers(0, 31), st.lists(st.integers(0, 30), max_size=30, unique=True))
def test_what_was_finished_of_a_deleted_shard_says_nothing_about_its_successor(
    before: list[tuple[str, int]], taken: int, finished: list[int]
) -> None:
    """Records of the successor are taken in order and finished in any; what is not taken must not be held."""
    ranges = AckedRanges()
    for shard, offset in before:
        ranges.add(shard, offset, lsn_of(offset))
    assert held_by(ranges, above_lsn=1000) == set()
    done = {offset for offset in finished if offset < taken}
    for offset in finished:
        if offset in done:
            ranges.add("a", offset, 1000 + lsn_of(offset))
    held = held_by(ranges, above_lsn=1000)
    assert {("a", offset) for offset in done} <= held
    assert all(shard == "a" and offset < taken for shard, offset in held)
    assert len(ranges) == len(list(ranges.items()))
