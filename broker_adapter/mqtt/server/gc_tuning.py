"""How Python runs in processes that messages pass through by the thousand: threads and the search for cycles."""

from __future__ import annotations

import gc
import sys
from typing import Final

_SWITCH_INTERVAL_S: Final = 0.001
_CYCLE_THRESHOLDS: Final = (50_000, 5, 2)


def prepare_interpreter() -> None:
    """Set it up, once at the start of a process.

    A thread that checked a password or waited for a disk or a database gets the interpreter sooner than after the
    default 5 ms.

    Messages, records and rows make no cycles and go soon. By default Python looks through the young objects whenever
    there are 700 more, and every few thousand messages through all, which took a third of a broker's time under load.
    The last two thresholds are lower than usual: what connections that ended have left is still found in time.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_CYCLE_THRESHOLDS)
