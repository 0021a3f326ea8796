"""Holding the lease of a cache queue from code without an event loop: a thread keeps it while Spark works.

Records are read and written elsewhere; this module returns how much waits, whether the lease is held, and confirms.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

import attrs
import trio

from broker_adapter.cache_queue import LeaseSettings, QueueDrain, QueueLease
from broker_adapter.cache_queue.errors import QueueLostError
from broker_adapter.cache_queue.names import shard_of, status_key
from broker_adapter.cache_queue.queue import definition_of
from broker_adapter.cache_queue.ranges import Range
from broker_adapter.cache_queue.stored import Counts, Status
from broker_adapter.state_forms import encode
from shards.history import HistoryGap
from shards.position import Start
from shards.seams.clock import SystemClock
from spark_export.errors import UnreadableError
from spark_export.live_shards import offset_of_change
from spark_export.read_history import ReadHistory
from spark_export.server_connection import PATIENCE_S, connected

WAIT_S: Final = 60.0
"""How long the queue's driver may take to give way, in seconds."""

_LOOK_PATIENCE_S: Final = 3.0
_Result = TypeVar("_Result")


@attrs.frozen(slots=True)
class Backlog:
    """The records that wait.

    Attributes:
        shard_id: Id of the queue's shard.
        cursor_offset: Everything below it has left the queue.
        start_offset: First offset that is still stored; records between the two were dropped.
        next_offset: Offset after the last record.
        changed_offset: From here on the queue has other records than in the history that was compared; None if all are
            the same.
        dead_offsets: Ranges of offsets whose records are dead letters already.
        restores: Restores from backups that the store knows.
    """

    shard_id: int
    cursor_offset: int
    start_offset: int
    next_offset: int
    changed_offset: int | None = None
    dead_offsets: Sequence[Range] = ()
    restores: tuple[HistoryGap, ...] = ()


