"""Where blocking work is done, so that the event loop never waits for a disk: in threads, or at once without a disk.

The journal is written by one thread of its own, `DiskThread`. Its results are reported by callbacks on the loop: a
commit costs two hand-overs between threads and little more. All other blocking work goes through an `OffLoop`.

`RetriableWhenFull` tells a full disk from a failed one.
"""

from __future__ import annotations

import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, TypeAlias, TypeVar

import attrs
import outcome
import trio

from shards.compiled import direct_writer_type
from shards.errors import DiskFullError
from shards.segments.chunks import Readable

_COUNTER_BYTES: Final = 8

_T = TypeVar("_T")

Work: TypeAlias = Callable[[], None]
Done: TypeAlias = Callable[[outcome.Outcome[None]], None]


@attrs.frozen(slots=True)
class DirectWrite:
    """Bytes that a `Disk` writes and syncs itself, without any code of the owner of the file.

    Attributes:
        descriptor: Of a file of the operating system.
        buffers: The bytes, which must not change meanwhile.
        position: Where they begin in the file.
        size_bytes: For the owner: number of these bytes without those that it has added.
        next_lsn: For the owner: lsn after the last entry in them.
    """

    descriptor: int
    buffers: list[Readable]
    position: int
    size_bytes: int
    next_lsn: int


@attrs.frozen(slots=True)
class DirectOutcome:
    """What became of a `DirectWrite`.

    Attributes:
        is_written: All of it was written. If not, nothing was synced, and the whole may be written again.
        error_number: Number of the error of the sync, or of the write if it is not written; 0 for none.
        sync_s: Seconds of the sync.
    """

    is_written: bool
    error_number: int
    sync_s: float


class Disk(Protocol):
    """Runs blocking work, one piece after the other, and reports each result on the event loop."""

    @property
    def may_write(self) -> bool:
        """Whether `write` is possible now: nothing is under way, and nothing waits."""

    def write(self, write: DirectWrite, done: Callable[[DirectOutcome], None]) -> bool:
        """Write and sync; ``done`` is called on the event loop. False if it has to be submitted as work.

        Work that is submitted meanwhile begins after ``done`` has returned.

        REQUIRES: `may_write`.
        """

    def submit(self, work: Work, done: Done) -> None:
        """Queue ``work``; ``done`` is called on the event loop with its outcome."""

    def close(self) -> None:
        """Finish the queued work and end; no `submit` may follow."""


class DiskThread:
    """A `Disk` with a thread of its own.

    Work and results are handed over through two queues with an eventfd each: this takes about half the time of a thread
    queue and `TrioToken.run_sync_soon`, which matters when one caller waits for one commit after the other.

    A `DirectWrite` is carried out without the interpreter's lock, if that part is compiled: the event loop holds the
    lock for some time after it has handed the write over, and the thread would have to wait for it three times.
    """

    def __init__(self, name: str) -> None:
        self._work: deque[tuple[Work, Done] | None] = deque()
        self._results: deque[tuple[Done, outcome.Outcome[None]]] = deque()
        self._has_work = os.eventfd(0, os.EFD_CLOEXEC)
        self._has_results = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._direct = None if direct_writer_type is None else direct_writer_type(self._has_work, self._has_results)
        self._direct_done: Callable[[DirectOutcome], None] | None = None
        self._unreported = 0
        # Work that was submitted during a direct write, until that is reported.
        self._held: list[tuple[Work, Done]] = []
        self._is_holding = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        trio.lowlevel.spawn_system_task(self._report, name=f"{name}-results")

    def submit(self, work: Work, done: Done) -> None:
        """Queue ``work`` for the thread."""
        self._unreported += 1
        if self._is_holding:
            self._held.append((work, done))
        else:
            self._work.append((work, done))
            os.eventfd_write(self._has_work, 1)

    @property
    def may_write(self) -> bool:
        """Whether nothing is under way, and direct writes are compiled."""
        return self._direct is not None and not self._unreported and self._direct_done is None

    def write(self, write: DirectWrite, done: Callable[[DirectOutcome], None]) -> bool:
        """Have the thread write and sync without the interpreter's lock."""
        assert self._direct is not None  # required
        if not self._direct.write(write.descriptor, write.buffers, write.position):
            return False
        self._direct_done = done
        self._is_holding = True
        return True

    def close(self) -> None:
        """Wait for the queued work, report it, and end the thread."""
        results = select.poll()
        results.register(self._has_results, select.POLLIN)
        while self._is_holding:
            results.poll()
            self._take_results()
        self._work.append(None)
        os.eventfd_write(self._has_work, 1)
        self._thread.join()
        self._report_now()
        self._is_closed = True
        trio.lowlevel.notify_closing(self._has_results)
        os.close(self._has_work)
        os.close(self._has_results)

    def _run(self) -> None:
        while True:
            if self._direct is not None:
                self._direct.wait()
            else:
                # Not `os.eventfd_read`: a signal that interrupts it raises, and the thread would end.
                os.read(self._has_work, _COUNTER_BYTES)
            while self._work:
                item = self._work.popleft()
                if item is None:
                    return
                work, done = item
                self._results.append((done, outcome.capture(work)))
                os.eventfd_write(self._has_results, 1)

    async def _report(self) -> None:
        # It may be closed before this task has run for the first time.
        while not self._is_closed:
            try:
                await trio.lowlevel.wait_readable(self._has_results)
            except trio.ClosedResourceError:
                return
            if not self._is_closed:
                self._take_results()

    def _take_results(self) -> None:
        with suppress(BlockingIOError):
            # When it is being closed, the results may have been taken since this was woken.
            os.read(self._has_results, _COUNTER_BYTES)
        self._report_now()

    def _report_now(self) -> None:
        while self._results:
            done, result = self._results.popleft()
            self._unreported -= 1
            done(result)
        if self._direct_done is not None:
            self._report_direct(self._direct_done)

    def _report_direct(self, done: Callable[[DirectOutcome], None]) -> None:
        assert self._direct is not None  # it has written
        found = self._direct.outcome()
        if found is None:
            return
        self._direct_done = None
        try:
            done(DirectOutcome(*found))
        finally:
            # The next direct write may have begun.
            if self._direct_done is None:
                self._is_holding = False
                held, self._held = self._held, []
                self._work.extend(held)
                if held:
                    os.eventfd_write(self._has_work, 1)


