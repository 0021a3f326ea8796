"""Figures of this process from Linux, under the common names of Prometheus."""

from __future__ import annotations

import functools
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from journal.telemetry.exposition import Family, counter, gauge

_SELF: Final = Path("/proc/self")
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/self/stat, counted from after the program's name, which may contain spaces.
_STARTED_TICKS: Final = 19
_VIRTUAL_BYTES: Final = 20
_RESIDENT_PAGES: Final = 21


def process_figures() -> Iterator[Family]:
    """Families ``process_...``; those that cannot be read are left out."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds_total", "Time of the processor.", usage.ru_utime + usage.ru_stime)
    try:
        figures = (_SELF / "stat").read_text().rpartition(")")[2].split()
        # Linux 6.2 and newer report their number; before, they have to be counted, which is slow for thousands.
        open_count = os.stat(_SELF / "fd").st_size or len(os.listdir(_SELF / "fd"))
    except OSError:
        return
    yield gauge("process_start_time_seconds", "When the process was started.", _started_s(int(figures[_STARTED_TICKS])))
    yield gauge("process_resident_memory_bytes", "Memory.", int(figures[_RESIDENT_PAGES]) * _PAGE_BYTES)
    yield gauge("process_virtual_memory_bytes", "Address space.", int(figures[_VIRTUAL_BYTES]))
    yield gauge("process_open_fds", "Open files and connections.", open_count)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield gauge("process_max_fds", "How many there may be.", float("inf") if most == resource.RLIM_INFINITY else most)


@functools.cache
def _started_s(ticks_since_boot: int) -> float:
    """Start time. It is computed once: a change of the clock must not look like a restart."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return round(booted_s + ticks_since_boot / _TICKS_PER_S, 2)
