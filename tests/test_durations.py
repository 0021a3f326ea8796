"""The record of how long tests took."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.durations import DurationRecorder


def test_a_test_in_which_its_process_crashed_is_reported_and_recorded(tmp_path: Path) -> None:
    """pytest-xdist makes that report itself, without what the process would have measured."""
    nodeid = "tests/test_crashing.py::test_that_ends_its_process"
    report = pytest.TestReport(nodeid, (nodeid, None, nodeid), {}, "failed", "worker 'gw0' crashed", "call")
    report.duration = 3.0
    recorder = DurationRecorder(tmp_path / "durations.csv", names_unmarked=True)
    recorder.pytest_runtest_logreport(report)
    lines: list[str] = []
    reporter: Any = SimpleNamespace(write_line=lines.append)
    recorder.pytest_terminal_summary(reporter)
    with (tmp_path / "durations.csv").open(newline="") as file:
        assert [tuple(row.values()) for row in csv.DictReader(file)] == [(nodeid, "3.0", "0.0")]
    assert lines == []
