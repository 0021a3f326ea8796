"""What is lost with the memory is never acknowledged as durable, and no sequence is stored twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shards.idempotence.producer_state import REMEMBERED_RUNS, ProducerState, Relation
from shards.idempotence.resends import Answer, Place, answer_to, decide

BOTH = (False, True)


def answers(relation: Relation, place: Place, *, is_last: bool = False) -> set[Answer]:
    return {decide(relation, place, is_last=is_last, memory_lost=lost) for lost in BOTH}


def test_the_whole_table() -> None:
    for place in Place:
        for is_last in BOTH:
            assert answers(Relation.NEXT, place, is_last=is_last) == {Answer.STORE}
            assert answers(Relation.MISSING, place, is_last=is_last) == {Answer.LOST}
            assert decide(Relation.AHEAD, place, is_last=is_last, memory_lost=True) is Answer.STORE
            assert decide(Relation.AHEAD, place, is_last=is_last, memory_lost=False) is Answer.GAP
    for relation in (Relation.KNOWN, Relation.FORGOTTEN):
        for place in (Place.FILE, Place.TRIMMED_FILE):
            assert answers(relation, place) == {Answer.DURABLE_DUPLICATE}
        for place in (Place.TRIMMED, Place.MEMORY):
            assert answers(relation, place) == {Answer.MEMORY_DUPLICATE}
        assert answers(relation, Place.LOST) == {Answer.LOST}
    assert answers(Relation.KNOWN, Place.LOST, is_last=True) == {Answer.STORE}
    assert answers(Relation.FORGOTTEN, Place.LOST, is_last=True) == {Answer.LOST}


batches = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([Place.FILE, Place.MEMORY]), st.integers(0, 2)),
    min_size=1,
    max_size=90,
)


@given(batches, st.integers(0, 89), st.integers(1, 200))
def test_after_the_memory_is_lost_only_what_is_in_files_is_a_durable_duplicate(
    wanted: list[tuple[int, Place, int]], resent: int, resent_count: int
) -> None:
    """A batch that joined records in files with lost ones was acknowledged as durable by its first record alone."""
    state = ProducerState(1, 0)
    places: list[Place] = []
    own: list[int] = []
    sent: list[tuple[int, int]] = []
    for count, place, others in wanted:
        places += [place] * others
        state.accept(state.next_sequence, len(places), count)
        sent.append((state.next_sequence - count, len(places)))
        own += range(len(places), len(places) + count)
        places += [place] * count
    kept = [Place.LOST if place is Place.MEMORY else place for place in places]

    def places_of(first: int, end: int) -> tuple[Place, Place]:
        return min(kept[first:end]), max(kept[first:end])

    sequence, offset = sent[resent % len(sent)]
    answer, known = answer_to(state, sequence, resent_count, places_of)
    all_resent = [kept[each] for each in own if each >= offset][:resent_count]
    assert known in (offset, -1)
    assert (known == offset) == (resent % len(sent) >= len(sent) - REMEMBERED_RUNS or len(state.runs) < REMEMBERED_RUNS)
    if answer is Answer.DURABLE_DUPLICATE:
        assert set(all_resent) == {Place.FILE}
    elif answer is Answer.STORE:
        assert all(kept[each] is Place.LOST for number, each in sent if number >= sequence)
        state.store_again_from(sequence)
        assert state.next_sequence == sequence
        assert state.relation(sequence) is Relation.NEXT
    else:
        assert answer is Answer.LOST
        assert Place.LOST in all_resent or known == -1


@given(batches, st.integers(0, 200), st.integers(0, 200))
def test_what_is_not_published_is_never_forgotten_so_that_a_crash_finds_the_expected_sequence(
    wanted: list[tuple[int, Place, int]], published: int, cut: int
) -> None:
    """A producer with more than 64 runs on their way to the disk was recorded as having all of them stored."""
    state = ProducerState(1, 0)
    offset = sequence = following = 0
    cut = min(cut, published)
    stored = 0
    for count, _, others in wanted * 2:
        offset += others
        state.accept(sequence, offset, count, published)
        if offset < published:
            following = sequence + min(count, published - offset)
        stored += count
        sequence, offset = sequence + count, offset + count
    assert state.before(published).next_sequence == following
    restored = ProducerState.decode(state.before(published).encode())
    assert restored == state.before(published)
    assert len(restored.runs) <= REMEMBERED_RUNS
    assert state.before(cut).next_sequence <= sequence


def test_what_was_lost_before_the_known_records_is_not_taken_for_stored() -> None:
    state = ProducerState(1, 1)
    state.accept(1, 1, 1)
    assert answer_to(state, 0, 1, lambda *_: (Place.FILE, Place.FILE)) == (Answer.LOST, -1)
    state.memory_lost = True
    state.accept(5, 2, 1)
    assert answer_to(state, 3, 1, lambda *_: (Place.FILE, Place.FILE)) == (Answer.LOST, -1)
    assert answer_to(state, 1, 1, lambda *_: (Place.FILE, Place.FILE)) == (Answer.DURABLE_DUPLICATE, 1)
