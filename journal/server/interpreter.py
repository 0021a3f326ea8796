"""Settings of the Python interpreter in a server: thread switching and garbage collection.

By default Python collects the youngest generation of objects whenever there are 700 more, and sometimes all
generations. With 100,000 open shards a full collection took up to half a second, during which no client was served.
Records, requests and shards have no reference cycles; what a closed connection leaves may have. So the youngest
generation is collected at a higher threshold, and all of them after many connections have ended, or once a day.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Final

import attrs
import trio

_SWITCH_INTERVAL_S: Final = 0.001
_YOUNG_OBJECTS: Final = 5_000
_YOUNG_PASSES: Final = 5
_NEVER: Final = 1_000_000_000
_ENDED_CONNECTIONS: Final = 10_000
_LOOKED_EVERY_S: Final = 60.0
_LONGEST_S: Final = 86_400.0


@attrs.frozen
class Interpreter:
    """The former settings."""

    switch_interval_s: float
    thresholds: tuple[int, int, int]

    def restore(self) -> None:
        """Restore the former settings: the process of a server may continue without it."""
        sys.setswitchinterval(self.switch_interval_s)
        gc.set_threshold(*self.thresholds)


def prepare_interpreter() -> Interpreter:
    """Change the settings at the start of a server.

    The switch interval is shorter than the default 5 ms, so that the disk thread can report a commit sooner.
    """
    before = Interpreter(sys.getswitchinterval(), gc.get_threshold())
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_PASSES, _NEVER)
    return before


async def collect_rarely(connections_total: Callable[[], int]) -> None:
    """Collect all objects after 10,000 connections since the last time, or after a day."""
    looked_at, came = trio.current_time(), connections_total()
    while True:
        await trio.sleep(_LOOKED_EVERY_S)
        now, total = trio.current_time(), connections_total()
        if total - came >= _ENDED_CONNECTIONS or now - looked_at >= _LONGEST_S:
            gc.collect()
            looked_at, came = now, total
