"""Times of messages at points of their way, as the hops between the points. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

P50: Final = 0.5
P99: Final = 0.99


@attrs.frozen(slots=True)
class Hop:
    """A part of a path, between two points.

    Attributes:
        name: What happens in it.
        process: The process whose work, wake-ups and waits are its time.
        begin: Point at which it begins.
        end: Point at which it ends.
    """

    name: str
    process: str
    begin: str
    end: str


@attrs.frozen(slots=True)
class Path:
    """A way of messages: hops, each of which begins where the one before ends.

    Attributes:
        name: What the whole is.
        hops: The hops.
    """

    name: str
    hops: tuple[Hop, ...]

    @property
    def points(self) -> tuple[str, ...]:
        """All its points, in their order."""
        return (self.hops[0].begin, *(hop.end for hop in self.hops))


@attrs.frozen(slots=True)
class HopTimes:
    """Durations of a hop in microseconds, and its part of the sum of all durations of its path."""

    name: str
    process: str
    begin: str
    end: str
    p50_us: float
    p99_us: float
    share: float


@attrs.frozen(slots=True)
class PathTimes:
    """Durations of a path in microseconds, and those of its hops.

    Attributes:
        messages: Messages that were found at all of its points, of which these times are.
    """

    name: str
    messages: int
    p50_us: float
    p99_us: float
    hops: tuple[HopTimes, ...]


def quantile(ordered: Sequence[float], part: float) -> float:
    """The smallest of the values that at least this part of them does not exceed (nearest rank).

    Args:
        ordered: Values in ascending order, at least one.
        part: Above 0, at most 1.
    """
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def measure(path: Path, times: Mapping[str, Mapping[int, int]]) -> PathTimes | None:
    """Durations of a path and its hops; None if no message was found at all points.

    Args:
        path: The path.
        times: Nanoseconds by message, by point.
    """
    at = [times[point] for point in path.points]
    complete = [number for number in at[0] if all(number in later for later in at[1:])]
    if not complete:
        return None
    durations = [[end[number] - begin[number] for number in complete] for begin, end in itertools.pairwise(at)]
    totals = sorted(at[-1][number] - at[0][number] for number in complete)
    whole = sum(totals)
    hops = tuple(
        HopTimes(
            hop.name,
            hop.process,
            hop.begin,
            hop.end,
            *_quantiles_us(sorted(taken)),
            sum(taken) / whole if whole else 0.0,
        )
        for hop, taken in zip(path.hops, durations, strict=True)
    )
    return PathTimes(path.name, len(complete), *_quantiles_us(totals), hops)


def _quantiles_us(ordered_ns: Sequence[int]) -> tuple[float, float]:
    return quantile(ordered_ns, P50) / 1000, quantile(ordered_ns, P99) / 1000
