"""Which worker of pytest-xdist runs which tests, and when.

A file's tests stay together, because they may share what a fixture of the module starts; so do those of a directory
that shares something expensive, as one Java machine. What took longest in the last record (`durations.csv`)
goes first, so that all workers end at about the same time. Tests that measure how long others wait come at the end, on
one worker, when all other workers have ended.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.durations import DURATIONS

ALONE: Final = {
    "tests/abuse": "a client must not have to wait longer because of what others do",
}
"""Directories whose tests measure time that a busy machine would spoil, and what they measure."""

_TOGETHER: Final = {
    "tests/console/": "console",
    "tests/documents/": "documents",
    "tests/mqtt/clients/": "MQTT clients",
    # One Java machine each: with a single one they would take as long as everything else beside them.
    "tests/spark/test_cli": "Spark, writing",
    "tests/spark/test_drain": "Spark, writing",
    "tests/spark/test_export": "Spark, writing",
    "tests/spark/test_streaming": "Spark, writing",
    "tests/spark/": "Spark, reading",
}
"""How the paths of tests begin that share what one session starts, and what they run with; the first that fits wins."""

_ALONE_UNIT: Final = "alone"


def unit_of(nodeid: str) -> str:
    """What a test runs together with: a file, a group of files, or all that run alone."""
    path = nodeid.partition("::")[0]
    if any(path.startswith(f"{place}/") for place in ALONE):
        return _ALONE_UNIT
    return next((unit for prefix, unit in _TOGETHER.items() if path.startswith(prefix)), path)


def recorded_seconds(path: Path = DURATIONS) -> dict[str, float]:
    """How long each unit took; nothing without a record."""
    found: dict[str, float] = defaultdict(float)
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                found[unit_of(row["test"])] += float(row["wall_s"])
    return found


class LongestFirst(LoadScopeScheduling):
    """Gives out units, the longest first, and those that run alone when only one worker is left."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._alone: dict[str, bool] = {}

    @property
    def tests_finished(self) -> bool:
        return not self._alone and super().tests_finished

    @property
    def has_pending(self) -> bool:
        return bool(self._alone) or super().has_pending

    def schedule(self) -> None:
        if self.collection is not None:
            self._give_out()  # a worker has taken the place of one that ended
            return
        if not self._check_nodes_have_same_collection():
            return
        self.collection = list(next(iter(self.registered_collections.values())))
        units: dict[str, dict[str, bool]] = defaultdict(dict)
        for nodeid in self.collection:
            units[unit_of(nodeid)][nodeid] = False
        self._alone = units.pop(_ALONE_UNIT, {})
        seconds = recorded_seconds()
        for unit in sorted(units, key=lambda unit: (-seconds.get(unit, 0.0), unit)):
            self.workqueue[unit] = units[unit]
        self._give_out()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        self.assigned_work[node][unit_of(nodeid)][nodeid] = True
        self._give_out()

    def remove_node(self, node: WorkerController) -> str | None:
        workload = self.assigned_work.pop(node)
        unfinished = {unit: tests for unit, tests in workload.items() if not all(tests.values())}
        crashed = next((nodeid for tests in unfinished.values() for nodeid, done in tests.items() if not done), None)
        if crashed is not None:
            next(iter(unfinished.values()))[crashed] = True  # it is reported as failed
            self._alone |= unfinished.pop(_ALONE_UNIT, {})
            self.workqueue.update(unfinished)
        self._give_out()
        return crashed

    def _give_out(self) -> None:
        """Give every worker that is nearly done its next unit.

        A worker starts a test when it knows the next one, or that there is none: it must always have two.
        """
        open_nodes = [node for node in self.nodes if node in self.registered_collections and not node.shutting_down]
        for node in open_nodes:
            while self.workqueue and self._left(node) < 2:
                self._assign_work_unit(node)
        if self.workqueue:
            return
        if not self._alone:
            for node in open_nodes:
                node.shutdown()
            return
        for node in open_nodes[1:]:
            node.shutdown()
        others_left = sum(self._left(node) for node in self.nodes if node.shutting_down)
        if open_nodes and not others_left and self._left(open_nodes[0]) < 2:
            self.workqueue[_ALONE_UNIT], self._alone = self._alone, {}
            self._assign_work_unit(open_nodes[0])
            open_nodes[0].shutdown()

    def _left(self, node: WorkerController) -> int:
        return self._pending_of(self.assigned_work[node])
