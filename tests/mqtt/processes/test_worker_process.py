"""One process of a broker as its supervisor sees it: new settings and the stop, also while it is still starting."""

from __future__ import annotations

import sys
from pathlib import Path

import attrs
import pytest
import trio

from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.server.worker_lines import Reload, Start, decode
from broker_adapter.mqtt.server.worker_process import WorkerProcess
from tests.patience import PATIENCE_S

# It ends when its input does, and keeps what it got.
PROGRAM = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_bytes(sys.stdin.buffer.read())"
FIRST = BrokerConfig()
SECOND = attrs.evolve(FIRST, broker=attrs.evolve(FIRST.broker, id="second"))


def worker_of(received: Path) -> WorkerProcess:
    return WorkerProcess(1, [sys.executable, "-c", PROGRAM, str(received)], FIRST)


def lines_in(received: Path) -> list[object]:
    return [decode(line) for line in received.read_bytes().splitlines()]


async def test_settings_that_come_before_it_runs_follow_those_of_its_start(tmp_path: Path) -> None:
    """A SIGHUP in the moment in which it was being started passed it by: it went on with rules of before."""
    worker = worker_of(tmp_path / "received")
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            assert not worker.has_ended
            worker.reload(SECOND)
            worker.stop()
    assert worker.has_ended
    assert lines_in(tmp_path / "received") == [Start(1, FIRST), Reload(SECOND)]


async def test_it_can_be_stopped_while_it_is_being_started(tmp_path: Path) -> None:
    """That was an internal error, and all other processes were killed."""
    worker = worker_of(tmp_path / "received")
    worker.stop()
    with trio.fail_after(PATIENCE_S):
        assert (await worker.run()).words == "exit status 0"
    assert lines_in(tmp_path / "received") == [Start(1, FIRST)]


async def test_one_that_cannot_be_started_has_ended(tmp_path: Path) -> None:
    worker = WorkerProcess(1, [str(tmp_path / "missing")], FIRST)
    with pytest.raises(FileNotFoundError):
        await worker.run()
    assert worker.has_ended
