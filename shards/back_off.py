"""How long to wait before the same thing is tried again. Pure: it neither waits nor knows what is tried."""

from __future__ import annotations

import random
from typing import Final

import attrs

_MOST_DOUBLINGS: Final = 64
"""So that an attempt that has failed for years gives a number."""


# Not the global one, so that a program which seeds that one gets its own numbers.
_SOURCE: Final = random.Random()


@attrs.frozen(slots=True)
class BackOff:
    """Delays between attempts: they double from the first to the longest.

    Attributes:
        first_s: Before the first repetition, in seconds.
        longest_s: The delay grows no further, in seconds.
        jitter: The largest share of a delay that is taken off at random, from 0 to 1, so that many clients that failed
            together do not try again together.
    """

    first_s: float
    longest_s: float
    jitter: float = 0.5

    def delay_s(self, attempt: int, source: random.Random | None = None) -> float:
        """Seconds to wait after a failure.

        Args:
            attempt: How many attempts failed in a row before this one, from 0.
            source: Of the random share; one of the process by default.
        """
        longest_s = self.longest_delay_s(attempt)
        return longest_s * (source or _SOURCE).uniform(1.0 - self.jitter, 1.0) if self.jitter else longest_s

    def longest_delay_s(self, attempt: int) -> float:
        """Most seconds that `delay_s` gives."""
        return min(self.longest_s, self.first_s * 2.0 ** min(attempt, _MOST_DOUBLINGS))
