"""The seam to time: what needs the time of day takes a `Clock`; nothing else in the package asks the system."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time of day."""

    def now_us(self) -> int:
        """Return microseconds since the epoch. It may go backwards when the system's clock is set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000


class ManualClock:
    """A clock that stands still until it is moved; for tests and simulations."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us

    def advance(self, *, seconds: float = 0, microseconds: int = 0) -> None:
        """Move the clock by a duration, which may be negative."""
        self._now_us += round(seconds * 1_000_000) + microseconds
