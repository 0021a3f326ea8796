"""The arithmetic of a comparison of two states of the program: ratios of pairs of runs, and what they prove."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from math import comb

import attrs

CONFIDENCE = 0.95
MARGIN = 0.03
"""Two states whose ratio is surely this close to 1 count as the same."""


@attrs.frozen(slots=True)
class Comparison:
    """One row of a comparison.

    Attributes:
        key: Of the row.
        unit: Of its figures.
        before: Median of the runs of the other state.
        now: Median of the runs of this state.
        ratio: Median of the ratios, this state over the other one, each of two runs that followed each other.
        lowest: Smallest ratio.
        highest: Largest ratio.
        low: The true median of the ratios is at least this, with `CONFIDENCE`; None with too few pairs.
        high: The same, at most.
        pairs: Number of pairs.
    """

    key: str
    unit: str
    before: float
    now: float
    ratio: float
    lowest: float
    highest: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def verdict(self) -> str:
        """What the pairs prove: better, worse, the same within the margin, or nothing."""
        if self.low is None or self.high is None:
            return "too few pairs"
        if self.low >= 1 - MARGIN and self.high <= 1 + MARGIN:
            return "same"
        if self.low <= 1 <= self.high:
            return "not decided"
        return "better" if (self.low > 1) == self.unit.endswith("/s") else "worse"


def compare(key: str, unit: str, pairs: Sequence[tuple[float, float]]) -> Comparison:
    """Compare the figures of a row.

    Args:
        key: Of the row.
        unit: Of the figures. More is better where it ends with ``/s``, elsewhere less is.
        pairs: The other state and this one, of runs that followed each other. At least one.
    """
    ratios = sorted(now / before for before, now in pairs)
    low, high = interval_of_median(ratios)
    return Comparison(
        key,
        unit,
        statistics.median(before for before, _ in pairs),
        statistics.median(now for _, now in pairs),
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        low,
        high,
        len(ratios),
    )


def interval_of_median(figures: Sequence[float]) -> tuple[float | None, float | None]:
    """The confidence interval of a median that two of the figures bound, whatever their distribution is.

    The number of figures below the true median has a binomial distribution with p = 1/2, so the k-th from either end
    bounds it unless fewer than k figures lie on that side.

    Args:
        figures: Sorted.

    Returns:
        None for both bounds with fewer than six figures.
    """
    count = len(figures)
    outside, place = 0.0, 0
    while place < count // 2:
        outside += comb(count, place) / 2**count
        if 2 * outside > 1 - CONFIDENCE:
            break
        place += 1
    return (figures[place - 1], figures[count - place]) if place else (None, None)


def pairs_of(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """The figures of two runs that followed each other, by row. Rows that one of them has not got are left out."""
    return {key: (before[key], now[key]) for key in before if key in now and before[key] > 0 and now[key] > 0}
