"""The `Clock` interface; code that needs the time of day uses it and never the system's clock directly."""

from __future__ import annotations

import time
from typing import Protocol

# Where it exists, the clock that also runs while the machine is suspended.
_ELAPSED_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Provides the time of day and the elapsed time."""

    def now_us(self) -> int:
        """Return microseconds since the epoch. Jumps in both directions when the system's clock is set."""
        ...

    def monotonic_us(self) -> int:
        """Return microseconds since some moment before the start of the process.

        It never goes back and is not changed when the system's clock is set: differences are elapsed time.
        """
        ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.clock_gettime_ns(_ELAPSED_CLOCK) // 1_000


class ManualClock:
    """A clock that only moves by calls of `advance` and `jump`; for tests and simulations."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._monotonic_us = 1_000_000_000

    def now_us(self) -> int:
        return self._now_us

    def monotonic_us(self) -> int:
        return self._monotonic_us

    def advance(self, *, seconds: float = 0, microseconds: int = 0) -> None:
        """Advance by a duration, which must not be negative."""
        elapsed_us = round(seconds * 1_000_000) + microseconds
        if elapsed_us < 0:
            raise ValueError(f"time cannot pass backwards by {-elapsed_us} us; set the clock back with jump()")
        self._now_us += elapsed_us
        self._monotonic_us += elapsed_us

    def jump(self, *, seconds: float = 0, microseconds: int = 0) -> None:
        """Set the time of day forward or, with a negative value, back, without elapsed time."""
        self._now_us += round(seconds * 1_000_000) + microseconds
