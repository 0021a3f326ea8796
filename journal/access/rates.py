"""So much a second: buckets that fill at a rate, and the wait of those who spend more. Pure: the clock is given."""

from __future__ import annotations

from typing import Final

_BURST_S: Final = 1.0
_DEEPEST_DEBT_S: Final = 60.0


class Bucket:
    """So much a second, a second's worth at once. Spending is never refused: who overspends waits until it is paid.

    Args:
        per_s: What comes in a second.
        now: The time.
    """

    def __init__(self, per_s: float, now: float) -> None:
        self._per_s = per_s
        self._level = per_s * _BURST_S
        self._at = now

    def spend(self, amount: float, now: float) -> None:
        """Take something out, more than there is if need be."""
        self._fill(now)
        # Whoever sends the largest frames at the lowest rate still gets a turn some time.
        self._level = max(self._level - amount, -self._per_s * _DEEPEST_DEBT_S)

    def wait_s(self, now: float) -> float:
        """How long until nothing is owed; 0 if nothing is."""
        self._fill(now)
        return max(0.0, -self._level / self._per_s)

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._per_s * _BURST_S, self._level + (now - self._at) * self._per_s)
            self._at = now