class MemoryDisk:
    """A `Disk` for files in memory: work is done, and reported, before `submit` returns.

    What a report submits in turn is done after that report has returned, as with a disk that takes time.
    """

    may_write = False

    def __init__(self) -> None:
        self._work: deque[tuple[Work, Done]] = deque()
        self._is_working = False

    def write(self, write: DirectWrite, done: Callable[[DirectOutcome], None]) -> bool:
        """Files in memory have no descriptors."""
        return False

    def submit(self, work: Work, done: Done) -> None:
        """Do the work."""
        self._work.append((work, done))
        if self._is_working:
            return
        self._is_working = True
        try:
            while self._work:
                work, done = self._work.popleft()
                done(outcome.capture(work))
        finally:
            self._is_working = False

    def close(self) -> None:
        """Nothing to end."""


class OffLoop(Protocol):
    """Runs blocking work for the task that calls it."""

    async def __call__(self, work: Callable[[], _T], *, limiter: trio.CapacityLimiter) -> _T:
        """Return the result of ``work``. The limiter bounds the number of such calls at a time."""


async def in_thread(work: Callable[[], _T], *, limiter: trio.CapacityLimiter) -> _T:
    """An `OffLoop` that uses threads."""
    return await trio.to_thread.run_sync(work, limiter=limiter)


async def at_once(work: Callable[[], _T], *, limiter: trio.CapacityLimiter) -> _T:
    """An `OffLoop` for work that does not block, because the files and the store are in memory."""
    async with limiter:
        return work()


class LimitedOffLoop:
    """The blocking work of one owner: an `OffLoop` with a limiter of its own, so that it leaves others their threads.

    Args:
        off_loop: Runs the work.
        at_a_time: Number of pieces of work that may run at the same time.

    Attributes:
        limiter: With one piece at a time, none runs while a task holds it (``async with``).
    """

    def __init__(self, off_loop: OffLoop, at_a_time: int = 1) -> None:
        self._run = off_loop
        self.limiter = trio.CapacityLimiter(at_a_time)

    async def __call__(self, work: Callable[[], _T]) -> _T:
        """Return the result of ``work``."""
        return await self._run(work, limiter=self.limiter)


class RetriableWhenFull:
    """Translates the error of a full disk or quota in its block into `DiskFullError`, after which a retry is possible.

    A write that found no space lost nothing: that holds for operations that make files grow (writing, creating a file
    or directory), as long as the bytes are still in memory. It does not hold for a sync, which covers bytes of earlier
    writes as well: do not sync in the block.

    A class rather than a generator, which would take four times as long: each group that is written enters it. It has
    no state, so one object can be used for any number of blocks.

    Args:
        directory: Where space is needed; the error names it.

    Raises:
        DiskFullError: There is no space.
    """

    __slots__ = ("_directory",)

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and isinstance(error, OSError) and is_full(error):
            raise disk_full(self._directory, error) from error


def is_full(error: OSError) -> bool:
    """Whether an error means that there is no space, on the file system or in the user's quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(directory: str, error: OSError) -> DiskFullError:
    """The error for a directory whose file system has no space left, or whose owner has used up the quota."""
    assert error.errno is not None
    return DiskFullError(
        f"{directory}: {os.strerror(error.errno)}; free some space there. Appends are then accepted again without a "
        f"restart; reads continue"
    )
