"""Up to which lsn two histories of one store are the same, whatever was restored in between."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.history import HistoryGap, common_lsn


def gaps(*numbers: tuple[int, int]) -> list[HistoryGap]:
    return [HistoryGap(*one) for one in numbers]


@pytest.mark.parametrize(
    ("known", "found", "expected"),
    [
        ([], [], None),
        (gaps((5, 100)), gaps((5, 100)), None),
        ([], gaps((5, 100)), 5),
        (gaps((5, 100)), gaps((5, 100), (140, 200)), 140),
        # Missed both: the older one has changed what the newer one left.
        ([], gaps((5, 100), (140, 200)), 5),
        # The same backup a second time.
        (gaps((5, 100)), gaps((5, 200)), 5),
        # An older backup, and then a newer one.
        (gaps((5, 100)), gaps((9, 200)), 5),
        (gaps((9, 100)), gaps((5, 200)), 5),
    ],
)
def test_examples(known: list[HistoryGap], found: list[HistoryGap], expected: int | None) -> None:
    assert common_lsn(known, found) == expected


@attrs.frozen
class Life:
    """A store between two restores: its gaps, and the lsns that belong to its history."""

    gaps: tuple[HistoryGap, ...]
    lsns: tuple[int, ...]


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(1, 5)), max_size=6), st.data())
def test_what_a_client_keeps_is_in_both_histories_and_what_it_gives_up_is_not(
    restores: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """Each restore takes some backup of some earlier life; then some lsns are given out, above all before."""
    lives = [Life((), tuple(range(1, 6)))]
    newest = 5
    for number, at, count in restores:
        life = lives[number % len(lives)]
        kept = life.lsns[: at % (len(life.lsns) + 1)]
        first = newest + 10
        newest = first + count - 1
        gap = HistoryGap(kept[-1] if kept else 0, first)
        lives.append(
            Life(
                (*[one for one in life.gaps if one.lsn_after <= gap.lsn_before], gap),
                (*kept, *range(first, newest + 1)),
            )
        )
    before = data.draw(st.sampled_from(lives))
    after = data.draw(st.sampled_from(lives))
    lsn = common_lsn(before.gaps, after.gaps)
    if before is after:
        assert lsn is None
        return
    assert lsn is not None
    shared = {*before.lsns} & {*after.lsns}
    assert shared == {one for one in before.lsns if one <= lsn} == {one for one in after.lsns if one <= lsn}
