"""Measures the event loop: how long each iteration takes, and how late timers are.

In one iteration every task that can run makes a step, from one checkpoint to the next. `LoopMonitor` misses none,
however short, at the cost of two readings of a clock for each. `LoopLag` samples ten times a second how late it is.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Final

import structlog
import trio

from journal.telemetry.histogram import Histogram

LONG_S: Final = 0.05
"""An iteration should be shorter than this: all other tasks wait for that long."""

_WINDOW_S: Final = 60.0


class LoopMonitor(trio.abc.Instrument):
    """The longest iterations of an event loop.

    Attributes:
        long_count: Number of iterations that took longer than `LONG_S`.
    """

    def __init__(self) -> None:
        self.long_count = 0
        self._began_s = perf_counter()
        self._window_ends_s = self._began_s + _WINDOW_S
        self._longest_s = 0.0
        self._longest_before_s = 0.0

    async def run(self) -> None:
        """Measure the loop of the calling task until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)

    def after_io_wait(self, timeout: float) -> None:
        """Note the beginning of an iteration."""
        self._began_s = perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        """Note the end of an iteration."""
        now_s = perf_counter()
        took_s = now_s - self._began_s
        if took_s > self._longest_s:  # noqa: PLR1730 a call of max() takes longer, and this runs in every iteration
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


LATENESS_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

_EVERY_S: Final = 0.1
_STALL_S: Final = 0.1

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class LoopLag:
    """Measures the delay of the loop, and how long appends have been held back.

    Args:
        has_room: Whether the engine accepts more appends now.

    Attributes:
        late_s: Delay of each sample in seconds.
        stalls: Number of samples that were more than a tenth of a second late.
        stalled_s: Sum of the delays of these, in seconds.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._held_back_since: float | None = None
        self.late_s = Histogram(LATENESS_BOUNDS_S)
        self.stalls = 0
        self.stalled_s = 0.0

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            wanted = trio.current_time() + _EVERY_S
            await trio.sleep_until(wanted)
            self.beat(wanted)

    def beat(self, wanted: float) -> None:
        """Take one sample, which was due at this time of trio's clock."""
        now = trio.current_time()
        late_s = max(0.0, now - wanted)
        self.late_s.observe(late_s)
        if late_s > _STALL_S:
            self.stalls += 1
            self.stalled_s += late_s
            log.warning("the event loop stalled", seconds=round(late_s, 3))
        if self._has_room():
            self._held_back_since = None
        elif self._held_back_since is None:
            self._held_back_since = now

    @property
    def held_back_s(self) -> float:
        """How long appends have been held back, in seconds; 0 while they are accepted."""
        return 0.0 if self._held_back_since is None else trio.current_time() - self._held_back_since
