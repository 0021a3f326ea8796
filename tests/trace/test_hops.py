"""Durations of hops: they add up to those of the path, and quantiles are values that occurred."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.trace.hops import Hop, Path, measure, quantile

PATH = Path("delivery", (Hop("one", "A", "a", "b"), Hop("two", "B", "b", "c"), Hop("three", "C", "c", "d")))
TIMES = st.lists(st.tuples(*[st.integers(0, 10**9)] * 4), min_size=1, max_size=50)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_smallest_value_that_the_part_does_not_exceed(values: list[int], part: float) -> None:
    found = quantile(sorted(values), part)
    within = sum(value <= found for value in values) / len(values)
    below = sum(value < found for value in values) / len(values)
    assert found in values
    assert within >= part - 1e-9
    assert below < part


def test_quantiles_of_a_hundred_values() -> None:
    ordered = list(range(1, 101))
    assert [quantile(ordered, part) for part in (0.5, 0.99, 1.0)] == [50, 99, 100]


@given(TIMES)
def test_the_shares_of_the_hops_add_up_to_the_whole(taken: list[tuple[int, ...]]) -> None:
    times = {
        point: {number: sum(durations[: place + 1]) for number, durations in enumerate(taken)}
        for place, point in enumerate("abcd")
    }
    measured = measure(PATH, times)
    assert measured is not None
    assert measured.messages == len(taken)
    whole = sum(sum(durations[1:]) for durations in taken)
    assert sum(hop.share for hop in measured.hops) == pytest.approx(1.0 if whole else 0.0)
    for place, hop in enumerate(measured.hops):
        durations_us = sorted(durations[place + 1] / 1000 for durations in taken)
        assert hop.p50_us == quantile(durations_us, 0.5)
        assert hop.p99_us == quantile(durations_us, 0.99)


def test_a_message_that_is_missing_at_a_point_is_left_out_everywhere() -> None:
    times = {"a": {1: 0, 2: 0}, "b": {1: 1000, 2: 5000}, "c": {1: 3000}, "d": {1: 6000, 2: 9000}}
    measured = measure(PATH, times)
    assert measured is not None
    assert measured.messages == 1
    assert [hop.p50_us for hop in measured.hops] == [1.0, 2.0, 3.0]
    assert measured.p50_us == 6.0


def test_no_message_at_all_points_is_no_measurement() -> None:
    assert measure(PATH, {"a": {1: 0}, "b": {}, "c": {1: 1}, "d": {1: 2}}) is None
