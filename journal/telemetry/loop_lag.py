"""The pulse: a task that comes round ten times a second and so notices when the event loop does not.

A loop that stalls keeps every client waiting, whatever the disk does. How late the pulse comes is how late everything
else was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from journal.telemetry.histogram import Histogram

LATENESS_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

_EVERY_S: Final = 0.1
_STALL_S: Final = 0.1

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class LoopLag:
    """Looks at the loop, and at whether appends are held back.

    Args:
        has_room: Whether the engine takes in more appends just now.

    Attributes:
        late_s: How late each beat came.
        stalls: Beats that came more than a tenth of a second late.
        stalled_s: How late those came, in all.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._held_back_since: float | None = None
        self.late_s = Histogram(LATENESS_BOUNDS_S)
        self.stalls = 0
        self.stalled_s = 0.0

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            wanted = trio.current_time() + _EVERY_S
            await trio.sleep_until(wanted)
            self.beat(wanted)

    def beat(self, wanted: float) -> None:
        """One beat, which should have come at a time of trio's clock."""
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
        """For how long appends have been held back; 0 while they are not."""
        return 0.0 if self._held_back_since is None else trio.current_time() - self._held_back_since
