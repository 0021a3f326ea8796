"""Retries of writes that could not be done at once: a group without disk space, a busy store of the views.

Neither is a failure. A separate task retries them; it waits for nothing else, since work that frees space or time may
wait for these writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.engine.wal.group_commit import Committer
from shards.errors import DiskFullError
from shards.seams.store import OrderedStore

MOST_QUEUED_BYTES: Final = 8 << 20
"""No more groups are committed while the store has this many bytes queued."""

_LOOK_AGAIN_S: Final = 1.0


class WriteRetries:
    """The retries of one engine.

    Args:
        store: The store of the views.
        committer: Commits the groups.
        off_loop: Runs the blocking calls of the store.
        changed: Called when `disk_full` may have changed, or the store accepts writes again.
        fail: Called with an error that stops the engine.
    """

    def __init__(
        self,
        store: OrderedStore,
        committer: Committer,
        off_loop: OffLoop,
        *,
        changed: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._store = store
        self._committer = committer
        self._changed = changed
        self._fail = fail
        self._off_loop = LimitedOffLoop(off_loop)
        self._wanted = trio.Event()
        self._store_full: DiskFullError | None = None
        committer.on_disk_full = self._disk_full_changed

    @property
    def disk_full(self) -> DiskFullError | None:
        """The error of a write that waits for disk space; None if there is none."""
        return self._committer.disk_full or self._store_full

    def look(self) -> None:
        """Check the store after each commit group: it may not have accepted all writes."""
        queued_bytes = self._store.queued_bytes
        if queued_bytes:
            self._wanted.set()
            if queued_bytes > MOST_QUEUED_BYTES and self._store_full is None:
                # Not while the store's disk is full: then only changes that free space are accepted.
                self._committer.hold()

    def store_is_full(self, error: DiskFullError) -> None:
        """Note that the store could not be flushed for lack of space."""
        self._store_full = error
        self._wanted.set()

    def _disk_full_changed(self) -> None:
        self._wanted.set()
        self._changed()

    async def run(self) -> None:
        """Retry until cancelled, or until the engine fails."""
        try:
            while self._committer.failure is None:
                await self._wanted.wait()
                self._wanted = trio.Event()
                await self._catch_up()
                self._committer.release()
                self._committer.retry()
                self._changed()
                if self.disk_full is not None:
                    # There is no event for free disk space.
                    await trio.sleep(_LOOK_AGAIN_S)
                    self._wanted.set()
        except Exception as error:  # noqa: BLE001 after any error nothing more may be acknowledged
            self._fail(error)

    async def _catch_up(self) -> None:
        try:
            await self._off_loop(self._store.catch_up)
        except DiskFullError as error:
            self._store_full = error
        else:
            self._store_full = None