class LeasedQueue:
    """A queue whose lease is held, as a context manager.

    Args:
        server: URL, as ``journal://host:port``.
        queue: The queue's name.
        wait_s: How long its present driver may take to give way, in seconds.
        lease: The lease settings of the queue's drivers.

    Raises:
        QueueNotFoundError: There is no such queue.
        QueueLostError: Its driver did not give way.
        UnreadableError: The server cannot be reached.
    """

    def __init__(self, server: str, queue: str, *, wait_s: float = WAIT_S, lease: LeaseSettings | None = None) -> None:
        self._server = server
        self._queue = queue
        self._shard = shard_of(queue)
        self._holder = f"journal-spark@{socket.gethostname()}:{os.getpid()}"
        self._wait_s = wait_s
        self._lease = lease or LeaseSettings()
        self._thread = threading.Thread(target=self._run, name="journal-queue-lease", daemon=True)
        self._has_begun = threading.Event()
        self._is_decided = threading.Event()
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._is_decided.wait()
            self._raise_failure()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    @property
    def is_lost(self) -> bool:
        """Whether another process may have the lease now."""
        return self._failure is not None

    def require(self) -> None:
        """Check that the lease is held, and the queue's offset is unchanged.

        Raises:
            QueueLostError: Another process has the queue, or changed its offset.
            UnreadableError: The server does not answer.
        """
        self._call(self._require_cursor)

    def backlog(self, read: ReadHistory) -> Backlog:
        """The records that wait now, compared with what was read before."""
        return self._call(lambda: self._look(read))

    def counts_up_to(self, next_offset: int) -> Counts:
        """The counts to confirm if the target has all records that wait below an offset; see `QueueDrain`."""
        return self._call(lambda: self._drain.counts_without_reading(next_offset))

    def confirm(self, next_offset: int, outcome: Counts) -> None:
        """Advance the queue's offset, and drop finished records. Returns when that is durable.

        Args:
            next_offset: Everything below it is finished.
            outcome: Outcomes of these records.

        Raises:
            QueueLostError: Another process changed the offset.
        """
        self._call(lambda: self._confirm(next_offset, outcome))

    def _call(self, work: Callable[[], Awaitable[_Result]]) -> _Result:
        self._raise_failure()

        async def patiently() -> _Result:
            with trio.fail_after(PATIENCE_S):
                return await work()

        try:
            return trio.from_thread.run(patiently, trio_token=self._token)
        except trio.TooSlowError:
            raise UnreadableError(
                f"the journal server at {self._server} does not answer within {PATIENCE_S:g} s (cache queue "
                f"{self._queue!r}); check that it runs, then drain again"
            ) from None
        except (trio.Cancelled, trio.ClosedResourceError, trio.RunFinishedError) as error:
            # The thread has ended, or is about to: its error has the reason.
            self._thread.join()
            self._raise_failure()
            raise UnreadableError(f"the connection to {self._server} was closed") from error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _leave(self) -> None:
        """Give the lease back, or stop waiting for it."""
        self._has_begun.wait()
        # If this fails the thread has ended by itself.
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._cancel)
        self._thread.join()

    # Runs in the thread

    def _run(self) -> None:
        try:
            trio.run(self._hold)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = _single(error)
        finally:
            self._has_begun.set()
            self._is_decided.set()

    async def _hold(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with trio.CancelScope() as self._held:
            self._has_begun.set()
            async with connected(self._server) as self._adapter:
                # After a cancellation the connection is still open, to give the lease back.
                with trio.CancelScope() as self._held:
                    await self._drive()

    def _cancel(self) -> None:
        self._held.cancel()

    async def _drive(self) -> None:
        await definition_of(self._adapter, self._queue)
        lease = QueueLease(self._adapter, self._queue, self._holder, self._lease)
        with trio.move_on_after(self._wait_s) as patience:
            try:
                async with lease.hold(ask=True) as grant:
                    patience.deadline = float("inf")
                    self._drain = QueueDrain(self._adapter, grant)
                    await self._drain.begin()
                    await self._set_state("draining")
                    self._is_decided.set()
                    try:
                        await trio.sleep_forever()
                    finally:
                        if self._held.cancel_called:
                            with trio.move_on_after(self._lease.renew_interval_s, shield=True):
                                await self._set_state("idle")
            except QueueLostError as error:
                # At once, so that callers get the error from now on.
                self._failure = error
        if patience.cancelled_caught:
            holder = await lease.holder()
            raise QueueLostError(
                f"the cache queue {self._queue!r} is driven by {holder or 'other processes that request it'}, which "
                f"did not give way within {self._wait_s:g} s; wait longer, or end that process"
            )

    async def _require_cursor(self) -> None:
        await self._drain.require_cursor()

    async def _look(self, read: ReadHistory) -> Backlog:
        info = await self._adapter.describe_shard(self._shard)
        restores = tuple(self._adapter.restores)
        lsn = read.common_lsn(self._shard, restores)
        changed_offset = None
        if lsn is not None and info.shard_id <= lsn:
            found_offset = await self._adapter.find_offset(self._shard, Start.lsn(lsn + 1))
            changed_offset = offset_of_change(info, found_offset)
        return Backlog(
            info.shard_id,
            self._drain.offset,
            info.start_offset,
            info.next_offset,
            changed_offset,
            self._drain.dead_offsets,
            restores,
        )

    async def _confirm(self, next_offset: int, outcome: Counts) -> None:
        await self._drain.confirm(next_offset, outcome, 0)
        await self._drain.trim()

    async def _set_state(self, state: str) -> None:
        now_us = SystemClock().now_us()
        drain = self._drain
        status = Status(self._holder, state, now_us, "", 0, drain.counts, drain.offset, 0.0, 0.0, now_us)
        await self._adapter.put_state(status_key(self._queue), encode(status))


def require_queue(server: str, queue: str) -> None:
    """Return if a server has a queue.

    Raises:
        InvalidNameError: The name is not valid.
        QueueNotFoundError: There is no such queue.
        UnreadableError: The server cannot be reached.
    """

    async def look() -> None:
        async with connected(server, patience_s=_LOOK_PATIENCE_S) as adapter:
            await definition_of(adapter, queue)

    trio.run(look)


def _single(error: Exception) -> Exception:
    """The single error in a group of one."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
