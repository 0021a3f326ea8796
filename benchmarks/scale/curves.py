"""Curves: points of a dimension with their figures, their laws, and their document. No measuring here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from benchmarks.scale import laws
from benchmarks.scale.laws import Law

RATE: Final = "rate"
PROCESSOR: Final = "processor_us"
P99: Final = "p99_us"
MEMORY: Final = "memory_mb"
START: Final = "start_s"


@attrs.frozen(slots=True)
class Figure:
    """One of the figures of each point.

    Attributes:
        title: Its name.
        unit: Unit of the figure.
        cost_unit: Unit of the cost that a law is about.
        is_rate: The cost is the time for one of so many a second, in microseconds. Otherwise it is the figure itself.
    """

    title: str
    unit: str
    cost_unit: str
    is_rate: bool = False

    def cost(self, figure: float) -> float:
        """The cost of a figure, or the figure of a cost."""
        return 1e6 / figure if self.is_rate else figure


FIGURES: Final[Mapping[str, Figure]] = {
    RATE: Figure("throughput", "a second", "us", is_rate=True),
    PROCESSOR: Figure("processor time for each", "us", "us"),
    P99: Figure("p99", "us", "us"),
    MEMORY: Figure("memory", "MB", "MB"),
    START: Figure("start", "s", "s"),
}


@attrs.frozen(slots=True)
class Point:
    """A size and what was measured there, by the keys of `FIGURES`."""

    size: float
    figures: Mapping[str, float]


@attrs.frozen(slots=True)
class Curve:
    """The points of one dimension.

    Attributes:
        key: Name of the dimension.
        noun: What the sizes count, in the plural.
        title: What was done.
        points: In the order of their sizes.
        left_out: Sizes that were not measured, each with the reason.
        has_failed: A measurement failed; the last of ``left_out`` has the error.
    """

    key: str
    noun: str
    title: str
    points: tuple[Point, ...]
    left_out: tuple[tuple[float, str], ...] = ()
    has_failed: bool = False

    def laws(self) -> Mapping[str, Law]:
        """The law of each figure, by its key."""
        return {
            key: laws.fit([(point.size, figure.cost(point.figures[key])) for point in self.points])
            for key, figure in FIGURES.items()
            if self.points
        }

    def words(self) -> Mapping[str, str]:
        """The laws in words, by the keys of the figures."""
        return {key: law.describe(FIGURES[key].cost_unit, self.noun) for key, law in self.laws().items()}


def format_size(size: float) -> str:
    """A size with its thousands marked."""
    return f"{size:,.10g}"


def document(curves: Sequence[Curve], machine: Mapping[str, Any]) -> dict[str, Any]:
    """All curves as a JSON document: ``{"machine", "curves": [...]}``, each with its points and laws."""
    return {
        "machine": dict(machine),
        "curves": [
            {
                "key": curve.key,
                "noun": curve.noun,
                "title": curve.title,
                "points": [{"size": point.size, **point.figures} for point in curve.points],
                "left_out": [{"size": size, "reason": reason} for size, reason in curve.left_out],
                "laws": {key: {**attrs.asdict(law), "words": curve.words()[key]} for key, law in curve.laws().items()},
            }
            for curve in curves
        ],
    }
