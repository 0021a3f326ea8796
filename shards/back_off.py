"""Delays between repeated attempts. Pure: it does not wait, and is independent of what is attempted."""

from __future__ import annotations

import random
from typing import Final

import attrs

_MOST_DOUBLINGS: Final = 64
"""Bound on the number of doublings, for an attempt that has failed for years."""


# Not the global one, so that a program which seeds that one gets its own numbers.
_SOURCE: Final = random.Random()


@attrs.frozen(slots=True)
class BackOff:
    """Delays between attempts: they double from the first to the longest.

    Attributes:
        first_s: Delay before the first repetition, in seconds.
        longest_s: The longest delay, in seconds.
        jitter: The largest share of a delay that is subtracted at random, from 0 to 1, so that many clients that failed
            together do not all try again together.
    """

    first_s: float
    longest_s: float
    jitter: float = 0.5

    def delay_s(self, attempt: int, source: random.Random | None = None) -> float:
        """Seconds to wait after a failure.

        Args:
            attempt: Number of attempts in a row that failed before this one.
            source: Of the random share; one of the process by default.
        """
        longest_s = self.longest_delay_s(attempt)
        return longest_s * (source or _SOURCE).uniform(1.0 - self.jitter, 1.0) if self.jitter else longest_s

    def longest_delay_s(self, attempt: int) -> float:
        """The longest delay of `delay_s`, in seconds."""
        return min(self.longest_s, self.first_s * 2.0 ** min(attempt, _MOST_DOUBLINGS))
