"""When a subscription reports its progress: soon after it has delivered something, seldom while it has nothing."""

from __future__ import annotations

import math

SOON_S = 0.05
"""Interval of reports after everything was delivered, and the shortest one."""

BUSY_S = 0.5
"""Interval while there is always more to deliver."""

QUIET_S = 1.0
"""Interval while only others' records arrive: the lsn rises, and a resume should not have to go far back."""


class WatermarkPolicy:
    """Decides when to report progress; times are in seconds of the caller's clock.

    Attributes:
        told_lsn: The lsn that was reported last.
    """

    __slots__ = ("_gave", "_pause_s", "_told_at", "told_lsn")

    def __init__(self, start_lsn: int) -> None:
        self.told_lsn = start_lsn
        self._told_at = -math.inf
        self._pause_s = SOON_S
        self._gave = False

    def gave(self) -> None:
        """Note that something was delivered."""
        self._gave = True

    def due_at(self, *, idle: bool) -> float:
        """The time from which an lsn above `told_lsn` is to be reported; ``idle``: there is nothing to deliver now."""
        if not idle:
            return self._told_at + BUSY_S
        return self._told_at + (SOON_S if self._gave else self._pause_s)

    def tell(self, lsn: int, now: float) -> int:
        """Note that an lsn is reported now; returns it."""
        self._pause_s = SOON_S if self._gave else min(2 * self._pause_s, QUIET_S)
        self._gave = False
        self._told_at = now
        self.told_lsn = lsn
        return lsn
