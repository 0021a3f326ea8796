"""Which law a cost follows: constant, logarithmic or linear, with its coefficients. Pure arithmetic.

Each law is fitted by least squares of the errors of the logarithm. So a point counts as much with a cost of 1 as with
one of 1,000,000, twice the cost is as wrong as half of it, and a curve over six decades is not judged by its largest
point alone. No law falls: with more of something nothing gets cheaper, so what falls is noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from benchmarks.runs import format_figure

CONSTANT: Final = "constant"
LOGARITHMIC: Final = "logarithmic"
LINEAR: Final = "linear"

FEWEST_POINTS: Final = 4
"""With fewer points two coefficients say nothing."""

NOISE: Final = 0.1
"""Costs that differ from their geometric mean by a factor of 1.1 (root mean square) or less are constant."""

BETTER: Final = 0.5
"""A law with a slope must have at most this part of the errors that a constant has."""

_SHAPES: Final[Mapping[str, Callable[[float], float]]] = {LOGARITHMIC: math.log10, LINEAR: lambda size: size}
_STEPS: Final = (1, 1000, 1_000_000)
_GRID: Final = 400
_REFINEMENTS: Final = 60
_LARGEST_RATIO: Final = 1e9


@attrs.frozen(slots=True)
class Law:
    """A law and how well it describes the points.

    Attributes:
        kind: `CONSTANT`, `LOGARITHMIC` or `LINEAR`.
        base: The cost itself, at size 1, or at size 0.
        slope: What a tenfold size adds, or a size larger by one; 0 for a constant.
        error: Root mean square of the errors of the natural logarithm: 0.1 is a tenth too much or too little.
    """

    kind: str
    base: float
    slope: float
    error: float

    def at(self, size: float) -> float:
        """The cost at a size."""
        return self.base + (self.slope * _SHAPES[self.kind](size) if self.slope else 0.0)

    def describe(self, unit: str, noun: str) -> str:
        """The law in words.

        Args:
            unit: Unit of the cost.
            noun: What the sizes count, in the plural.
        """
        if self.kind == CONSTANT:
            return f"constant: {format_figure(self.base)} {unit}"
        base = f"{self.kind}: {format_figure(self.base)} {unit}"
        step, each = 1, "each tenfold"
        if self.kind == LINEAR:
            step = next((one for one in _STEPS if self.slope * one >= 0.1), _STEPS[-1])
            each = f"each {step:,} {noun}" if step > 1 else f"each {noun.removesuffix('s')}"
        return f"{base} + {format_figure(self.slope * step)} {unit} for {each}"


def fit(points: Sequence[tuple[float, float]]) -> Law:
    """The simplest law that describes sizes, of 1 or more, and their costs, above 0.

    A constant is the simplest. It stays unless it is off by more than `NOISE`, and the better one of the two laws with
    a slope has at most `BETTER` of its error.
    """
    if not points or min(size for size, _ in points) < 1 or min(cost for _, cost in points) <= 0:
        raise ValueError("a law needs points, with sizes of 1 or more and costs above 0")
    constant = _law(CONSTANT, points, 0.0)
    if len({size for size, _ in points}) < FEWEST_POINTS or constant.error <= NOISE:
        return constant
    best = min((_rising(kind, points) for kind in _SHAPES), key=lambda law: law.error)
    return best if best.error <= BETTER * constant.error else constant


def _law(kind: str, points: Sequence[tuple[float, float]], ratio: float) -> Law:
    """The best law of a kind whose slope is this part of its base: the base follows from the mean of the logarithms."""
    logs = [math.log(cost) - (math.log1p(ratio * _SHAPES[kind](size)) if ratio else 0.0) for size, cost in points]
    mean = sum(logs) / len(logs)
    error = math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs))
    base = math.exp(mean)
    return Law(kind, base, base * ratio, error)


def _rising(kind: str, points: Sequence[tuple[float, float]]) -> Law:
    """The best law of a kind: the best ratio of slope and base on a grid, and then between its neighbours."""
    largest = max(_SHAPES[kind](size) for size, _ in points)

    def law_at(power: float) -> Law:
        # Of the largest size: from nothing to nearly all of its cost.
        return _law(kind, points, 10.0**power / largest)

    bound = math.log10(_LARGEST_RATIO)
    step = 2 * bound / _GRID
    best = min((-bound + step * place for place in range(_GRID + 1)), key=lambda power: law_at(power).error)
    low, high = best - step, best + step
    for _ in range(_REFINEMENTS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if law_at(first).error <= law_at(second).error:
            high = second
        else:
            low = first
    return law_at((low + high) / 2)
