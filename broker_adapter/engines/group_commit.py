"""Group commit: everything written while one flush runs shares the next one. What is written is not known here."""

from __future__ import annotations

from collections.abc import Callable

import trio

from shards.errors import StorageError, StorageFailedError, afresh
from shards.seams.store import Mutations, OrderedStore


class CommitGroup:
    """Writes that become durable by the same flush."""

    __slots__ = ("_done", "_on_durable", "_on_finished", "error")

    def __init__(self) -> None:
        self._done = trio.Event()
        self._on_durable: list[Callable[[], None]] = []
        self._on_finished: list[Callable[[StorageError | None], None]] = []
        self.error: StorageError | None = None

    def on_finished(self, callback: Callable[[StorageError | None], None]) -> None:
        """Call this on the event loop with the outcome, after all that waits for durability; now, if it is known."""
        if self._done.is_set():
            callback(self.error)
        else:
            self._on_finished.append(callback)

    def on_durable(self, callback: Callable[[], None]) -> None:
        """Call this on the event loop once the group is durable (now, if it is); never, when the flush fails."""
        if not self._done.is_set():
            self._on_durable.append(callback)
        elif self.error is None:
            callback()

    async def wait(self) -> None:
        """Return when the group is durable.

        Raises:
            StorageFailedError: The flush failed; whether the writes survive is unknown.
        """
        await self._done.wait()
        if self.error is not None:
            raise afresh(self.error)

    def finish(self, error: StorageError | None) -> None:
        """Called by the committer, once."""
        self.error = error
        if error is None:
            for callback in self._on_durable:
                callback()
        self._done.set()
        for tell in self._on_finished:
            tell(error)


class GroupCommit:
    """One committer over a store; `run` is its task.

    Args:
        store: What is flushed.
        durable: False for a store that keeps nothing: every group is done as soon as it is asked for.
    """

    def __init__(self, store: OrderedStore, *, durable: bool) -> None:
        self._store = store
        self._durable = durable
        # Flushes wait in a thread of their own: the process's other threads may all be busy with slow work.
        self._limiter = trio.CapacityLimiter(1)
        self._collecting: CommitGroup | None = None
        self._running: CommitGroup | None = None
        self._wanted = trio.Event()
        self._failure: StorageError | None = None

    @property
    def has_failed(self) -> bool:
        """Whether a write or flush failed; see `require_working`."""
        return self._failure is not None

    def require_working(self) -> None:
        """Raise the error of a failed write or flush: after one, nothing is acknowledged until it is reopened."""
        if self._failure is not None:
            raise afresh(self._failure)

    def write(self, mutations: Mutations) -> None:
        """Write to the store at once, without waiting for anything.

        Raises:
            StorageFailedError: This or an earlier write or flush failed. It is final: what is held in memory beside the
                store may be ahead of it now.
        """
        self.require_working()
        try:
            self._store.write(mutations)
        except StorageError as error:
            self._failure = error
            raise

    def request(self, on_durable: Callable[[], None] | None = None) -> CommitGroup:
        """Have everything written so far made durable; the group tells when it is.

        Raises:
            StorageFailedError: An earlier write or flush failed.
        """
        self.require_working()
        group = self._collecting
        if group is None:
            group = CommitGroup()
            if self._durable:
                self._collecting = group
                self._wanted.set()
            else:
                group.finish(None)
        if on_durable is not None:
            group.on_durable(on_durable)
        return group

    def last_wanted(self) -> CommitGroup | None:
        """The last group that somebody waits for, None if there is none: all writes waited for are in it or before."""
        return self._collecting or self._running

    async def settle(self) -> None:
        """Wait until all writes that somebody waits for now are durable."""
        for group in (self._running, self._collecting):
            if group is not None:
                await group.wait()

    async def run(self) -> None:
        """Flush group after group until cancelled. A failed flush is final: the committer goes on only to refuse."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            group, self._collecting = self._collecting, None
            assert group is not None  # Invariant: whoever sets the event has made a group.
            self._running = group
            with trio.CancelScope(shield=True):
                error = self._failure or await self._flush()
            self._failure, self._running = error, None
            group.finish(error)

    async def _flush(self) -> StorageError | None:
        try:
            await trio.to_thread.run_sync(self._store.flush, limiter=self._limiter)
        except StorageError as error:
            return error
        except OSError as error:
            return StorageFailedError(
                f"flushing the store failed: {error}; nothing more is acknowledged until it is opened anew"
            )
        return None
