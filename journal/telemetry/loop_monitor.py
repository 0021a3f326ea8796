"""Measures every iteration of the event loop: how long it is between two looks at the sockets and timers.

In one iteration every task that can run makes a step, from one checkpoint to the next. `journal.telemetry.loop_lag`
samples what clients wait for ten times a second; here nothing is missed, however short, at the cost of two readings of
a clock for each iteration.
"""

from __future__ import annotations

from time import perf_counter
from typing import Final

import trio

LONG_S: Final = 0.05
"""What no iteration should take: everybody else waits for that long."""

_WINDOW_S: Final = 60.0


class LoopMonitor(trio.abc.Instrument):
    """The longest iterations of the loop that it is added to with `trio.lowlevel.add_instrument`.

    Attributes:
        long_count: Iterations that took longer than `LONG_S`.
    """

    def __init__(self) -> None:
        self.long_count = 0
        self._began_s = perf_counter()
        self._window_ends_s = self._began_s + _WINDOW_S
        self._longest_s = 0.0
        self._longest_before_s = 0.0

    def after_io_wait(self, timeout: float) -> None:
        """An iteration begins."""
        self._began_s = perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        """An iteration ends."""
        now_s = perf_counter()
        took_s = now_s - self._began_s
        if took_s > self._longest_s:  # noqa: PLR1730 a call of max() costs more, and this runs in every iteration
            self._longest_s = took_s
        if took_s > LONG_S:
            self.long_count += 1
        if now_s > self._window_ends_s:
            self._window_ends_s = now_s + _WINDOW_S
            self._longest_before_s, self._longest_s = self._longest_s, 0.0

    @property
    def longest_s(self) -> float:
        """The longest iteration of the last one to two minutes."""
        return max(self._longest_s, self._longest_before_s)
