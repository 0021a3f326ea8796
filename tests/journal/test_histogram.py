"""Histograms: what each bound takes."""

from __future__ import annotations

import pytest

from journal.telemetry.histogram import COUNT_BOUNDS, DURATION_BOUNDS_S, SIZE_BOUNDS_BYTES, Histogram


@pytest.mark.parametrize(
    ("value", "counts"),
    [(0.0, (1, 0, 0)), (1.0, (1, 0, 0)), (1.5, (0, 1, 0)), (2.0, (0, 1, 0)), (2.1, (0, 0, 1)), (1e9, (0, 0, 1))],
)
def test_a_value_counts_for_the_lowest_bound_that_is_not_below_it(value: float, counts: tuple[int, ...]) -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(value)
    assert histogram.counts() == counts
    assert histogram.total == value


@pytest.mark.parametrize("bounds", [COUNT_BOUNDS, DURATION_BOUNDS_S, SIZE_BOUNDS_BYTES])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
