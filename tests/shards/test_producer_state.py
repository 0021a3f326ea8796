"""A producer's batch is stored once: the compact state knows what a plain list of all records knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import CorruptionError, FormatVersionError
from shards.idempotence.producer_state import HALF, REMEMBERED_RUNS, SEQUENCE_MODULUS, ProducerState, Relation

# A batch: how many records, and how many records of others were stored before it.
batches = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3)), min_size=1, max_size=30)
first_sequences = st.sampled_from([0, 1, 7, SEQUENCE_MODULUS - 1, SEQUENCE_MODULUS - 40, HALF - 3])


def stored(first: int, wanted: list[tuple[int, int]]) -> tuple[ProducerState, dict[int, int]]:
    """State after the batches, and the model: the offset of each sequence."""
    state = ProducerState(1, first)
    offsets: dict[int, int] = {}
    sequence, offset = first, 0
    for count, others in wanted:
        offset += others
        assert state.relation(sequence) is Relation.NEXT
        state.accept(sequence, offset, count)
        for number in range(count):
            offsets[(sequence + number) % SEQUENCE_MODULUS] = offset + number
        sequence = (sequence + count) % SEQUENCE_MODULUS
        offset += count
    return state, offsets


@given(first_sequences, batches)
def test_every_stored_record_is_recognised_with_its_offset(first: int, wanted: list[tuple[int, int]]) -> None:
    state, offsets = stored(first, wanted)
    for sequence, offset in offsets.items():
        assert state.is_repeat(sequence)
        assert state.relation(sequence) is Relation.KNOWN
        assert state.offset_of(sequence) == offset


@given(first_sequences, batches, st.integers(0, 1000))
def test_only_the_next_sequence_follows_and_none_ahead_is_a_repeat(
    first: int, wanted: list[tuple[int, int]], ahead: int
) -> None:
    state, _ = stored(first, wanted)
    sequence = (first + sum(count for count, _ in wanted) + ahead) % SEQUENCE_MODULUS
    assert state.relation(sequence) is (Relation.AHEAD if ahead else Relation.NEXT)
    assert not state.is_repeat(sequence)
    assert state.offset_of(sequence) == -1


def test_a_producer_on_its_own_costs_one_run_however_much_it_sends() -> None:
    state, _ = stored(SEQUENCE_MODULUS - 100, [(10, 0)] * 1000)
    assert len(state.runs) == 1
    assert state.next_sequence == 9900


def test_the_oldest_runs_are_forgotten_first_and_their_repeats_still_recognised() -> None:
    state, offsets = stored(0, [(2, 1)] * (REMEMBERED_RUNS + 10))
    assert len(state.runs) == REMEMBERED_RUNS
    assert [state.offset_of(sequence) for sequence in (0, 19)] == [-1, -1]
    assert state.is_repeat(0)
    assert state.offset_of(20) == offsets[20]


def test_a_run_stays_short_enough_to_tell_a_repeat_from_what_is_ahead() -> None:
    state = ProducerState(1, 0)
    step = 1 << 29
    for number in range(9):
        state.accept(number * step % SEQUENCE_MODULUS, number * step, step)
    assert all(length < HALF for _, _, length in state.runs)
    assert state.offset_of(state.next_sequence - 1) == 9 * step - 1


def test_after_memory_was_lost_a_producer_may_be_ahead_but_not_behind() -> None:
    state, _ = stored(0, [(10, 0)])
    state.memory_lost = True
    assert state.relation(17) is Relation.AHEAD
    assert state.relation(9) is Relation.KNOWN
    state.accept(17, 10, 3)
    assert not state.memory_lost
    assert state.relation(40) is Relation.AHEAD
    # The offsets went on without a gap, the sequences did not: they are not one run.
    assert [state.offset_of(sequence) for sequence in (9, 12, 17, 19)] == [9, -1, 10, 12]


@given(first_sequences, batches)
def test_the_stored_form_is_read_back_as_it_was(first: int, wanted: list[tuple[int, int]]) -> None:
    state, _ = stored(first, wanted)
    assert ProducerState.decode(state.encode()) == state


def test_a_stored_form_that_is_cut_short_or_of_a_newer_program_is_refused() -> None:
    value = stored(0, [(1, 1)] * 3)[0].encode()
    for size in (1, 5, len(value) - 1):
        with pytest.raises(CorruptionError, match=f"{size} bytes"):
            ProducerState.decode(value[:size])
    for newer in (b"", b"\x03" + value[1:]):
        with pytest.raises(FormatVersionError, match="reads formats 1 and 2"):
            ProducerState.decode(newer)


@given(first_sequences, batches, st.integers(0, 2000))
def test_what_is_kept_before_an_offset_knows_the_records_before_it_and_expects_the_next_one(
    first: int, wanted: list[tuple[int, int]], offset: int
) -> None:
    state, offsets = stored(first, wanted)
    kept = state.before(offset)
    below = {sequence: place for sequence, place in offsets.items() if place < offset}
    assert kept.next_sequence == (first + len(below)) % SEQUENCE_MODULUS
    assert {sequence: kept.offset_of(sequence) for sequence in below} == below
    assert all(kept.offset_of(sequence) == -1 for sequence in offsets if sequence not in below)
    assert not kept.memory_lost


def test_what_is_kept_before_a_jump_lets_the_jump_come_again() -> None:
    state, _ = stored(0, [(10, 0)])
    state.memory_lost = True
    state.accept(17, 10, 3)
    kept = state.before(10)
    assert (kept.next_sequence, kept.memory_lost) == (10, True)
    assert kept.relation(17) is Relation.AHEAD


def test_a_repeat_of_what_was_forgotten_is_known_as_stored_without_its_offset() -> None:
    state, offsets = stored(0, [(2, 1)] * (REMEMBERED_RUNS + 10))
    assert {state.relation(sequence) for sequence in range(20)} == {Relation.FORGOTTEN}
    assert state.relation(20) is Relation.KNOWN
    assert state.forgotten_range() == (offsets[0], offsets[20])
    # Also without any run: all are stored that are not ahead.
    state.runs.clear()
    assert state.relation(state.next_sequence - 1) is Relation.FORGOTTEN
    assert state.forgotten_range()[0] == offsets[0]


def test_what_was_lost_among_forgotten_records_is_not_taken_for_stored() -> None:
    state, _ = stored(0, [(2, 1)] * 3)
    state.memory_lost = True
    state.accept(10, 100, 2)
    for number in range(REMEMBERED_RUNS):
        state.accept(12 + 2 * number, 200 + 10 * number, 2)
    assert state.relation(3) is Relation.MISSING
    assert state.relation(8) is Relation.MISSING
    assert state.relation(10) is Relation.FORGOTTEN


@given(first_sequences, batches, st.data())
def test_the_ranges_from_a_sequence_on_are_the_offsets_of_its_records(
    first: int, wanted: list[tuple[int, int]], data: st.DataObject
) -> None:
    state, offsets = stored(first, wanted)
    at = data.draw(st.integers(0, len(offsets) - 1))
    sequence = list(offsets)[at]
    found = [offset for start, end in state.ranges_from(sequence) for offset in range(start, end)]
    assert sorted(found) == list(offsets.values())[at:]


@given(st.integers(1, 20), st.integers(0, 400))
def test_runs_that_a_crash_may_undo_are_saved_up_to_an_offset_and_not_beyond_their_number(more: int, at: int) -> None:
    """They are not forgotten before they are durable, so there may be more of them than are saved."""
    state = ProducerState(1, 0)
    count = REMEMBERED_RUNS + more
    for number in range(count):
        state.accept(2 * number, 3 * number, 2, published_offset=0)
    assert len(state.runs) == count
    kept = state.before(at)
    assert len(state.runs) == count
    assert len(kept.runs) <= REMEMBERED_RUNS
    below = sum(max(0, min(2, at - 3 * number)) for number in range(count))
    assert kept.next_sequence == below
    assert {kept.relation(sequence) for sequence in range(below)} <= {Relation.KNOWN, Relation.FORGOTTEN}
    assert ProducerState.decode(kept.encode()) == kept


def test_a_full_state_of_version_1_is_read_with_all_that_it_forgot_as_stored() -> None:
    state, _ = stored(0, [(2, 1)] * REMEMBERED_RUNS)
    old = b"\x01" + state.encode()[1:]
    found = ProducerState.decode(old)
    assert found.runs == state.runs
    assert found.relation(SEQUENCE_MODULUS - 1) is Relation.FORGOTTEN
