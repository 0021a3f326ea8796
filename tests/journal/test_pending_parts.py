"""Parts of a decision go into their shards one shard after the other, and into some shards before their turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from journal.engine.state.pending_parts import PendingParts, Run, runs_of
from journal.engine.wal.entry_payloads import ConvertedFile, ConvertedPart, FilesConverted

SHARDS = st.integers(1, 6)
DECISIONS = st.lists(st.dictionaries(SHARDS, st.lists(st.booleans(), min_size=1, max_size=3)), max_size=4)


def decision_of(number: int, shards: dict[int, list[bool]]) -> FilesConverted:
    """For each shard so many parts; True if there is a gap before the part."""
    parts = []
    for shard_id, gaps in sorted(shards.items()):
        offset = 10 * number
        for has_gap in gaps:
            offset += has_gap
            parts.append(ConvertedPart(shard_id, offset, offset + 2, 0, 0, 0, 0, 0, 0, 0))
            offset += 2
    return FilesConverted((ConvertedFile(number, 7, 0, 0, b""),), tuple(parts))


@given(DECISIONS, st.lists(SHARDS | st.none()))
def test_every_run_is_taken_and_those_of_a_shard_in_the_order_of_the_decisions(
    wanted: list[dict[int, list[bool]]], turns: list[int | None]
) -> None:
    pending = PendingParts()
    decisions = [decision_of(number, shards) for number, shards in enumerate(wanted)]
    for decision in decisions:
        pending.add(decision)
    taken: dict[int, list[Run]] = {}

    def take(run: Run) -> None:
        of_shard = taken.setdefault(run.shard_id, [])
        if run in of_shard:
            # Before its turn and after it: only while nothing later of the shard was taken.
            assert of_shard[-1].files == run.files
        else:
            of_shard.append(run)

    for shard_id in turns:
        if shard_id is not None:
            for run in pending.take_of(shard_id):
                assert run.shard_id == shard_id
                take(run)
            missing = [run for decision in decisions for run in runs_of(decision) if run.shard_id == shard_id]
            assert taken.get(shard_id, []) == missing, "all of them, those that were taken before included"
        elif (following := pending.take_next()) is not None:
            take(following)
    while (following := pending.take_next()) is not None:
        take(following)
    assert not pending
    for shard_id in range(1, 7):
        expected = [run for decision in decisions for run in runs_of(decision) if run.shard_id == shard_id]
        assert taken.get(shard_id, []) == expected
    assert [list(pending.take_of(shard_id)) for shard_id in (1, 6)] == [[], []]


def test_parts_that_were_taken_early_are_not_taken_again() -> None:
    pending = PendingParts()
    pending.add(decision_of(1, {1: [False], 2: [False, True], 3: [False]}))
    assert len(list(pending.take_of(2))) == 2
    assert list(pending.take_of(2)) == []
    runs = [pending.take_next(), pending.take_next(), pending.take_next()]
    assert [run.shard_id if run is not None else None for run in runs] == [1, 3, None]
