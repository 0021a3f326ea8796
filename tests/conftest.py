"""For all tests: a failure says whether the machine stood still meanwhile, and how busy it was."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Final

import pytest

_LOOK_S: Final = 0.25
_STILL_S: Final = 1.0


class _StandstillWatch(threading.Thread):
    """Notices when this process did not run for a while: the machine was busy, or stopped, or one call held it up."""

    def __init__(self) -> None:
        super().__init__(name="standstill-watch", daemon=True)
        self._found: list[float] = []

    def begin(self) -> None:
        """A test begins."""
        self._found.clear()

    def run(self) -> None:
        looked_s = time.monotonic()
        while True:
            time.sleep(_LOOK_S)
            now_s = time.monotonic()
            still_s = now_s - looked_s - _LOOK_S
            if still_s > _STILL_S:
                self._found.append(still_s)
            looked_s = now_s

    def tell(self) -> str:
        """What was noticed since the test began, in words."""
        found = [f"{still_s:.1f} s" for still_s in self._found]
        return f"this process stood still for {', '.join(found)}" if found else "this process never stood still"


_watch: Final = _StandstillWatch()


def pytest_sessionstart() -> None:
    _watch.start()


def pytest_runtest_setup() -> None:
    _watch.begin()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[misc]
    if report.failed:
        load = " ".join(f"{each:.1f}" for each in os.getloadavg())
        report.sections.append(("machine", f"{_watch.tell()}; load averages {load}"))
    return report  # type: ignore[return-value]
