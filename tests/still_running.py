"""Says which tests have been running for minutes, so that a run that hangs or is cut off shows where it was."""

from __future__ import annotations

import threading
import time

import pytest
from _pytest.capture import CaptureManager
from _pytest.terminal import TerminalReporter


class StillRunning:
    """Looks once a minute, in the process that reports tests.

    Args:
        look_every_s: How often.
        long_s: What is named has been running for so long.
    """

    def __init__(self, look_every_s: float = 60, long_s: float = 120) -> None:
        self._look_every_s = look_every_s
        self._long_s = long_s
        self._began_s = time.monotonic()
        self._running: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        config = session.config
        # A worker reports nothing: what it writes would be taken for output of its test.
        if not hasattr(config, "workerinput"):
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            capture = config.pluginmanager.get_plugin("capturemanager")
            self._thread = threading.Thread(
                target=self._watch, args=(reporter, capture), name="still-running", daemon=True
            )
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

    def _watch(self, reporter: TerminalReporter, capture: CaptureManager) -> None:
        while not self._ended.wait(self._look_every_s):
            if lines := self.lines(time.monotonic()):
                # Without workers a test may run in this process, with its output captured.
                with capture.global_and_fixture_disabled():
                    reporter.write_line("\n".join(lines))
                    # Into a file or a pipe it would come with the end of the next test, which may never end.
                    reporter.flush()

    def lines(self, now_s: float) -> list[str]:
        """A line for each test that has been running for long."""
        minutes = (now_s - self._began_s) / 60
        return [
            f"after {minutes:.0f} min, for {now_s - since_s:.0f} s now: {nodeid}"
            for nodeid, since_s in list(self._running.items())
            if now_s - since_s >= self._long_s
        ]
