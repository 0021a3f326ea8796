"""When a sink is tried again: a circuit breaker with exponential back-off and jitter. Pure.

While the breaker is closed, a failure is retried after a short wait. After several failures in a row it is open:
nothing is sent to the sink during a wait that doubles each time. Then it is half open: one small batch is tried. If the
sink accepts it the breaker closes, else it opens again.
"""

from __future__ import annotations

import enum
import random

import attrs

from shards.back_off import BackOff


class BreakerState(enum.StrEnum):
    """Whether a sink is sent records. The values are the words that operators see."""

    CLOSED = "ok"
    OPEN = "down"
    HALF_OPEN = "retrying"


@attrs.frozen(slots=True, kw_only=True)
class BreakerSettings:
    """The limits of a breaker.

    Attributes:
        failures_to_open: Failures in a row that open it.
        min_backoff_s: First wait, in seconds; each further one is twice as long.
        max_backoff_s: Longest wait, in seconds. A sink that asks for more (``Retry-After``) gets up to ten times this.
    """

    failures_to_open: int = 3
    min_backoff_s: float = 0.2
    max_backoff_s: float = 30.0


_LONGEST_ASKED = 10


class Breaker:
    """The breaker of one sink.

    Args:
        settings: Its limits.
        spread: Source of the jitter of the back-off.
    """

    def __init__(self, settings: BreakerSettings, spread: random.Random | None = None) -> None:
        self._settings = settings
        self._back_off = BackOff(settings.min_backoff_s, settings.max_backoff_s)
        self._random = spread or random.Random()
        self.state = BreakerState.CLOSED
        self.failure_count = 0
        self.reason = ""

    def failed(self, reason: str, retry_after_s: float | None = None) -> float:
        """Note a failure of the sink.

        Args:
            reason: The error of the sink or of the connection to it.
            retry_after_s: The wait that the sink asks for, in seconds.

        Returns:
            How long to wait before the next attempt, in seconds.
        """
        settings = self._settings
        self.failure_count += 1
        self.reason = reason
        if self.state is not BreakerState.CLOSED or self.failure_count >= settings.failures_to_open:
            self.state = BreakerState.OPEN
        wait_s = self._back_off.delay_s(self.failure_count - 1, self._random)
        if retry_after_s is not None:
            wait_s = max(wait_s, min(retry_after_s, _LONGEST_ASKED * settings.max_backoff_s))
        return wait_s

    def waited(self) -> None:
        """Note that the sink is tried now: the wait is over, or the operator ended it."""
        if self.state is BreakerState.OPEN:
            self.state = BreakerState.HALF_OPEN

    def succeeded(self) -> None:
        """Note that the sink accepted a batch."""
        self.state = BreakerState.CLOSED
        self.failure_count = 0
        self.reason = ""
