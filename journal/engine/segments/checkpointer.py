"""Checkpoints and flushes: they bound the memory, the size of the journal and the time of a start.

Tails are flushed to log files when they hold a certain number of bytes. A checkpoint recycles journal files when the
journal has reached its budget. The same task does the other background work between them: retention, removal of files
and entries, a look at the disk.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable

import trio

from journal.engine.directory.data_directory import DataDirectory
from journal.engine.directory.restores import Restores
from journal.engine.environment import Environment
from journal.engine.segments.checkpoint_requests import CheckpointRequests
from journal.engine.segments.disk_space import DiskSpace
from journal.engine.segments.flusher import LARGE_TAIL_BYTES, Flusher, slices
from journal.engine.segments.journal_upkeep import JournalUpkeep
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.segments.record_saver import RecordSaver
from journal.engine.segments.retention import SegmentRetention
from journal.engine.segments.shared_file_removal import SharedFileRemoval
from journal.engine.segments.view_cleanup import ViewCleanup
from journal.engine.segments.write_retries import MOST_QUEUED_BYTES, WriteRetries
from journal.engine.shared_log.writer import ResumePoint
from journal.engine.state.node_record import NodeKey, put_number
from journal.engine.state.node_time import NodeTime
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.wal.disk import Disk, LimitedOffLoop
from journal.engine.wal.group_commit import Committer
from journal.engine.wal.journal_writer import JournalWriter
from journal.engine.write.commands import Commands
from journal.settings.server import ServerConfig
from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram
from shards.errors import DiskFullError, StorageFailedError
from shards.seams.store import Mutations
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from shards.views.shared_files import FileKey

_log = logging.getLogger("journal.maintenance")

_SAVED_AT_ONCE = 50
SHARED_DROPS_WAIT_S = 600.0
"""A checkpoint is made at the latest so long after the last one when segments in shared files were dropped since."""


class Checkpointer:
    """The background work of one engine; one task runs it, so its steps never overlap.

    Args:
        environment: If the next start does not find what is written, tails stay in memory and have no budget: nothing
            reads them from files, and appends are not in the journal.
        closing: Called with a shard that is about to be closed, because nothing uses it.
        flushed: Called when tails that were to be flushed soon are in their files, or the disk is full.
        put_parts: Returns when no parts of shared files are pending that decisions so far put into shards.
        may_remove: Returns whether a shared file to which nothing refers may be removed already.
        resume: Returns where reading the log of the store goes on later, if everything before an lsn is kept; None if
            there is no such log.

    Attributes:
        dirty: Shards that changed since their records were saved.
        journal: Prepares, marks and recycles journal files.
        retention: Applies the retention of shards.
        checkpoints: Checkpoints made since the start.
        checkpoint_lsn: Everything up to this lsn is durable without the journal.
        log_point: Where reading the log of the store goes on after the last checkpoint; None before the first one, or
            if there is no such log.
        checkpointed_at: When the last checkpoint was made, by trio's clock; the time of the start before the first one.
        checkpoint_s: Durations of the checkpoints in seconds.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        directory: DataDirectory,
        config: ServerConfig,
        disk: Disk,
        writer: JournalWriter,
        committer: Committer,
        table: ShardTable,
        views: Views,
        commands: Commands,
        time: NodeTime,
        restores: Restores,
        fail: Callable[[Exception], None],
        segment_files: SegmentFiles,
        disk_space: DiskSpace,
        view_cleanup: ViewCleanup,
        record_saver: RecordSaver,
        checkpoint_lsn: int,
        closing: Callable[[Shard], None],
        flushed: Callable[[], None],
        put_parts: Callable[[], Awaitable[None]],
        may_remove: Callable[[FileKey], bool],
        resume: Callable[[int], ResumePoint | None],
    ) -> None:
        self._directory = directory
        self._storage = storage = config.storage
        # The same pass closes segments by age: it comes often enough for the age that they may have.
        self._retention_interval_s = min(storage.retention_interval_s, max(1.0, config.conversion.gather_after_s))
        self._writer = writer
        self._committer = committer
        self._table = table
        self._views = views
        self._commands = commands
        self._time = time
        self._restores = restores
        self._fail = fail
        self._off_loop = LimitedOffLoop(environment.off_loop)
        self._wake = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()
        self._flusher = Flusher(
            environment.files, directory.log, storage, self._progress.unpark_all, environment.off_loop
        )
        self._disk_space = disk_space
        self._view_cleanup = view_cleanup
        self._record_saver = record_saver
        self._retries = WriteRetries(views.store, committer, environment.off_loop, changed=self._go_on, fail=fail)
        self._keeps_tails = not environment.lasts
        self._tail_budget_bytes = storage.tail_budget_bytes if environment.lasts else sys.maxsize
        self._large_tails_at = self._tail_budget_bytes // 8
        self._flushed = flushed
        self._put_parts = put_parts
        self._resume = resume
        self._segment_files = segment_files
        self._shared_files = SharedFileRemoval(
            files=views.files,
            store=views.store,
            segment_files=segment_files,
            root=table.sealed_root,
            checkpoint_lsn=checkpoint_lsn,
            may_remove=may_remove,
        )
        self.journal = JournalUpkeep(
            directory=directory.journal,
            storage=storage,
            writer=writer,
            committer=committer,
            disk=disk,
            off_loop=self._off_loop,
            disk_space=disk_space,
        )
        self.retention = SegmentRetention(
            defaults=config.shards,
            conversion=config.conversion,
            table=table,
            commands=commands,
            committer=committer,
            expiry_us=time.expiry_us,
            monotonic_us=time.monotonic_us,
            drop=self.drop,
            closing=closing,
            is_waiting=lambda shard: shard.shard_id in self.dirty or shard.shard_id in self._to_flush,
        )
        self._to_flush: dict[int, Shard] = {}
        self._shared_drops = 0
        self._is_wanted_soon = False
        self._flush_done = trio.Event()
        self._requests = CheckpointRequests()
        self._has_ended = False
        self.dirty: dict[int, Shard] = {}
        self.checkpoints = 0
        self.checkpoint_lsn = checkpoint_lsn
        self.log_point: ResumePoint | None = None
        self.checkpointed_at = trio.current_time()
        self.checkpoint_s = Histogram(DURATION_BOUNDS_S)

    # Back-pressure

    def has_room(self) -> bool:
        """Whether more file-mode appends may be accepted without exceeding the memory and journal budgets.

        Always true while the disk is full: appends are refused then, and reads and changes that free space must go on.
        """
        return self._disk_space.full is not None or (
            self._table.tail_pool.held_bytes < self._tail_budget_bytes
            and self._views.store.queued_bytes < MOST_QUEUED_BYTES
            and (
                self._writer.used_bytes < self._storage.journal_budget_bytes + self._storage.journal_file_bytes
                # The file that is being written cannot be recycled. It may exceed the budget after a change of
                # settings.
                or self._writer.used_count < 2
            )
        )

    async def wait_for_room(self) -> None:
        """Return when `has_room`, or when the engine has failed; an append after it then reports the failure."""
        while not self.has_room() and self._committer.failure is None:
            self._retries.look()
            if self._views.store.queued_bytes < MOST_QUEUED_BYTES:
                # The background task makes no room if the store of the views is behind: then only its progress counts.
                self.wake()
            await self._progress.park()

    def wake_if_needed(self) -> None:
        """Wake the background task early, when half of a budget is used; very cheap otherwise."""
        self._retries.look()
        if self._tails_due() or self._large_tails_due() or self._checkpoint_due() or not self._writer.spare_count:
            self.wake()

    def wake(self) -> None:
        """Wake the background task."""
        self._wake.set()

    def _tails_due(self) -> bool:
        return self._table.tail_pool.held_bytes * 2 > self._tail_budget_bytes

    def _large_tails_due(self) -> bool:
        return self._table.tail_pool.held_bytes > self._large_tails_at

    def checkpoint_soon(self) -> None:
        """Make a checkpoint as the next thing; if the disk is full, as soon as there is room."""
        self._is_wanted_soon = True
        self.wake()

    def _checkpoint_due(self) -> bool:
        if self._is_wanted_soon:
            return True
        if self._writer.used_count > 1 and self._writer.used_bytes * 2 > self._storage.journal_budget_bytes:
            return True
        # Only a checkpoint tells which shared files have dead records; a quiet node would wait for it for days.
        return self._shared_drops > 0 and trio.current_time() - self.checkpointed_at >= SHARED_DROPS_WAIT_S

    def _may_free_journal(self) -> bool:
        """Whether the journal has no space for its next file, and a checkpoint would free one."""
        return self._committer.disk_full is not None and self._writer.used_count > 1

    def _go_on(self) -> None:
        try:
            self.look_at_disk()
        except (OSError, StorageFailedError) as error:
            # Called by the committer when the disk thread has reported: nothing above takes an error.
            self._fail(error)
        if self._committer.disk_full is not None:
            self.wake()
        self._progress.unpark_all()

    # The task

    async def run(self) -> None:
        """Work until cancelled. An error of the disk or the views stops the engine and with it this task."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._retries.run)
            nursery.start_soon(self._expire_state)
            await self._work()
            nursery.cancel_scope.cancel()

    async def _work(self) -> None:
        next_retention = trio.current_time() + self._retention_interval_s
        try:
            self.look_at_disk()
            await self.retention.open_shards()
            while self._committer.failure is None:
                with trio.move_on_after(self._storage.flush_interval_ms / 1000):
                    await self._wake.wait()
                self._wake = trio.Event()
                self.look_at_disk()
                if self._requests:
                    await self._carry_out()
                elif self._checkpoint_due() or self._may_free_journal():
                    await self.checkpoint()
                elif self._tails_due():
                    await self.flush()
                elif self._large_tails_due():
                    await self._flush_large_tails()
                if self._to_flush:
                    await self._flush_soon()
                await self.remove_files()
                await self._remove_shared_files()
                await self.clean_views()
                await self.prepare_spares()
                await self.journal.mark_when_idle()
                if trio.current_time() >= next_retention and self._committer.disk_full is None:
                    next_retention = trio.current_time() + self._retention_interval_s
                    await self.retention.apply()
                self._progress.unpark_all()
        except Exception as error:  # noqa: BLE001 after any error nothing more may be acknowledged
            self._fail(error)
        finally:
            self._has_ended = True
            self._flush_done.set()
            failure = self._committer.failure or StorageFailedError("the server is stopping; nothing was done")
            self._requests.end(failure)
            self._progress.unpark_all()

    async def prepare_spares(self) -> None:
        """Prepare zeroed journal files before they are needed, one for each call."""
        if await self.journal.prepare_spares():
            self.wake()

    def look_at_disk(self) -> None:
        """Refuse appends before a disk is completely full, and accept them again when there is space.

        Raises:
            StorageFailedError: A directory is not the one that was opened.
        """
        self._require_in_place()
        self._disk_space.look(self._retries.disk_full)

    def _require_in_place(self) -> None:
        """Check that the data directory and its parts are those that were opened.

        Everything is written to those. But the next start opens what is under their names: so nothing that it would
        miss may be acknowledged for long, or be dropped from the journal.

        Raises:
            StorageFailedError: One was moved, unmounted or replaced.
        """
        self._directory.files.require_in_place()
        self._views.store.check_directory()

    # Flushing and checkpoints

    async def flush(self, *, least_bytes: int = 0) -> bool:
        """Write committed batches that are only in memory into their log files; False if the disk is full."""
        if self._keeps_tails:
            return True
        try:
            await self._flusher.flush(self.dirty.values(), least_bytes=least_bytes)
        except DiskFullError as error:
            self._disk_space.refuse_for(error)
            return False
        return True

    async def _flush_large_tails(self) -> None:
        """Flush large tails early, so that less is left for the next flush and in the page cache."""
        await self.flush(least_bytes=LARGE_TAIL_BYTES)
        # There may be many small tails only: do not check them again before there is more.
        budget = self._tail_budget_bytes
        self._large_tails_at = max(budget // 8, self._table.tail_pool.held_bytes + budget // 16)

    def flush_soon(self, shard: Shard) -> None:
        """Write the committed batches of a shard to its log files as soon as possible."""
        self._to_flush[shard.shard_id] = shard
        self.wake()

    async def flush_all(self, shards: Iterable[Shard]) -> None:
        """Write the committed batches of shards to their log files.

        Returns when that is done, or when it cannot be: the disk is full, or the engine is stopping or has failed.
        """
        wanted = {shard.shard_id: shard for shard in shards}
        if not wanted or self._has_ended:
            await trio.lowlevel.checkpoint()
            return
        self._to_flush |= wanted
        self.wake()
        await self._flush_done.wait()

    async def _flush_soon(self) -> None:
        shards, self._to_flush = self._to_flush, {}
        done, self._flush_done = self._flush_done, trio.Event()
        try:
            await self._flusher.flush(shards.values())
        except DiskFullError as error:
            self._disk_space.refuse_for(error)
        finally:
            done.set()
        self._flushed()

    async def after_checkpoint(self, work: Callable[[], Awaitable[None]]) -> None:
        """Make a checkpoint and call ``work`` directly after it, before any other background work.

        While ``work`` runs, no file of a segment is removed, no record of a shard is saved and no journal file is
        recycled. Cancelling ends the wait, not the work.

        Raises:
            DiskFullError: No checkpoint could be made.
            StorageFailedError: The engine is stopping or has failed.
            Exception: Any error of ``work``; it does not stop the engine.
        """
        if self._has_ended:
            raise self._committer.failure or StorageFailedError(f"the storage in {self._directory.path} is closed")
        await self._requests.wait(work, self.wake)

    async def require_checkpoint(self) -> None:
        """Make a checkpoint.

        Raises:
            DiskFullError: No checkpoint could be made.
        """
        if (refused := await self._try_checkpoint()) is not None:
            raise refused

    async def _carry_out(self) -> None:
        await self._requests.carry_out(await self._try_checkpoint())

    async def _try_checkpoint(self) -> DiskFullError | None:
        """Make a checkpoint; returns why none could be made."""
        made = self.checkpoints
        await self.checkpoint()
        if self.checkpoints != made:
            return None
        return self._disk_space.full or DiskFullError(f"{self._directory.path}: no checkpoint could be made")

    async def checkpoint(self) -> None:
        """Make all views durable without the journal, and recycle the journal files that are not needed any more."""
        # Decisions up to the lsn will not be replayed: their parts have to be in the records of shards.
        await self._put_parts()
        lsn = self._committer.journal_lsn
        resume = self._resume(lsn + 1)
        began = trio.current_time()
        shared_drops = self._shared_drops
        if not (await self.flush() and await self._settle_files()):
            return
        await self._flusher.sync()
        if not await self._save_records():
            return
        self._require_in_place()
        mutations = Mutations()
        put_number(mutations, NodeKey.CHECKPOINT, lsn)
        put_number(mutations, NodeKey.LSNS_RESERVED, self._views.lsns_reserved)
        put_number(mutations, NodeKey.JOURNAL_FILE, self._writer.newest_number)
        put_number(mutations, NodeKey.NEWEST_APPEND_US, self._time.newest_append_us)
        self._restores.save(mutations)
        if resume is not None:
            put_number(mutations, NodeKey.LOG_EPOCH, resume.position.epoch)
            put_number(mutations, NodeKey.LOG_SLOT, resume.position.slot)
            put_number(mutations, NodeKey.LOG_LSN, resume.next_lsn)
        self._views.store.write(mutations)
        try:
            await self._off_loop(self._views.store.flush)
        except DiskFullError as error:
            self._retries.store_is_full(error)
            self.look_at_disk()
            return
        self._require_in_place()
        await self.journal.recycle(lsn)
        self.checkpoints += 1
        self.checkpoint_lsn = lsn
        self.log_point = resume
        self._shared_drops -= shared_drops
        self._is_wanted_soon = False
        self.checkpointed_at = trio.current_time()
        self.checkpoint_s.observe(self.checkpointed_at - began)
        self._shared_files.look(lsn, self._time.expiry_us())
        await self._remove_shared_files()
        if len(self._views.files):
            # Some may be due for rewriting: what refers to them is known again.
            self._flushed()

    async def _remove_shared_files(self) -> None:
        try:
            await self._shared_files.remove()
        except DiskFullError as error:
            self._disk_space.refuse_for(error)

    async def _save_records(self) -> bool:
        """Save the records of changed shards into the views; False if the disk is full."""
        dirty, self.dirty = self.dirty, {}
        all_saved = False
        try:
            for some in slices(dirty.values(), _SAVED_AT_ONCE):
                # A saved record without a segment leaves no reference to the segment's files: remove them durably
                # first.
                if not await self._settle_files():
                    return False
                self.dirty.update((shard.shard_id, shard) for shard in await self._record_saver.save(some))
            all_saved = True
        finally:
            if not all_saved:
                # Perhaps cancelled by the stop of the engine, whose last checkpoint saves them.
                self.dirty = dirty | self.dirty
        return True

    def close(self) -> None:
        """Close the log files that are open for writing. No other method may be called after it."""
        self._flusher.close()

    # Removing

    def drop(self, segments: list[Segment]) -> None:
        """Accept segments whose records are dropped: free their memory now, remove their files later."""
        for segment in segments:
            if self._segment_files.drop(segment) and isinstance(segment, LogSegment):
                self._flusher.forget(segment)
            self._shared_drops += isinstance(segment, ParquetSegment)
            segment.chunks.release()
        if segments:
            self._wake.set()

    async def remove_files(self) -> None:
        """Remove the logs of dropped segments."""
        try:
            await self._segment_files.settle()
            await self._flusher.close_forgotten()
        except DiskFullError as error:
            self._disk_space.refuse_for(error)

    async def _settle_files(self) -> bool:
        """The same, durably; False if the disk is full."""
        try:
            await self._segment_files.settle_durably()
        except DiskFullError as error:
            self._disk_space.refuse_for(error)
            return False
        return True

    async def clean_views(self) -> None:
        """Remove some of the entries of the views that no reader needs; later calls remove the rest."""
        has_trimmed = await self._view_cleanup.clean_indexes()
        has_leftovers = await self._view_cleanup.remove_leftovers()
        if has_trimmed or has_leftovers:
            self.wake()

    async def _expire_state(self) -> None:
        """Remove expired state from time to time, in a task of its own, since checkpoints must not wait for it."""
        try:
            while self._committer.failure is None:
                await trio.sleep(self._storage.retention_interval_s)
                if self._committer.disk_full is None:
                    await self._commands.expire_state()
        except Exception as error:  # noqa: BLE001 as in `_work`
            self._fail(error)
