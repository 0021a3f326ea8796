"""Splitting walks over a million things into small steps, so that other tasks of the event loop are not delayed."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import trio

_LOOKED_AT_ONCE: Final = 64
_STEP_S: Final = 0.0005
_SHARE: Final = 0.01
"""Share of the loop's time that a walk may take."""


class Pace:
    """Limits a walk to one hundredth of the loop's time: a step of half a millisecond, then a pause of fifty.

    Args:
        share: Another share of the loop's time; 1 for no pause but a checkpoint between steps.
    """

    def __init__(self, share: float = _SHARE) -> None:
        self._pauses_per_step = 1 / share - 1
        self._left = _LOOKED_AT_ONCE
        self._began_s = perf_counter()

    async def step(self) -> None:
        """Call once for each thing of the walk; waits from time to time."""
        # Not a checkpoint on every call: this is called a million times.
        self._left -= 1
        if self._left:
            return
        self._left = _LOOKED_AT_ONCE
        spent_s = perf_counter() - self._began_s
        if spent_s >= _STEP_S:
            await self.rest()

    async def rest(self) -> None:
        """Wait as long as the time used since the last wait requires."""
        await trio.sleep((perf_counter() - self._began_s) * self._pauses_per_step)
        self._began_s = perf_counter()
