"""Counts of values by size: durations and sizes of commit groups. Other modules publish them.

A histogram is filled by one thread and may be read by another: the reader may miss the newest value, but never sees a
partial one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

DURATION_BOUNDS_S: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
)  # fmt: skip
"""From the fsync of a fast drive to a disk that will fail soon."""

SIZE_BOUNDS_BYTES: Final = tuple(float(1 << power) for power in range(8, 27, 2))
"""256 bytes to 64 MiB."""

COUNT_BOUNDS: Final = tuple(float(4**power) for power in range(9))
"""1 to 65,536."""


class Histogram:
    """Counts values by the lowest bound that is not below them.

    Attributes:
        bounds: Upper bounds, rising.
        total: Sum of all values.
    """

    __slots__ = ("_counts", "bounds", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value. A few hundred nanoseconds: meant for once a commit group, not once an append."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def counts(self) -> tuple[int, ...]:
        """The number of values for each bound, and last of those above all bounds; not cumulative."""
        return tuple(self._counts)
