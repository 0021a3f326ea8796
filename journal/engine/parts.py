"""The parts of an engine: how they are created after the recovery, their callbacks, and how they are closed.

The recovery is in `startup`. What each part does is described in its own module: `write` (appends, commands,
transactions), `read`, `subscribe`, `segments` (checkpointer, retention), `parquet`, `wal` (group commit, recovery).
Callers use `engine.Engine` alone. The order in which an engine is started and stopped is in `opening`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

import attrs
import trio

from journal.engine.directory.data_directory import DataDirectory
from journal.engine.environment import Environment
from journal.engine.parquet.converter import ParquetConverter
from journal.engine.parquet.history_table import HistoryTable
from journal.engine.parquet.rewriting import due, due_in_s
from journal.engine.parquet.scheduler import ParquetScheduler
from journal.engine.readable import Readable
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.segments.disk_space import DiskSpace
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.segments.record_saver import RecordSaver
from journal.engine.segments.snapshots import Snapshots
from journal.engine.segments.store_checkpoints import StoreCheckpoints
from journal.engine.segments.view_cleanup import ViewCleanup
from journal.engine.shared_log.writer import SharedLogWriter
from journal.engine.startup import RecoveredState
from journal.engine.state.committed_lsns import CommittedLsns
from journal.engine.state.node_record import NodeKey, put_number
from journal.engine.state.producer_use import ProducerUse
from journal.engine.state.views import ViewChanges
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.disk import Disk, LimitedOffLoop
from journal.engine.wal.entry_payloads import CursorCommitted, CursorDeleted
from journal.engine.wal.group import Group
from journal.engine.wal.group_commit import Committer
from journal.engine.wal.send_window import SendWindow
from journal.engine.write.admission import Admission, words_to_index
from journal.engine.write.appender import Appender
from journal.engine.write.commands import Commands
from journal.engine.write.producer_expiry import ProducerExpiry
from journal.engine.write.transactions import Transactions
from journal.logstore.keys import FileName
from journal.settings.server import ServerConfig
from shards.delta.log_files import LOG
from shards.errors import (
    DiskFullError,
    StorageError,
    StorageFailedError,
    afresh,
)
from shards.model import Mode, ShardConfig
from shards.seams.store import DirectoryStore, Mutations
from shards.segments.parquet_segment import file_of
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from shards.views.producer_records import load_producers
from shards.views.shard_records import logs
from shards.views.shared_files import FileKey

_OUTSIDE_SHARD_RECORDS = frozenset((CursorCommitted, CursorDeleted))
"""Decisions about a shard that change nothing in its saved record: the views have stored all of them already."""

_log = logging.getLogger("journal.engine")


class EngineParts:
    """The parts of an engine. Only this package and the tests of the parts use it.

    Args:
        config: Sizes and limits.
        directory: The open data directory.
        environment: What the engine runs on.
        disk: The thread that writes the journal.
        store: The store of the views.
        converter: Converts closed segments; None if conversion is disabled.
        start: The recovered state.
        readable: What clients read already, while this server followed another one; None if none does.

    Attributes:
        appender: Appends of received batches.
        begin_chunk: See `Admission.begin_chunk`.
        commands: All other changes.
        readable: What reads and subscriptions need.
        producer_use: Which producers are in use.
        reader: See `Readable`.
        discovery: See `Readable`.
        subscriptions: See `Readable`.
        conversion: Converts closed log segments to Parquet.
        history: The Delta table over shared files.
        restores: The restores of this node from backups.
        stored: The checkpoints and files in the log store; None for a server on its own.
        store_checkpoints: Makes these checkpoints; None for a server on its own.
        time: The node's time.
        snapshots: Keeps files as they are at one moment, for backups.
        table: The shards.
        views: The state folded from the journal.
        recovery: What the start read from the journal, for operators.
        is_whole: See `RecoveredState`.
    """

    def __init__(
        self,
        config: ServerConfig,
        directory: DataDirectory,
        environment: Environment,
        disk: Disk,
        store: DirectoryStore,
        converter: ParquetConverter | None,
        start: RecoveredState,
        readable: Readable | None = None,
    ) -> None:
        files = environment.files
        self._environment = environment
        self._off_loop = LimitedOffLoop(environment.off_loop)
        self._lasts = environment.lasts
        self.config = config
        self.node_id = directory.node_id
        self.directory = directory
        self._store = store
        self.time = start.time
        self.table = start.table
        self.views = start.views
        self.writer = start.writer
        self.is_whole = start.is_whole
        self._resume = start.resume
        self.stored = start.stored
        self.restores = start.restores
        self.recovery = start.report
        self.segment_files = SegmentFiles(files, directory.path, environment.off_loop)
        self.group_writer = start.groups
        self.ahead = None if start.ahead is None else SendWindow(start.ahead)
        self.committer = Committer(
            self.group_writer,
            disk,
            next_lsn=start.next_lsn,
            journal_next_lsn=start.journal_next_lsn,
            publish=self._publish,
            committed=self._committed,
            failed=self._failed,
            ahead=self.ahead,
        )
        self.readable = self._go_on(readable)
        self.reader = self.readable.reader
        self.discovery = self.readable.discovery
        self.subscriptions = self.readable.subscriptions
        self.producer_use = ProducerUse(trio.current_time)
        self._words = partial(words_to_index, config.limits.max_batch_bytes)
        self.appender = self._make_appender()
        self.commands = self._make_commands()
        self.producer_expiry = ProducerExpiry(
            views=self.views,
            table=self.table,
            commands=self.commands,
            committer=self.committer,
            use=self.producer_use,
            now_us=self.time.expiry_us,
            fail=self._fail,
        )
        self.disk_space = DiskSpace(files, directory.path, config.storage.disk_reserve_bytes, self.commands)
        self.begin_chunk = Admission(
            self.appender,
            self.committer,
            self.time,
            self.table.memory_pool,
            config.storage.memory_budget_bytes,
            lambda: self.disk_space.full,
            self._isolation(),
        ).begin_chunk
        self.view_cleanup = ViewCleanup(self.views)
        self.history = self._make_history(is_converting=converter is not None)
        self.checkpointer = self._make_checkpointer(disk, start.checkpoint_lsn)
        self.transactions = Transactions(
            committer=self.committer,
            appender=self.appender,
            commands=self.commands,
            wait_for_room=self.checkpointer.wait_for_room,
            table=self.table,
            begin_chunk=self.begin_chunk,
            words=self._words,
        )
        self.conversion = self._make_scheduler(converter)
        self.snapshots = Snapshots(
            environment=environment,
            directory=directory,
            checkpointer=self.checkpointer,
            segment_files=self.segment_files,
            store=store,
            newest_lsn=lambda: self.committer.journal_lsn,
            unfetched=self.views.unfetched,
        )
        self.store_checkpoints = self._make_store_checkpoints()
        self.subscriptions.serve_groups(self.commands)
        self._take_over_shards()

    def _go_on(self, readable: Readable | None) -> Readable:
        if readable is not None:
            readable.take_over(self.committer)
            return readable
        return Readable.of(
            config=self.config,
            node_id=self.node_id,
            restores=self.restores,
            views=self.views,
            time=self.time,
            environment=self._environment,
            lsns=CommittedLsns(self.committer),
        )

    def _isolation(self) -> Callable[[], StorageError | None]:
        writer = self.group_writer
        return (lambda: writer.isolation) if isinstance(writer, SharedLogWriter) else lambda: None

    def _make_appender(self) -> Appender:
        return Appender(
            self.committer,
            lsns_reserved=self.views.lsns_reserved,
            max_batch_bytes=self.config.limits.max_batch_bytes,
            producer_epoch=self.views.producers.epoch,
            check_producer=self.views.producers.check_name_begins,
            epochs=self.views.producers.epochs,
            load_producers=lambda shard: load_producers(self._store, shard),
            open_segment=self._open_segment,
            words=self._words,
            fold_words=lambda words: self.views.fold((), words),
            publishing=self._publishing,
            tail_grew=self._tail_grew,
            use=self.producer_use,
            durable=self._lasts,
        )

    def _make_commands(self) -> Commands:
        return Commands(
            self.committer,
            self.views,
            self.table,
            time=self.time,
            first_epoch=self.restores.first_epoch,
            max_shards=self.config.shards.max_shards,
            default_config=self._with_defaults,
        )

    def _make_checkpointer(self, disk: Disk, checkpoint_lsn: int) -> Checkpointer:
        return Checkpointer(
            environment=self._environment,
            directory=self.directory,
            config=self.config,
            disk=disk,
            writer=self.writer,
            committer=self.committer,
            table=self.table,
            views=self.views,
            commands=self.commands,
            time=self.time,
            restores=self.restores,
            fail=self._fail,
            segment_files=self.segment_files,
            disk_space=self.disk_space,
            view_cleanup=self.view_cleanup,
            record_saver=RecordSaver(self.table, self.views, self.producer_use),
            checkpoint_lsn=checkpoint_lsn,
            closing=self.discovery.closing,
            flushed=self._flushed,
            put_parts=self._put_parts,
            may_remove=self.history.may_remove,
            resume=self._resume,
        )

    def _make_store_checkpoints(self) -> StoreCheckpoints | None:
        if self.stored is None:
            return None
        return StoreCheckpoints(
            stored=self.stored,
            directory=self.directory,
            store=self._store,
            records=self.views.files,
            checkpointer=self.checkpointer,
            off_loop=self._environment.off_loop,
            conversion=self.config.conversion,
            newest_lsn=lambda: self.committer.journal_lsn,
            has_failed=lambda: self.committer.failure is not None,
        )

    def _make_history(self, *, is_converting: bool) -> HistoryTable:
        conversion = self.config.conversion
        return HistoryTable(
            enabled=is_converting and conversion.delta and self.is_whole,
            exists=self._environment.files.exists(f"{self.table.sealed_root}/{LOG}"),
            files=self.views.files,
            root=self.table.sealed_root,
            grace_s=conversion.delta_grace_s,
            newest_lsn=lambda: self.committer.journal_lsn,
            checkpoint_lsn=lambda: self.checkpointer.checkpoint_lsn,
            is_full=lambda: self.disk_space.full is not None,
            is_whole=lambda: not self.views.unfetched,
        )

    def _make_scheduler(self, converter: ParquetConverter | None) -> ParquetScheduler:
        return ParquetScheduler(
            config=self.config.conversion,
            converter=converter,
            files=self.segment_files,
            table=self.table,
            commands=self.commands,
            recorded=lambda: logs(self._store),
            flush=self.checkpointer.flush_soon,
            flush_all=self.checkpointer.flush_all,
            put_parts=self._put_parts,
            refuse=lambda: self.disk_space.full,
            history=self.history,
            rewritable=lambda failed, unmerged: due(
                self.views.files,
                self.checkpointer.checkpoint_lsn,
                failed | self.views.unfetched.keys,
                self.time.expiry_us(),
                unmerged,
            ),
            rewriting_due_at=self._rewriting_due_at,
            valid=lambda: self.views.valid_files(self.checkpointer.checkpoint_lsn),
            share=self._share,
        )

    def _share(self, files: Sequence[tuple[FileKey, str]]) -> AbstractAsyncContextManager[None]:
        if self.stored is None:
            return nullcontext()
        return self.stored.files.stored((FileName(*key), path) for key, path in files)

    def _rewriting_due_at(self, after: float) -> float:
        """When the first shared file after some time is due for rewriting by time alone; both by trio's clock."""
        elapsed_us = round((trio.current_time() - after) * 1_000_000)
        return after + due_in_s(self.views.files, self.time.expiry_us() - elapsed_us)

    def _take_over_shards(self) -> None:
        """Continue work that the recovery found: files to remove, shards to save, segments to convert."""
        shards = self.table.open_shards()
        changes = self.views.take_changes() or ViewChanges()
        self.segment_files.sweep(changes.deleted_again)
        valid = {file.path(self.table.sealed_root) for file in self.views.files}
        self.segment_files.clean_up(valid.__contains__)
        self._apply(changes)
        if self.history.needs_checkpoint(key for each in changes.dropped if (key := file_of(each)) is not None):
            self.checkpointer.checkpoint_soon()
        for shard in shards:
            self.conversion.look_at(shard)
        self.checkpointer.dirty = {shard.shard_id: shard for shard in shards if shard.dirty}

    # Callbacks of the parts

    def _apply(self, changes: ViewChanges) -> None:
        self.checkpointer.drop(changes.dropped)
        for shard in changes.trimmed:
            self.view_cleanup.index_trimmed(shard)
        for shard in changes.deleted:
            self.subscriptions.shard_deleted(shard)
        for shard in changes.created:
            self.subscriptions.shard_created(shard)
        for shard in changes.converted:
            self.checkpointer.dirty[shard.shard_id] = shard
            self.checkpointer.retention.note(shard)

    async def _put_parts(self) -> None:
        """Put the parts of shared files that decisions name into their shards, in short steps.

        Raises:
            StorageFailedError: The views cannot be read.
        """
        step = TimeSlice()
        try:
            while self.views.put_next_parts():
                if step.is_over:
                    self._apply_changes()
                    await step.rest()
            self._apply_changes()
        except Exception as error:
            self._fail(error)
            assert self.committer.failure is not None
            raise afresh(self.committer.failure) from error

    def _apply_changes(self) -> None:
        changes = self.views.take_changes()
        if changes is not None:
            self._apply(changes)

    def _committed(self) -> None:
        self.subscriptions.committed()

    def _flushed(self) -> None:
        self.conversion.wake()

    def _open_segment(self, shard: Shard) -> Segment:
        """Open a segment for an append: the first one, or the one after a full one."""
        mode = Mode.MEMORY if shard.in_memory_mode else Mode.FILE
        if shard.active() is not None and mode is Mode.FILE:
            # The start of a log segment is recorded as a decision, so that a recovery under other settings repeats it.
            self.commands.roll_nowait(shard)
        else:
            self.table.open_segment(shard, mode, shard.next_offset, self.appender.append_time_us)
            if mode is Mode.MEMORY:
                self.checkpointer.retention.retain(shard)
        return shard.segments[-1]

    def _with_defaults(self, config: ShardConfig) -> ShardConfig:
        defaults = self.config.shards
        retention = config.retention
        return attrs.evolve(
            config,
            retention=attrs.evolve(
                retention,
                max_age_s=retention.max_age_s or defaults.max_age_s,
                max_bytes=retention.max_bytes or defaults.max_bytes,
                max_records=retention.max_records or defaults.max_records,
            ),
        )

    def _publishing(self, shard: Shard) -> None:
        """A shard is about to publish batches that no group waits for."""
        if shard.tells_appends:
            self.checkpointer.retention.note(shard)
        self.discovery.publishing(shard)

    def _publish(self, group: Group) -> None:
        if group.decisions or group.words:
            self.views.fold(group.decisions, group.words)
            self.appender.lsns_reserved = self.views.lsns_reserved
            self._apply_changes()
        dirty = self.checkpointer.dirty
        retention = self.checkpointer.retention
        discovery = self.discovery
        for shard, published in group.published:
            shard.pending_groups -= 1
            if not shard.gone:
                dirty[shard.shard_id] = shard
                if shard.tells_appends:
                    retention.note(shard)
                if shard.era is not discovery.recent.newest:
                    discovery.publishing(shard)
                shard.publish(published)
        self.conversion.decided(group.decisions)
        for _, shard_id, decision in group.decisions:
            if type(decision) not in _OUTSIDE_SHARD_RECORDS:
                shard_changed = self.table.by_id(shard_id) if shard_id else None
                if shard_changed is not None:
                    dirty[shard_id] = shard_changed
                    retention.note(shard_changed)
        for sink, acks in group.acks.items():
            sink.acknowledge(acks)
        for result, appended in group.results:
            result.resolve(appended)
        self.checkpointer.wake_if_needed()

    def _tail_grew(self, shard: Shard) -> None:
        self.checkpointer.dirty[shard.shard_id] = shard
        self.checkpointer.wake_if_needed()

    def _fail(self, error: Exception) -> None:
        self.committer.fail(error)

    def _failed(self, failure: StorageFailedError) -> None:
        _log.error("%s", failure)
        self.appender.refuse_files = self.appender.refuse_memory = failure
        self.checkpointer.wake()
        self.conversion.failed(failure)

    async def close(self) -> None:
        """Drain and make a last checkpoint. After a failure do neither: the journal has all acknowledged data.

        An engine whose data does not last only drains.
        """
        try:
            await self._close_in_order()
        finally:
            self.checkpointer.close()

    async def _close_in_order(self) -> None:
        await self.committer.drain()
        if self.committer.failure is not None or not self._lasts:
            return
        for shard in self.table.open_shards():
            # Another server of a store does not know of it: it goes on as after a crash.
            if shard.in_memory_mode and not self.directory.store_id:
                # Nothing is appended any more: offsets that were reserved but not used become free again.
                shard.reserved_offset = shard.published_offset
                self.checkpointer.dirty[shard.shard_id] = shard
        self.views.lsns_reserved = self.committer.next_lsn
        try:
            await self.checkpointer.checkpoint()
            await self.checkpointer.remove_files()
            await self._note_orderly_stop()
        except DiskFullError as error:
            # The journal has everything; the next start recovers as after a crash.
            _log.warning(
                "no last checkpoint, for lack of space in %s: %s", self.directory.path, error.__cause__ or error
            )
        except OSError as error:
            self._fail(error)
            assert self.committer.failure is not None
            raise self.committer.failure from error

    async def _note_orderly_stop(self) -> None:
        """Record for the next start which spare journal files are complete; it removes all others."""
        mutations = Mutations()
        put_number(mutations, NodeKey.STOPPED_IN, self.writer.newest_number)
        put_number(mutations, NodeKey.SPARES, self.writer.newest_spare)
        self._store.write(mutations)
        await self._off_loop(self._store.flush)
