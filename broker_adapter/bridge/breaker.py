"""When a sink is tried again: a circuit breaker with exponential back-off and jitter. Pure.

Closed, all is well; single failures are tried again after a short while. After several in a row the breaker is open,
and the sink is left alone for a while that doubles each time. Then it is half open: one small batch is tried. If that
is taken the breaker closes, else it is open again.
"""

from __future__ import annotations

import enum
import random

import attrs


class BreakerState(enum.StrEnum):
    """Whether a sink takes records."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


@attrs.frozen(slots=True, kw_only=True)
class BreakerSettings:
    """How patient a bridge is with its sink.

    Attributes:
        failures_to_open: Failures in a row.
        min_backoff_s: First wait; each further one is twice as long.
        max_backoff_s: Longest wait. A sink that asks for more gets that, up to ten times this.
    """

    failures_to_open: int = 3
    min_backoff_s: float = 0.2
    max_backoff_s: float = 30.0


_MAX_DOUBLINGS = 30
_LONGEST_ASKED = 10


class Breaker:
    """The breaker of one sink.

    Args:
        settings: See there.
        spread: Gives the part of a wait that is kept, between 0.5 and 1, so that many bridges of one sink do not come
            back at once.
    """

    def __init__(self, settings: BreakerSettings, spread: random.Random | None = None) -> None:
        self._settings = settings
        self._random = spread or random.Random()
        self.state = BreakerState.CLOSED
        self.failure_count = 0
        self.reason = ""

    def failed(self, reason: str, retry_after_s: float | None = None) -> float:
        """The sink is out.

        Args:
            reason: What it, or the way to it, said.
            retry_after_s: How long the sink wants to be left alone.

        Returns:
            How long to leave it alone, in seconds.
        """
        settings = self._settings
        self.failure_count += 1
        self.reason = reason
        if self.state is not BreakerState.CLOSED or self.failure_count >= settings.failures_to_open:
            self.state = BreakerState.OPEN
        doublings = min(self.failure_count - 1, _MAX_DOUBLINGS)
        longest_s = min(settings.max_backoff_s, settings.min_backoff_s * 2.0**doublings)
        wait_s = longest_s * self._random.uniform(0.5, 1.0)
        if retry_after_s is not None:
            wait_s = max(wait_s, min(retry_after_s, _LONGEST_ASKED * settings.max_backoff_s))
        return wait_s

    def waited(self) -> None:
        """The wait is over, or somebody does not want to wait: the sink is tried."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.HALF_OPEN

    def succeeded(self) -> None:
        """The sink took a batch."""
        self.state = BreakerState.CLOSED
        self.failure_count = 0
        self.reason = ""
