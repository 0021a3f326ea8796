"""A real server is killed again and again while a workload writes to it; a checker reads everything back.

Server, workload and checker are processes of their own. Killing a process loses what it held in memory, not what the
kernel holds for the disk: losing that is what `test_simulated_crashes` does.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from journal.check import check_directory
from tests.crash.killed_server import CONFIGURATION, GATHERING, KilledServer
from tests.crash.table_check import compare_table
from tests.patience import PATIENCE_S

ROUNDS = 3


@contextmanager
def workload(address: str, log: Path, seed: int) -> Iterator[subprocess.Popen[str]]:
    """Run the workload for the length of the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.workload", address, str(log), str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "working\n"
            yield process
            assert process.poll() is None, "the workload has ended by itself"
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
        finally:
            process.kill()


def check(address: str, log: Path) -> None:
    """Run the checker."""
    checked = subprocess.run(
        [sys.executable, "-m", "tests.crash.checker", address, str(log)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def check_table(server: KilledServer, *, is_quiet: bool) -> None:
    """Compare the Delta table with what the server answers."""
    assert trio.run(partial(compare_table, server.address, server.data, is_quiet=is_quiet)) == []


def kill_in_rounds(directory: Path, seed: int, rounds: int, configuration: str = CONFIGURATION) -> None:
    """Let the workload write; kill and start again in each round; then check, stop the server properly, check again."""
    rng = random.Random(seed)
    log = directory / "acknowledged.log"
    server = KilledServer(directory, configuration=configuration)
    # Nothing is gathered in the first second after a start.
    shortest_s, longest_s = (0.2, 0.8) if configuration == CONFIGURATION else (0.5, 3)
    server.start()
    try:
        with workload(server.address, log, seed):
            for _ in range(rounds):
                # The moment of the kill is the point of the test, so there is no condition to wait for.
                time.sleep(rng.uniform(shortest_s, longest_s))
                server.end(signal.SIGKILL)
                server.start()
                check_table(server, is_quiet=False)
        # What a kill has lost stays lost: one look at the end sees it all.
        check(server.address, log)
        check_table(server, is_quiet=True)
        assert server.end(signal.SIGTERM) == 0
        server.start()
        check(server.address, log)
        assert server.end(signal.SIGTERM) == 0
        assert not check_directory(str(server.data)).damages
    finally:
        server.end(signal.SIGKILL)


@pytest.mark.slow("kills servers")
@pytest.mark.smoke
def test_nothing_durable_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    kill_in_rounds(tmp_path, seed=1, rounds=ROUNDS)


@pytest.mark.slow("kills servers")
def test_nothing_durable_is_lost_when_a_server_is_killed_that_gathers_segments(tmp_path: Path) -> None:
    kill_in_rounds(tmp_path, seed=2, rounds=ROUNDS, configuration=GATHERING)
    assert list(tmp_path.glob("data/sealed/date=*/*.parquet"))


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("configuration", [CONFIGURATION, GATHERING], ids=["own-files", "shared-files"])
def test_nothing_durable_is_lost_in_many_rounds(
    configuration: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CRASH_KILLS sets the number of runs of ten rounds (10)."""
    runs = int(os.environ.get("CRASH_KILLS", "10"))
    for run in range(runs):
        with capsys.disabled():
            print(f"\rkilled servers: run {run + 1} of {runs}  ", end="", flush=True)
        directory = tmp_path / str(run)
        directory.mkdir()
        kill_in_rounds(directory, seed=100 + run, rounds=10, configuration=configuration)
