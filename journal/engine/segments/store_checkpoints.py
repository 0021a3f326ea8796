"""Checkpoints of the views in the log store, made by the owner of a store, and what they allow to delete there.

See `journal.engine.shared_log.stored_views` for what a checkpoint is, and why it is stored only when the log files of
its time are not needed any more.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import attrs
import trio

from journal.engine.directory.data_directory import DataDirectory, let_go_of_snapshot
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.shared_log.stored_views import LOG_ENDS, StoredViews, encode_log_ends
from journal.engine.shared_log.writer import ResumePoint
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.logstore.errors import LogStoreError, StoreDeposedError
from journal.logstore.keys import FileName
from journal.settings.server import ConversionConfig
from shards.back_off import BackOff
from shards.errors import StorageError
from shards.seams.store import DirectoryStore
from shards.views.shard_records import log_ends
from shards.views.shared_files import SharedFiles

_log = logging.getLogger("journal.engine")

_LOADED_AGAIN_S: Final = 5.0


@attrs.frozen(slots=True)
class _Captured:
    """A copy of the views.

    Attributes:
        path: Its directory, in which the views are the directory ``state``.
        point: Where reading the log goes on.
        segments: Shard id and base offset of each segment that had records in a log file.
    """

    path: str
    point: ResumePoint
    segments: frozenset[tuple[int, int]]


class StoreCheckpoints:
    """Makes the checkpoints of one owner.

    Args:
        stored: The checkpoints and files in the log store.
        directory: The data directory.
        store: The store of the views.
        records: The shared files that the views know of.
        checkpointer: Makes the checkpoints of this server.
        off_loop: Does what blocks.
        conversion: Says within which time records are converted, before which a checkpoint cannot be stored.
        newest_lsn: Returns the newest lsn of the journal.
        has_failed: Returns whether the engine has failed, after which nothing is stored any more.

    Attributes:
        stored_at: When a checkpoint was last stored, or there was nothing new to store, by trio's clock; the time of
            the start before that.
    """

    def __init__(
        self,
        *,
        stored: StoredViews,
        directory: DataDirectory,
        store: DirectoryStore,
        records: SharedFiles,
        checkpointer: Checkpointer,
        off_loop: OffLoop,
        conversion: ConversionConfig,
        newest_lsn: Callable[[], int],
        has_failed: Callable[[], bool],
    ) -> None:
        self._stored = stored
        self._directory = directory
        self._store = store
        self._records = records
        self._checkpointer = checkpointer
        self._off_loop = LimitedOffLoop(off_loop)
        self._converted_after_s = float(conversion.max_age_s)
        self._looks = BackOff(conversion.gather_after_s, self._converted_after_s, jitter=0.0)
        self._newest_lsn = newest_lsn
        self._has_failed = has_failed
        self.stored_at = trio.current_time()

    async def run(self, epoch: int) -> None:
        """Make checkpoints, and delete what nothing needs, until cancelled or until another server owns the store.

        Args:
            epoch: The epoch that this server owns.
        """
        while not await self._succeeds("read", self._stored.load):  # noqa: ASYNC110 the log store tells nothing
            await trio.sleep(_LOADED_AGAIN_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                self._stored.files.delete_unneeded,
                epoch,
                lambda: (self._records.generation, self._stored.oldest, self._stored.newest),
                self._is_needed,
            )
            await self._make_checkpoints(epoch)

    def _is_needed(self, name: FileName) -> bool:
        return self._records.get((name.day, name.file_id)) is not None or self._stored.names(name)

    async def _make_checkpoints(self, epoch: int) -> None:
        stored_lsn = 0
        while True:
            await trio.sleep(self._looks.first_s)
            if (lsn := self._newest_lsn()) == stored_lsn:
                # The last one has everything.
                self.stored_at = trio.current_time()
                continue

            async def make() -> None:
                async with self._captured() as captured:
                    await trio.sleep(self._converted_after_s)
                    looks = 0
                    # A segment may never be converted, and each look costs a checkpoint of this server.
                    while not await self._is_superseded(captured):
                        await trio.sleep(self._looks.delay_s(looks))
                        looks += 1
                    await self._stored.publish(captured.point, f"{captured.path}/state", epoch)
                    self.stored_at = trio.current_time()

            if await self._succeeds("stored", make):
                stored_lsn = lsn
                await self._succeeds("collected", partial(self._stored.collect, epoch))

    async def _succeeds(self, what: str, work: Callable[[], Awaitable[object]]) -> bool:
        """Do something that is tried again later if the disk or the log store refuses."""
        try:
            await work()
        except (LogStoreError, StorageError, OSError) as error:
            if isinstance(error, StoreDeposedError) or self._has_failed():
                # The task that watches the claims, or the engine, logs it and ends this one.
                await trio.sleep_forever()
            _log.warning("checkpoints cannot be %s in the log store for now: %s", what, error)
            return False
        return True

    @asynccontextmanager
    async def _captured(self) -> AsyncIterator[_Captured]:
        """A copy of the views right after a checkpoint, for the length of the block."""
        path = f"{self._directory.snapshots}/{secrets.token_hex(4)}"
        taken: list[_Captured] = []

        async def take() -> None:
            point = self._checkpointer.log_point
            assert point is not None
            await self._off_loop(partial(self._copy, path))
            ends = await self._log_ends()
            await self._off_loop(partial(self._write_ends, f"{path}/state/{LOG_ENDS}", encode_log_ends(ends)))
            segments = frozenset((shard_id, base_offset) for shard_id, base_offset, _ in ends)
            taken.append(_Captured(path, point, segments))

        try:
            with trio.CancelScope(shield=True):
                await self._checkpointer.after_checkpoint(take)
            yield taken[0]
        finally:
            with trio.CancelScope(shield=True):
                await self._off_loop(partial(let_go_of_snapshot, self._directory.files, path))

    def _copy(self, path: str) -> None:
        self._directory.files.mkdir(path)
        self._store.copy_to(f"{path}/state")

    def _write_ends(self, path: str, content: bytes) -> None:
        file = self._directory.files.open(path, create=True)
        try:
            file.pwritev([content], 0)
        finally:
            file.close()

    async def _log_ends(self) -> list[tuple[int, int, int]]:
        """Shard id, base offset and end of each segment with records in a log file, as of the last checkpoint."""
        found: list[tuple[int, int, int]] = []
        step = TimeSlice()
        for end in log_ends(self._store):
            if step.is_over:
                await step.rest()
            if end is not None:
                found.append(end)
        return found

    async def _is_superseded(self, captured: _Captured) -> bool:
        """Whether nothing that was in a log file at that time is in one now."""
        await self._checkpointer.after_checkpoint(trio.lowlevel.checkpoint)
        return captured.segments.isdisjoint((shard_id, base) for shard_id, base, _ in await self._log_ends())
