"""A server that is stopped before it is ready ends in order, quickly, and the next start finds everything."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shards.model import ShardConfig
from tests.faults.processes import command, running
from tests.patience import PATIENCE_S

VALUES = [b"%d" % number * 50 for number in range(2_000)]


def takes_note(data: Path, pid: int) -> bool:
    """Whether the process has a handler for SIGTERM of its own: a few imports after its beginning."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def has_locked(data: Path, pid: int) -> bool:
    """Whether it has begun to open the data directory."""
    lock = data / "LOCK"
    return lock.exists() and lock.read_text().strip() == str(pid)


def has_opened_views(data: Path, pid: int) -> bool:
    """Whether RocksDB is being opened, behind which the journal is recovered."""
    return has_locked(data, pid) and (data / "state" / "LOCK").exists()


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("moment", [takes_note, has_locked, has_opened_views])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_is_stopped_ends_in_order(
    tmp_path: Path, moment: Callable[[Path, int], bool], number: signal.Signals
) -> None:
    """SIGTERM within the first seconds ended the server by the signal, and a supervisor took it for a crash."""
    data = tmp_path / "data"
    with running(data) as server:
        with server.client() as client:
            handle = client.open("s", ShardConfig())
            for value in VALUES[:20]:
                client.append(handle, value)
            client.append(handle, *VALUES[20:])
        # There is something to recover.
        server.kill()
    (data / "LOCK").write_text("")
    process = subprocess.Popen(command(data), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not moment(data, process.pid) and time.monotonic() < deadline_s:
            time.sleep(0.001)
        process.send_signal(number)
        began_s = time.monotonic()
        out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        assert time.monotonic() - began_s < PATIENCE_S / 2
        assert "Traceback" not in errors
        assert "ready" not in out or "stopped" in errors
    finally:
        process.kill()
        process.wait()
    with running(data) as server, server.client() as client:
        assert client.read(client.open("s")) == VALUES
        assert server.stop() == 0
