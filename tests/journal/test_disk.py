"""The disk thread is handed work and reports it, whatever happens to the process meanwhile."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import outcome
import pytest
import trio

from journal.engine.wal.disk import DirectOutcome, DirectWrite, DiskThread
from shards import compiled
from shards.model import ShardConfig
from tests.faults.processes import running
from tests.patience import PATIENCE_S

needs_direct_writes = pytest.mark.skipif(
    compiled.direct_writer_type is None, reason=f"loops are {compiled.DESCRIPTION}"
)
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


@contextmanager
def disk_and_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[tuple[DiskThread, int]]:
    disk, descriptor = DiskThread(NAME), os.open(path, flags)
    try:
        yield disk, descriptor
    finally:
        disk.close()
        os.close(descriptor)


async def written(disk: DiskThread, write: DirectWrite) -> DirectOutcome:
    found: list[DirectOutcome] = []
    done = trio.Event()

    def report(result: DirectOutcome) -> None:
        found.append(result)
        done.set()

    assert disk.may_write
    assert disk.write(write, report)
    assert not disk.may_write
    with trio.fail_after(PATIENCE_S):
        await done.wait()
    assert disk.may_write
    return found[0]


@needs_direct_writes
async def test_a_direct_write_is_in_the_file_when_it_is_reported(tmp_path: Path) -> None:
    with disk_and_file(tmp_path / "file") as (disk, descriptor):
        for number in range(20):
            buffers = [b"<%d>" % number, bytearray(b"a" * number), memoryview(b"z" * 100_000)[:5]]
            result = await written(disk, DirectWrite(descriptor, buffers, 100 * number, 0, 0))
            assert (result.is_written, result.error_number) == (True, 0)
            assert result.sync_s >= 0
            expected = b"".join(map(bytes, buffers))
            assert os.pread(descriptor, len(expected), 100 * number) == expected


@needs_direct_writes
async def test_a_direct_write_that_fails_says_whether_anything_could_be_synced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with disk_and_file(tmp_path / "file", os.O_RDONLY) as (disk, descriptor):
        result = await written(disk, DirectWrite(descriptor, [b"bytes"], 0, 0, 0))
        assert (result.is_written, result.error_number) == (False, errno.EBADF)
    # It takes all bytes, and cannot be synced.
    with disk_and_file(Path(os.devnull), os.O_WRONLY) as (disk, descriptor):
        result = await written(disk, DirectWrite(descriptor, [b"bytes"], 0, 0, 0))
        assert (result.is_written, result.error_number) == (True, errno.EINVAL)


@needs_direct_writes
async def test_more_buffers_than_one_call_takes_are_work_for_the_thread(tmp_path: Path) -> None:
    with disk_and_file(tmp_path / "file") as (disk, descriptor):
        assert not disk.write(DirectWrite(descriptor, [b"b"] * 1024, 0, 0, 0), lambda _: None)
        assert disk.may_write
        result = await written(disk, DirectWrite(descriptor, [b"b"] * 1023, 0, 0, 0))
        assert result.is_written


@needs_direct_writes
async def test_an_interrupted_thread_writes_directly_as_before(tmp_path: Path) -> None:
    with disk_and_file(tmp_path / "file") as (disk, descriptor), signals_taken():
        thread = the_thread()
        for number in range(20):
            await until_it_waits(thread)
            assert thread.ident is not None
            signal.pthread_kill(thread.ident, signal.SIGUSR1)
            result = await written(disk, DirectWrite(descriptor, [b"bytes"], number, 0, 0))
            assert result.is_written


@needs_direct_writes
@pytest.mark.parametrize("seed", range(5))
async def test_work_begins_when_the_direct_write_before_it_was_reported(tmp_path: Path, seed: int) -> None:
    """A journal notes in the report where the next group goes: work that wrote a mark before would destroy a group."""
    rng = random.Random(seed)
    begun, reported = [], []
    done = trio.Event()
    count = 300

    with disk_and_file(tmp_path / "file") as (disk, descriptor):

        def step(number: int) -> None:
            if number == count:
                done.set()
                return
            for _ in range(rng.randrange(3)):
                begin(number, may_write=False)
            begin(number, may_write=rng.random() < 0.7)

        waiting: list[int] = []

        def begin(number: int, *, may_write: bool) -> None:
            place = len(begun)
            begun.append(place)

            def report(result: object) -> None:
                assert not isinstance(result, outcome.Error)
                reported.append(place)
                waiting.remove(place)
                if not waiting:
                    step(number + 1)

            waiting.append(place)
            if may_write and disk.may_write:
                assert disk.write(DirectWrite(descriptor, [b"%d" % place], 0, 0, 0), report)
                # Submitted meanwhile: it must find the report of the write.
                extra = len(begun)
                begun.append(extra)
                waiting.append(extra)

                def check() -> None:
                    assert place in reported

                def report_extra(result: outcome.Outcome[None]) -> None:
                    result.unwrap()
                    reported.append(extra)
                    waiting.remove(extra)
                    if not waiting:
                        step(number + 1)

                disk.submit(check, report_extra)
            else:
                disk.submit(lambda: None, report)

        step(0)
        with trio.fail_after(PATIENCE_S):
            await done.wait()
    assert reported == begun


@needs_direct_writes
async def test_closing_waits_for_a_direct_write_and_for_what_is_behind_it(tmp_path: Path) -> None:
    reported: list[str] = []
    with disk_and_file(tmp_path / "file") as (disk, descriptor):
        assert disk.write(DirectWrite(descriptor, [b"x" * 1_000_000], 0, 0, 0), lambda _: reported.append("write"))
        disk.submit(lambda: None, lambda _: reported.append("work"))
    assert reported == ["write", "work"]
    assert (tmp_path / "file").stat().st_size == 1_000_000
