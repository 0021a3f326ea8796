"""How long each test took and how much processor time, its processes' included: `pytest --record-durations FILE`.

Short tests are one row for each file. `make test` leaves out the tests that took much processor time in the last record
(`tiers`); the file that took longest goes first (`distribution`). `make test` also names the tests that took more than
two seconds of the processors and have no mark `slow`, which says why they need them.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

import pytest

DURATIONS: Final = Path(__file__).with_name("durations.csv")
"""The last record, made by `make test-all`."""

_OWN_ROW_FROM_S: Final = 0.3
_OWN_ROW_FROM_WALL_S: Final = 1.0
_SLOW_FROM_S: Final = 2.0


def processor_s() -> float:
    """Processor time of this process and of all that it has started and waited for."""
    return sum(os.times()[:4])


class DurationRecorder:
    """Measures in the process that runs tests, and writes the table in the one that reports them."""

    def __init__(self, path: Path | None, *, names_unmarked: bool) -> None:
        self._path = path
        self._names_unmarked = names_unmarked
        self._spent_s = 0.0
        self._found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._unmarked: dict[str, float] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._spent_s = processor_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: pytest.TestReport = yield  # type: ignore[misc]
        spent_s = processor_s()
        report.processor_s = spent_s - self._spent_s
        self._spent_s = spent_s
        return report  # type: ignore[return-value]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # A test in which its process crashed is reported by the process that runs no tests.
        spent_s: float = getattr(report, "processor_s", 0.0)
        sums = self._found[report.nodeid]
        sums[0] += report.duration
        sums[1] += spent_s
        # What several tests share is started before one of them and ended after another.
        if report.when == "call" and "slow" not in report.keywords and spent_s > _SLOW_FROM_S:
            self._unmarked[report.nodeid] = spent_s

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._names_unmarked:
            for test, spent_s in sorted(self._unmarked.items()):
                terminalreporter.write_line(f"took {spent_s:.1f} s of the processors, without @slow: {test}")
        if self._path is not None:
            with self._path.open("w", newline="") as file:
                write_durations(file, self._found)


def recorded_processor_s(path: Path = DURATIONS) -> dict[str, float]:
    """Processor time of each test that has a row of its own, in seconds; nothing without a record."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["test"]: float(row["processor_s"]) for row in csv.DictReader(file) if "::" in row["test"]}


def write_durations(file: TextIO, found: dict[str, list[float]]) -> None:
    """One row for each test that took long, and one for the others of its file."""
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for nodeid, (wall_s, spent_s) in found.items():
        is_short = spent_s < _OWN_ROW_FROM_S and wall_s < _OWN_ROW_FROM_WALL_S
        row = rows[nodeid.partition("::")[0] if is_short else nodeid]
        row[0] += wall_s
        row[1] += spent_s
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["test", "wall_s", "processor_s"])
    writer.writerows([test, f"{wall_s:.1f}", f"{spent_s:.1f}"] for test, (wall_s, spent_s) in sorted(rows.items()))
