"""Detection of pauses: the process or its machine was stopped, so bytes in its sockets may be old."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

MIN_PAUSE_S: Final = 1.0
"""Shortest pause that counts. A broker that takes a session by force waits at least this long for the owner."""

_LOOK_S: Final = 0.25


class PauseDetector:
    """Detects pauses of the process by reading the clock at short intervals.

    Args:
        worked_s: Returns the processor time of this thread, in seconds. Time in which the thread worked is no pause: a
            thousand clients that connect at once may keep it busy as long.
    """

    def __init__(self, worked_s: Callable[[], float] = time.thread_time) -> None:
        self._worked_s = worked_s
        self._looked_at_s = trio.current_time()
        self._worked_before_s = worked_s()
        self._ended_at_s = float("-inf")

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._look()
            await trio.sleep(_LOOK_S)

    def has_ended_since(self, start_s: float) -> bool:
        """Whether a pause ended after this moment of trio's clock."""
        # The caller may run before the task of this class does.
        self._look()
        return self._ended_at_s > start_s

    def _look(self) -> None:
        now_s, worked_s = trio.current_time(), self._worked_s()
        still_s = now_s - self._looked_at_s - (worked_s - self._worked_before_s)
        if still_s >= _LOOK_S + MIN_PAUSE_S:
            self._ended_at_s = now_s
        self._looked_at_s, self._worked_before_s = now_s, worked_s
