"""A clock for tests on which the time does not pass in which a busy machine lets this process not run."""

from __future__ import annotations

import time
from typing import Final

import trio.abc

_STEP_S: Final = 0.05


class SteadyClock(trio.abc.Clock):
    """The real time, but for pauses of the process: from one look at it to the next one at most a step passes.

    So time limits measure what is done in this process, not the machine. What happens in other processes goes on
    meanwhile.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._looked_at_s = time.perf_counter()

    def start_clock(self) -> None:
        self._looked_at_s = time.perf_counter()

    def current_time(self) -> float:
        looked_at_s = time.perf_counter()
        self._now_s += min(looked_at_s - self._looked_at_s, _STEP_S)
        self._looked_at_s = looked_at_s
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        # A longer sleep would look like a pause.
        return min(deadline - self.current_time(), _STEP_S)
