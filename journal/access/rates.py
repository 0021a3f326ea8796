"""Rate limits as token buckets, with the wait after an excess. Pure: the caller provides the time."""

from __future__ import annotations

from typing import Final

_BURST_S: Final = 1.0
_DEEPEST_DEBT_S: Final = 60.0


class Bucket:
    """A token bucket with the tokens of one second. Spending is never refused: the level may become negative.

    Args:
        per_s: Tokens added per second.
        now: The time in seconds.
    """

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s = per_s
        self._level = per_s * _BURST_S
        self._at = now

    def spend(self, amount: float, now: float) -> None:
        """Remove tokens, even more than there are."""
        self._fill(now)
        # Even a client that sends the largest frames at the lowest rate can send again after a bounded time.
        self._level = max(self._level - amount, -self._per_s * _DEEPEST_DEBT_S)

    def wait_s(self, now: float) -> float:
        """Seconds until the level is not negative; 0 if it is not now."""
        self._fill(now)
        return max(0.0, -self._level / self._per_s)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._per_s * _BURST_S, self._level + (now - self._at) * self._per_s)
            self._at = now
