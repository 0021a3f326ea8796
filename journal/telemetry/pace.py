"""Long walks over a million things in small steps, so that whoever else uses the event loop notices nothing."""

from __future__ import annotations

from time import perf_counter
from typing import Final

import trio

_LOOKED_AT_ONCE: Final = 64
_STEP_S: Final = 0.0005
_SHARE: Final = 0.01
"""Of the loop's time that a walk may take."""


class Pace:
    """Keeps a walk to one hundredth of the loop's time: a step of half a millisecond, then fifty for the others.

    Args:
        share: Another part of the loop's time; 1 for no pause but a checkpoint between steps.
    """

    def __init__(self, share: float = _SHARE) -> None:
        self._pauses_per_step = 1 / share - 1
        self._left = _LOOKED_AT_ONCE
        self._began_s = perf_counter()

    async def step(self) -> None:
        """Call once for each thing that is looked at; waits now and then."""
        # Not a checkpoint on every call: this is called a million times.
        self._left -= 1
        if self._left:
            return
        self._left = _LOOKED_AT_ONCE
        spent_s = perf_counter() - self._began_s
        if spent_s >= _STEP_S:
            await self.rest()

    async def rest(self) -> None:
        """Give the loop to the others for as long as the time spent since the last rest allows for."""
        await trio.sleep((perf_counter() - self._began_s) * self._pauses_per_step)
        self._began_s = perf_counter()
