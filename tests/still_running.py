"""Says which tests have been running for minutes, so that a run that hangs or is cut off shows where it was."""

from __future__ import annotations

import threading
import time
from typing import Final

import pytest
from _pytest.terminal import TerminalReporter

_LOOK_EVERY_S: Final = 60.0
_LONG_S: Final = 120.0


class StillRunning:
    """Looks once a minute, in the process that reports tests."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._running: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:  # a worker has none
            self._thread = threading.Thread(target=self._watch, args=(reporter,), name="still-running", daemon=True)
            self._thread.start()

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call"):  # its end, or that of the worker that ran it
            self._running.pop(report.nodeid, None)

    def _watch(self, reporter: TerminalReporter) -> None:
        while not self._ended.wait(_LOOK_EVERY_S):
            for line in self.lines(time.monotonic()):
                reporter.write_line(line)

    def lines(self, now_s: float) -> list[str]:
        """A line for each test that has been running for long."""
        minutes = (now_s - self._began_s) / 60
        return [
            f"after {minutes:.0f} min, for {now_s - since_s:.0f} s now: {nodeid}"
            for nodeid, since_s in list(self._running.items())
            if now_s - since_s >= _LONG_S
        ]
