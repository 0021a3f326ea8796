"""What pairs of runs prove about two states of the program."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paired import compare, interval_of_median, pairs_of

RATES = st.floats(1.0, 1e7)


@given(st.lists(st.tuples(RATES, RATES), min_size=1, max_size=40))
def test_the_ratio_lies_in_its_interval_and_that_in_the_spread(pairs: list[tuple[float, float]]) -> None:
    found = compare("x", "records/s", pairs)
    assert found.lowest <= found.ratio <= found.highest
    assert (found.low is None) == (found.high is None) == (len(pairs) < 6)
    if found.low is not None and found.high is not None:
        assert found.lowest <= found.low <= found.ratio <= found.high <= found.highest


def test_the_interval_has_the_true_median_as_often_as_it_says() -> None:
    rng = random.Random(5)
    held = 0
    for _ in range(2000):
        low, high = interval_of_median(sorted(rng.expovariate(1.0) for _ in range(11)))
        assert low is not None
        assert high is not None
        held += low <= 0.6931 <= high
    assert held / 2000 >= 0.95


@pytest.mark.parametrize(
    ("unit", "ratios", "verdict"),
    [
        ("records/s", [1.2, 1.3, 1.1, 1.2, 1.25, 1.15], "better"),
        ("us", [1.2, 1.3, 1.1, 1.2, 1.25, 1.15], "worse"),
        ("records/s", [0.8, 0.9, 0.7, 0.8, 0.85, 0.95], "worse"),
        ("ms", [0.8, 0.9, 0.7, 0.8, 0.85, 0.95], "better"),
        ("records/s", [1.0, 1.01, 0.99, 1.02, 0.98, 1.0], "same"),
        ("records/s", [1.5, 0.6, 1.0, 1.1, 0.9, 1.0], "not decided"),
        ("records/s", [1.2, 1.3, 1.1], "too few pairs"),
    ],
)
def test_what_is_said_is_what_the_pairs_prove(unit: str, ratios: list[float], verdict: str) -> None:
    assert compare("x", unit, [(100.0, 100.0 * ratio) for ratio in ratios]).verdict == verdict


def test_rows_that_one_state_has_not_got_are_left_out() -> None:
    assert pairs_of({"a": 1.0, "b": 2.0, "c": 0.0}, {"b": 3.0, "c": 1.0, "d": 4.0}) == {"b": (2.0, 3.0)}
