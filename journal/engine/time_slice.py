"""Splitting long work on the event loop into short steps: a checkpoint whenever a step has taken long enough."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import trio

_STEP_S: Final = 0.002


class TimeSlice:
    """Keeps the steps of one piece of work short. Between two steps the data it works on may change."""

    def __init__(self) -> None:
        self._ends_s = perf_counter() + _STEP_S

    @property
    def is_over(self) -> bool:
        """Whether it is time to call `rest`."""
        return perf_counter() >= self._ends_s

    async def rest(self) -> None:
        """Let other tasks run, and begin the next step."""
        await trio.lowlevel.checkpoint()
        self._ends_s = perf_counter() + _STEP_S
