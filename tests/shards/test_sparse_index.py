"""The sparse index leads to a place at or before what is wanted, and is read back as it was written or not at all."""

from __future__ import annotations

import attrs
from hypothesis import given
from hypothesis import strategies as st

from shards.segments.sparse_index import STORED_SIZE, SparseIndex


@attrs.frozen
class Indexed:
    offset: int
    position: int
    lsn: int
    newest_before_us: int


steps = st.tuples(st.integers(1, 50), st.integers(1, 1000), st.integers(1, 9), st.integers(0, 100))


@st.composite
def entries(draw: st.DrawFn) -> list[Indexed]:
    found: list[Indexed] = []
    offset = position = lsn = time_us = 0
    for more_offset, more_position, more_lsn, more_time in draw(st.lists(steps, max_size=20)):
        offset, position, lsn, time_us = (
            offset + more_offset,
            position + more_position,
            lsn + more_lsn,
            time_us + more_time,
        )
        found.append(Indexed(offset, position, lsn, time_us))
    return found


def index_of(indexed: list[Indexed]) -> SparseIndex:
    index = SparseIndex()
    for entry in indexed:
        index.add(entry.offset, entry.position, entry.lsn, entry.newest_before_us)
    return index


@given(entries(), st.integers(0, 3000))
def test_a_lookup_gives_the_last_place_at_or_before_the_wanted_one(indexed: list[Indexed], wanted: int) -> None:
    index = index_of(indexed)
    by_offset = [entry.position for entry in indexed if entry.offset <= wanted]
    by_lsn = [entry.position for entry in indexed if entry.lsn <= wanted]
    by_time = [entry.position for entry in indexed if entry.newest_before_us < wanted]
    assert index.position_before_offset(wanted, -1) == max(by_offset, default=-1)
    assert index.position_before_lsn(wanted, -1) == max(by_lsn, default=-1)
    assert index.position_before_time(wanted, -1) == max(by_time, default=-1)


@given(entries(), st.integers(0, 20_000), st.integers(0, 20_000))
def test_a_read_ends_at_the_last_known_place_it_may_reach_or_the_first_beyond(
    indexed: list[Indexed], after: int, limit: int
) -> None:
    index = index_of(indexed)
    positions = [entry.position for entry in indexed]
    within = [position for position in positions if after < position <= limit]
    beyond = [position for position in positions if position > after]
    found = index.last_position_up_to(limit, after)
    assert found == (max(within) if within else min(beyond, default=0))
    if found:
        assert index.offset_at(found) == indexed[positions.index(found)].offset


@given(entries(), st.data())
def test_parts_written_one_after_the_other_are_read_back_as_one(indexed: list[Indexed], data: st.DataObject) -> None:
    index = index_of(indexed)
    cut = data.draw(st.integers(0, len(indexed)))
    stored = index.encode(0, cut) + index.encode(cut, len(indexed))
    assert len(stored) == len(indexed) * STORED_SIZE
    found = SparseIndex.decode(stored + b"what a crash left behind", len(indexed))
    assert found is not None
    assert (found.offsets, found.positions, found.lsns, found.times) == (
        index.offsets,
        index.positions,
        index.lsns,
        index.times,
    )


@given(entries().filter(bool), st.data())
def test_a_damaged_or_short_index_is_not_used(indexed: list[Indexed], data: st.DataObject) -> None:
    stored = bytearray(index_of(indexed).encode(0, len(indexed)))
    assert SparseIndex.decode(bytes(stored[:-1]), len(indexed)) is None
    entry = data.draw(st.integers(0, len(indexed) - 1))
    bit = data.draw(st.integers(0, 36 * 8 - 1))  # the four numbers and their checksum
    stored[entry * STORED_SIZE + bit // 8] ^= 1 << bit % 8
    assert SparseIndex.decode(bytes(stored), len(indexed)) is None


def test_space_that_was_never_written_is_no_index() -> None:
    assert SparseIndex.decode(bytes(STORED_SIZE), 1) is None
