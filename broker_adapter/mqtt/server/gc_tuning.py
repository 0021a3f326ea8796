"""Settings of the Python interpreter for processes with a high message rate: thread switching, garbage collection."""

from __future__ import annotations

import gc
import sys
from typing import Final

_SWITCH_INTERVAL_S: Final = 0.001
_CYCLE_THRESHOLDS: Final = (50_000, 5, 2)


def prepare_interpreter() -> None:
    """Apply the settings, once at the start of a process.

    A thread that checked a password, or waited for a disk or a database, gets the interpreter sooner than after the
    default 5 ms.

    Messages, records and rows make no reference cycles and live shortly. By default Python scans the young objects
    whenever there are 700 more, and all objects every few thousand messages, which took a third of a broker's time
    under load. The last two thresholds are lower than usual, so that cycles of ended connections are freed in time.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_CYCLE_THRESHOLDS)
