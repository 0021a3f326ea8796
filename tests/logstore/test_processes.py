"""Several processes share a store in a directory, and are killed, stopped and continued at any time."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from journal.logstore.ownership import Member
from journal.logstore.stores.directory import DirectoryLogStore
from tests.logstore.log_process import ROOT, STORE_ID, take_over
from tests.patience import PATIENCE_S

NODES: Final = 3
SLOTS_BETWEEN_EVENTS: Final = 15


class Nodes:
    """Processes, each of which owns the store now and then."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.log = directory / "log"
        self.log.mkdir()
        self._directory = directory
        self._random = random.Random(seed)
        self._running = {node: self._start(node) for node in range(1, NODES + 1)}
        self._stopped: set[int] = set()

    def acknowledged(self) -> list[str]:
        return [line for node in range(1, NODES + 1) for line in self._lines(node)]

    def wait_for_progress(self) -> None:
        """Until some more slots were acknowledged."""
        before = len(self.acknowledged())
        self._wait(lambda: len(self.acknowledged()) >= before + SLOTS_BETWEEN_EVENTS)

    def disturb(self) -> None:
        """Kill a process, stop one or let one continue. At least one is always running."""
        node = self._random.choice(list(self._running))
        if node in self._stopped:
            self._stopped.remove(node)
            self._running[node].send_signal(signal.SIGCONT)
        elif self._random.random() < 0.4:
            self._running[node].kill()
            self._running[node].wait()
            self._running[node] = self._start(node)
        elif len(self._stopped) < NODES - 1:
            self._stopped.add(node)
            self._running[node].send_signal(signal.SIGSTOP)

    def wake_all(self) -> None:
        """Let all continue, and have each find out what it slept through."""
        for node in self._stopped:
            self._running[node].send_signal(signal.SIGCONT)
        self._stopped.clear()
        self.wait_for_progress()

    def kill(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def failures(self) -> str:
        return "".join((self._directory / f"errors-{node}").read_text() for node in range(1, NODES + 1))

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        arguments = [str(self.log), str(node), str(self._directory / f"ledger-{node}")]
        with (self._directory / f"errors-{node}").open("ab") as errors:
            return subprocess.Popen(
                [*guard, sys.executable, "-m", "tests.logstore.log_process", *arguments],
                stderr=errors,
                cwd=Path(__file__).parents[2],
            )

    def _lines(self, node: int) -> list[str]:
        path = self._directory / f"ledger-{node}"
        return path.read_text().split() if path.exists() else []

    def _wait(self, condition: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_at, f"nothing was acknowledged for {PATIENCE_S} s: {self.failures()}"
            time.sleep(0.01)


@pytest.fixture
def nodes(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    started = Nodes(tmp_path, seed=request.param)
    yield started
    started.kill()


@pytest.mark.slow("kills and stops processes")
@pytest.mark.parametrize("nodes", [1], indirect=True)
def test_no_acknowledged_slot_is_lost_or_doubled_when_processes_are_killed_and_stopped(nodes: Nodes) -> None:
    check(nodes, events=12)


@pytest.mark.long
@pytest.mark.parametrize("nodes", range(10, 20), indirect=True)
def test_no_acknowledged_slot_is_lost_or_doubled_in_minutes_of_kills(nodes: Nodes) -> None:
    check(nodes, events=150)


def check(nodes: Nodes, events: int) -> None:
    for _ in range(events):
        nodes.wait_for_progress()
        nodes.disturb()
    nodes.wake_all()
    nodes.kill()
    acknowledged = nodes.acknowledged()
    epoch, values, next_lsn = take_over(DirectoryLogStore(nodes.log), Member(ROOT, STORE_ID, b"\xff" * 16))
    assert nodes.failures() == ""
    assert len(values) == len(set(values)) == next_lsn - 1
    assert set(acknowledged) - set(values) == set()
    assert len(acknowledged) == len(set(acknowledged)) >= events * SLOTS_BETWEEN_EVENTS
    assert epoch > NODES
