"""When a feed tells how far it is: soon after it has given something, seldom while nothing of its own comes."""

from __future__ import annotations

import math

SOON_S = 0.05
"""After what was given has been given entirely, and at least between two tellings."""

BUSY_S = 0.5
"""While there is always more to give."""

QUIET_S = 1.0
"""While only others' records come: the lsn moves, and whoever resumes from it should not have to go far back."""


class WatermarkPolicy:
    """Decides when to tell; times are in seconds of the caller's clock.

    Attributes:
        told_lsn: What was told last.
    """

    __slots__ = ("_gave", "_pause_s", "_told_at", "told_lsn")

    def __init__(self, start_lsn: int) -> None:
        self.told_lsn = start_lsn
        self._told_at = -math.inf
        self._pause_s = SOON_S
        self._gave = False

    def gave(self) -> None:
        """Something was given since."""
        self._gave = True

    def due_at(self, *, idle: bool) -> float:
        """The time from which an lsn above `told_lsn` is to be told; ``idle``: there is nothing to give just now."""
        if not idle:
            return self._told_at + BUSY_S
        return self._told_at + (SOON_S if self._gave else self._pause_s)

    def tell(self, lsn: int, now: float) -> int:
        """The lsn is being told."""
        self._pause_s = SOON_S if self._gave else min(2 * self._pause_s, QUIET_S)
        self._gave = False
        self._told_at = now
        self.told_lsn = lsn
        return lsn
