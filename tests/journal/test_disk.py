"""The disk thread is handed work and reports it, whatever happens to the process meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import outcome
import trio

from journal.engine.wal.disk import DiskThread
from shards.model import ShardConfig
from tests.faults.processes import running
from tests.patience import PATIENCE_S

NAME = "interrupted-disk"
SLEEPING, STOPPED = "S", "T"


@contextmanager
def signals_taken() -> Iterator[None]:
    """SIGUSR1 interrupts system calls and does nothing else."""
    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def the_thread() -> threading.Thread:
    (found,) = (thread for thread in threading.enumerate() if thread.name == NAME)
    return found


async def until_it_waits(thread: threading.Thread) -> None:
    """Return once the thread sleeps in the kernel: it waits for work."""
    with trio.fail_after(PATIENCE_S):
        while _state_of(thread) != SLEEPING:
            await trio.lowlevel.checkpoint()


def _state_of(thread: threading.Thread) -> str:
    return _state_in(Path(f"/proc/self/task/{thread.native_id}/stat"))


def _state_in(stat: Path) -> str:
    return stat.read_text().rpartition(")")[2].split()[0]


async def test_an_interrupted_wait_for_work_ended_the_disk_thread() -> None:
    """No append was ever answered again, and the server did not stop: the end of the thread was not reported."""
    disk = DiskThread(NAME)
    done = trio.Event()

    def report(result: outcome.Outcome[None]) -> None:
        result.unwrap()
        done.set()

    try:
        with signals_taken():
            thread = the_thread()
            for _ in range(20):
                await until_it_waits(thread)
                assert thread.ident is not None
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
            disk.submit(lambda: None, report)
            with trio.fail_after(PATIENCE_S):
                await done.wait()
    finally:
        disk.close()


def test_a_server_that_gets_requests_as_it_is_continued_acknowledges_as_before(tmp_path: Path) -> None:
    """Such a signal reaches any thread, the disk thread as well; SIGTERM then left a server that did not end."""
    with running(tmp_path / "data") as server:
        with server.client() as client:
            handle = client.open("s", ShardConfig())
            for number in range(40):
                os.kill(server.pid, signal.SIGSTOP)
                wait_until_stopped(server.pid)
                os.kill(server.pid, signal.SIGCONT)
                os.kill(server.pid, signal.SIGHUP)
                assert client.append(handle, b"%d" % number) == number
        assert server.stop() == 0


def wait_until_stopped(pid: int) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while any(_state_in(stat) != STOPPED for stat in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < give_up_at
