"""A demo that is stopped leaves no process behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.slow("starts a demo")
def test_a_demo_that_gets_sigterm_ends_its_servers(tmp_path: Path) -> None:
    """A job that was ended by its system left servers, brokers and their data."""
    command = [sys.executable, "-m", "demo", "--seconds", "600", "--directory", str(tmp_path / "demo")]
    give_up_at = time.monotonic() + PATIENCE_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as demo:
        # The server of the store and three brokers.
        while len(started := children(demo.pid)) < 4:
            assert demo.poll() is None
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert not [pid for pid in started if is_there(pid)]
    assert list((tmp_path / "demo").iterdir()) == []
