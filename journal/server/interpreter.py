"""How Python runs in a server: threads, and the search for garbage that refers to itself.

By default Python looks through the young objects whenever there are 700 more, and now and then through all there are.
With 100,000 open shards a look through all took up to half a second, in which nobody else was served. Records, requests
and shards make no cycles; what a connection that ended leaves may. So young objects are looked through as always, only
later, and all of them when many connections have ended, or once a day.
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
    """How it was set up before."""

    switch_interval_s: float
    thresholds: tuple[int, int, int]

    def restore(self) -> None:
        """Set it up like that again: a server may run in a process that goes on without it."""
        sys.setswitchinterval(self.switch_interval_s)
        gc.set_threshold(*self.thresholds)


def prepare_interpreter() -> Interpreter:
    """Set it up at the start of a server.

    The disk thread gets the interpreter sooner than after the default 5 ms when a commit comes back.
    """
    before = Interpreter(sys.getswitchinterval(), gc.get_threshold())
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_PASSES, _NEVER)
    return before


async def collect_rarely(connections_total: Callable[[], int]) -> None:
    """Look through all objects when 10,000 connections have come since the last time, or after a day."""
    looked_at, came = trio.current_time(), connections_total()
    while True:
        await trio.sleep(_LOOKED_EVERY_S)
        now, total = trio.current_time(), connections_total()
        if total - came >= _ENDED_CONNECTIONS or now - looked_at >= _LONGEST_S:
            gc.collect()
            looked_at, came = now, total
