"""The parts of an engine: how they are made from a data directory, what they call back, and how they are closed.

What each part does lies in its own module: `write` (appends, commands, transactions), `read`, `subscribe`, `segments`
(checkpointer, retention), `parquet`, `wal` (group commit, recovery). Users of an engine see `engine.Engine` alone. In
which order an engine is started and stopped is in `opening`.
"""

from __future__ import annotations

import logging
import secrets
from time import perf_counter

import attrs
import trio

from journal.engine.directory.data_directory import DataDirectory
from journal.engine.directory.restores import Restores
from journal.engine.parquet.converter import ParquetConverter
from journal.engine.parquet.scheduler import ParquetScheduler
from journal.engine.read.reader import Reader
from journal.engine.replay import RecoveryReport, replay
from journal.engine.restoration import Restoration
from journal.engine.segments.checkpointer import Checkpointer
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.segments.snapshots import Snapshots
from journal.engine.state.node_record import NodeKey, NodeRecord, number_of_node, put_number, read_node_record
from journal.engine.state.node_time import NodeTime
from journal.engine.state.producer_use import ProducerUse
from journal.engine.state.shard_discovery import ShardDiscovery
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.subscribe.subscriptions import Subscriptions
from journal.engine.wal.disk import Disk
from journal.engine.wal.entry_payloads import CursorCommitted, CursorDeleted
from journal.engine.wal.group_commit import MOST_WORDS, Committer, Group
from journal.engine.wal.journal_file import JournalWriter
from journal.engine.wal.recovery import Recovered, RecoveredGroup, read_journal
from journal.engine.write.appender import Appender
from journal.engine.write.commands import Commands
from journal.engine.write.producer_expiry import ProducerExpiry
from journal.engine.write.transactions import Transactions
from journal.settings.server import ServerConfig
from shards.errors import DiskFullError, LimitExceededError, OverloadedError, StorageError, StorageFailedError
from shards.format.batch_header import BatchHeader
from shards.model import Mode, ShardConfig
from shards.seams.clock import Clock
from shards.seams.file_system import FileSystem
from shards.seams.store import DirectoryStore, Mutations
from shards.segments.chunks import ChunkPool, Readable
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from shards.topics.publish_epochs import PublishEpochs
from shards.views.inverted_index import Words, words_of
from shards.views.producer_records import load_producers
from shards.views.shard_records import closed_logs

_OUTSIDE_SHARD_RECORDS = frozenset((CursorCommitted, CursorDeleted))
"""Decisions about a shard that change nothing of what a checkpoint saves of it: the views have all of them already."""

_log = logging.getLogger("journal.engine")


class EngineParts:
    """What an engine consists of. Nothing outside of this package uses it, but for the tests of the parts.

    Attributes:
        appender: Takes received appends.
        commands: Takes every other change.
        reader: Reads.
        producer_use: Which producers are in use.
        news: Which shards have something newer than an lsn.
        subscriptions: Pushes.
        sealing: Makes Parquet files of closed log segments.
        restores: When it was restored from backups.
        time: What it uses in place of the system's clock.
        snapshots: Holds the files as they lie at one moment, for backups.
        table: The shards.
        views: What is folded from the journal.
        recovery: What the start found.
    """

    def __init__(
        self,
        config: ServerConfig,
        directory: DataDirectory,
        files: FileSystem,
        clock: Clock,
        disk: Disk,
        store: DirectoryStore,
        sealer: ParquetConverter | None,
    ) -> None:
        storage = config.storage
        self.config = config
        self.node_id = directory.node_id
        self.directory = directory
        self._files = files
        self.time = NodeTime(clock)
        self._disk = disk
        self._store = store
        self._sealer = sealer
        self.table = ShardTable(
            store,
            directory.log,
            directory.sealed,
            tail_pool=ChunkPool(storage.tail_budget_bytes),
            memory_pool=ChunkPool(0),
            segment_bytes=storage.segment_bytes,
            memory_segment_bytes=storage.memory_segment_bytes,
        )
        self.views = Views(store, self.table, self._drop)
        self.segment_files = SegmentFiles(files, directory.path)
        self.recovery = RecoveryReport(0, 0, ())
        self.restores = Restores(store)
        self.table.restored_lsn = self.restores.newest_lsn
        self._dropped: list[Segment] = []

    async def recover(self) -> None:
        """Fold the journal and put the parts together on top of what it gave.

        When this returns, all that the engine will answer for is durable, whatever the process before it left unsynced.

        Raises:
            CorruptionError: Acknowledged data is damaged or missing.
            StorageFailedError: What was recovered cannot be made durable again.
        """
        record = read_node_record(self._store)
        record.require_node(self.directory.state, self.node_id)
        await self.time.load(self._store, record.newest_append_us)
        expected = record.expected(was_complete=self.directory.was_complete)
        found = Recovered()

        writer: JournalWriter | None = None

        async def prove(group: RecoveredGroup) -> None:
            nonlocal writer
            assert group.unproven is not None, "replay asks for others only"
            writer = await self._begin_journal(found, record, group.first_lsn, group.unproven, group.next_lsn)

        groups = read_journal(self._files, self.directory.journal, found, expected)
        try:
            entries = await replay(groups, self.table, self.views, record.checkpoint, prove)
        except BaseException:
            if writer is not None:
                writer.close()
            raise
        # The checkpoint may lie ahead of the journal: memory-mode batches take lsns without an entry.
        journal_next = found.next_lsn if found.used else record.checkpoint + 1
        self.writer = writer or await self._begin_journal(found, record, journal_next)
        self.time.raise_to(self.views.newest_append_us)
        self.time.warn_if_behind()
        restoration = Restoration(self._files, self.directory.path, self.restores)
        if restoration.is_new:
            next_lsn = self._next_lsn(journal_next, record)
            restoration.begin(self.table, self.views, next_lsn=next_lsn, now_us=self.time.now_us())
        self.table.recovering = False
        self.table.started_lsn = self._next_lsn(journal_next, record) - 1
        for shard in self.table.open_shards():
            self.table.settle(shard)
        self.recovery = RecoveryReport(entries, found.truncated_bytes, tuple(str(damage) for damage in found.damages))
        self._assemble(journal_next, record)
        with trio.CancelScope(shield=True):
            # A checkpoint is not given up half way.
            await restoration.finish(self.checkpointer)

    async def _begin_journal(
        self, found: Recovered, record: NodeRecord, first_lsn: int, entries: Readable = b"", next_lsn: int | None = None
    ) -> JournalWriter:
        """Go on in a new journal file, and have the views know of it before anything is acknowledged in it."""
        stopped_orderly = bool(found.used) and found.used[-1].header.number == record.stopped_in
        storage = self.config.storage
        writer = JournalWriter(
            self._files,
            self.directory.journal,
            storage.journal_file_bytes,
            _new_salt,
            found.used,
            record.spares if stopped_orderly else 0,
        )

        def begin() -> None:
            writer.begin(first_lsn, entries, next_lsn)
            mutations = Mutations()
            put_number(mutations, NodeKey.JOURNAL_FILE, writer.newest_number)
            put_number(mutations, NodeKey.NODE_ID, number_of_node(self.node_id))
            self._store.write(mutations)
            self._store.flush()
            self.directory.complete()
            writer.release_up_to(record.checkpoint, 0)

        try:
            await trio.to_thread.run_sync(begin)
        except OSError as error:
            raise StorageFailedError(
                f"the journal in {self.directory.journal} cannot go on in a new file ({error}); nothing was lost. "
                f"Free space or mend the disk, then start again"
            ) from error
        return writer

    def _next_lsn(self, journal_next: int, record: NodeRecord) -> int:
        """The first lsn that was never given out."""
        return max(journal_next, record.checkpoint + 1, self.views.lsns_reserved, record.lsns_reserved)

    def _assemble(self, journal_next: int, record: NodeRecord) -> None:
        storage = self.config.storage
        reserved = max(self.views.lsns_reserved, record.lsns_reserved)
        self.views.lsns_reserved = reserved
        self.committer = Committer(
            self.writer,
            self._disk,
            # lsns that memory-mode batches may have used are not given out again.
            next_lsn=self._next_lsn(journal_next, record),
            journal_next_lsn=journal_next,
            publish=self._publish,
            failed=self._failed,
        )
        self.news = ShardDiscovery(
            self.table, self._store, self.committer.committed_lsn, PublishEpochs(lambda: self.committer.next_lsn)
        )
        self.table.on_closing = self.news.closing
        self.producer_use = ProducerUse(trio.current_time)
        self.appender = Appender(
            self.committer,
            lsns_reserved=reserved,
            max_batch_bytes=self.config.limits.max_batch_bytes,
            producer_epoch=self.views.producers.epoch,
            check_producer=self.views.producers.check_name_begins,
            epochs=self.views.producers.epochs,
            load_producers=lambda shard: load_producers(self._store, shard),
            open_segment=self._open_segment,
            words=self._words,
            fold_words=lambda words: self.views.fold((), words),
            publishing=self.news.publishing,
            use=self.producer_use,
        )
        self.commands = Commands(
            self.committer,
            self.views,
            self.table,
            created_us=self.time.append_time_us,
            expiry_us=self.time.expiry_us,
            first_epoch=self.restores.first_epoch,
            max_shards=self.config.shards.max_shards,
            default_config=self._with_defaults,
        )
        self.producer_expiry = ProducerExpiry(
            views=self.views,
            table=self.table,
            commands=self.commands,
            committer=self.committer,
            use=self.producer_use,
            now_us=self.time.expiry_us,
            fail=self._fail,
        )
        self.checkpointer = Checkpointer(
            files=self._files,
            directory=self.directory.path,
            storage=storage,
            defaults=self.config.shards,
            disk=self._disk,
            writer=self.writer,
            committer=self.committer,
            table=self.table,
            views=self.views,
            commands=self.commands,
            time=self.time,
            restores=self.restores,
            fail=self._fail,
            segment_files=self.segment_files,
            sealing=self.config.sealing,
            checkpoint_lsn=record.checkpoint,
            producer_use=self.producer_use,
        )
        self.transactions = Transactions(
            committer=self.committer,
            appender=self.appender,
            commands=self.commands,
            wait_for_room=self.checkpointer.wait_for_room,
            table=self.table,
            begin_chunk=self.begin_chunk,
            words=self._words,
        )
        self.sealing = ParquetScheduler(
            config=self.config.sealing,
            sealer=self._sealer,
            files=self.segment_files,
            table=self.table,
            commands=self.commands,
            recorded=lambda: closed_logs(self._store, self.config.sealing.min_bytes),
            flush=self.checkpointer.flush_soon,
            refuse=lambda: self.checkpointer.disk_full,
        )
        self.checkpointer.on_flushed = self.sealing.wake
        self.segment_files.sweep(self.views.deleted_again)
        self.segment_files.clean_up(self._may_have)
        self.checkpointer.drop(self._dropped)
        self.views.on_trimmed = self.checkpointer.index_trimmed
        self.views.on_start_in_sealed = self.checkpointer.start_in_sealed
        for shard in self.table.open_shards():
            self.views.look_at_start(shard)
            self.sealing.look_at(shard)
        self.checkpointer.dirty = {shard.shard_id: shard for shard in self.table.open_shards() if shard.dirty}
        self.snapshots = Snapshots(
            files=self._files,
            directory=self.directory,
            writer=self.writer,
            checkpointer=self.checkpointer,
            segment_files=self.segment_files,
            store=self._store,
            newest_lsn=lambda: self.committer.journal_lsn,
        )
        self.reader = Reader(self._files, self.table, self.views, self.config.limits.max_batch_bytes)
        self.subscriptions = Subscriptions(
            self.table, self.views, self.reader, self.commands, self.news, lambda: self.committer.committed_lsn
        )
        self.committer.on_committed = self.subscriptions.committed

    def _may_have(self, shard_id: int, path: str) -> bool:
        """Whether a Parquet file counts. What is known of a stopped shard is not all there is: nothing of it goes."""
        shard = self.table.by_id(shard_id)
        return shard is not None and (
            shard.damage != ""
            or any(isinstance(segment, ParquetSegment) and segment.path == path for segment in shard.segments)
        )

    # What the parts call back

    def _drop(self, segments: list[Segment]) -> None:
        if self.table.recovering:
            self._dropped.extend(segments)
        else:
            self.checkpointer.drop(segments)

    def _open_segment(self, shard: Shard) -> Segment:
        """The append path needs a segment: the first one, or the one after a full one."""
        mode = Mode.MEMORY if shard.in_memory_mode else Mode.FILE
        if shard.active() is not None and mode is Mode.FILE:
            # Where a log segment begins is a decision, so that a recovery under another configuration repeats it.
            self.commands.roll_nowait(shard)
        else:
            self.table.open_segment(shard, mode, shard.next_offset, self.appender.append_time_us)
            if mode is Mode.MEMORY:
                self.checkpointer.retaining.retain(shard)
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

    def _publish(self, group: Group) -> None:
        if group.decisions or group.words:
            self.views.fold(group.decisions, group.words)
            self.appender.lsns_reserved = self.views.lsns_reserved
        dirty = self.checkpointer.dirty
        news = self.news
        for shard, published in group.published:
            shard.pending_groups -= 1
            if not shard.gone:
                dirty[shard.shard_id] = shard
                if shard.era is not news.recent.newest:
                    news.publishing(shard)
                shard.publish(published)
        self.sealing.decided(group.decisions)
        for _, shard_id, decision in group.decisions:
            if shard_id and type(decision) not in _OUTSIDE_SHARD_RECORDS:
                shard_changed = self.table.by_id(shard_id)
                if shard_changed is not None:
                    dirty[shard_id] = shard_changed
        for sink, acks in group.acks.items():
            sink.acknowledge(acks)
        self.checkpointer.wake_if_needed()

    def _fail(self, error: Exception) -> None:
        self.committer.fail(error)

    def _failed(self, failure: StorageFailedError) -> None:
        _log.error("%s", failure)
        self.appender.refuse_files = self.appender.refuse_memory = failure
        self.checkpointer.wake()
        self.sealing.failed(failure)

    def begin_chunk(self) -> None:
        """Call before a run of `Appender.append` calls: sets their time and what is refused just now."""
        appender = self.appender
        appender.append_time_us = self.time.append_time_us()
        self.committer.chunk_taken_at_s = perf_counter()
        failure: StorageError | None = self.committer.failure
        appender.refuse_files = failure or self.checkpointer.disk_full
        if failure is None and self.table.memory_pool.held_bytes >= self.config.storage.memory_budget_bytes:
            failure = OverloadedError(
                f"memory-mode shards hold {self.table.memory_pool.held_bytes} bytes, as much as they may "
                f"(storage.memory_budget_bytes); shorten their retention or switch some to file mode"
            )
        appender.refuse_memory = failure

    async def close(self) -> None:
        """Drain and make a last checkpoint. After a failure there is nothing to do: the journal has what counts."""
        try:
            await self._close_in_order()
        finally:
            self.checkpointer.close()

    async def _close_in_order(self) -> None:
        await self.committer.drain()
        if self.committer.failure is not None:
            return
        for shard in self.table.open_shards():
            if shard.in_memory_mode:
                # Nothing is appended any more: what was reserved but not used is free again.
                shard.reserved_offset = shard.published_offset
                self.checkpointer.dirty[shard.shard_id] = shard
        self.views.lsns_reserved = self.committer.next_lsn
        try:
            await self.checkpointer.checkpoint()
            await self.checkpointer.remove_files()
            await self._note_orderly_stop()
        except DiskFullError as error:
            # The journal has everything. The next start takes this for a crash.
            _log.warning("no last checkpoint: %s", error)
        except OSError as error:
            self._fail(error)
            assert self.committer.failure is not None
            raise self.committer.failure from error

    async def _note_orderly_stop(self) -> None:
        """Tell the next start which spare journal files are whole; it removes the others."""
        mutations = Mutations()
        put_number(mutations, NodeKey.STOPPED_IN, self.writer.newest_number)
        put_number(mutations, NodeKey.SPARES, self.writer.newest_spare)
        self._store.write(mutations)
        await trio.to_thread.run_sync(self._store.flush)

    def _words(self, shard: Shard, batch: memoryview) -> Words:
        """What of a batch goes into the shard's index: the one thing for which a server opens a body."""
        raw_bytes, limit = BatchHeader.unpack(batch).raw_size, self.config.limits.max_batch_bytes
        if raw_bytes > limit:
            raise LimitExceededError(
                f"record batch of {raw_bytes} bytes before compression is over the limit of {limit} for an indexed "
                f"shard (limits.max_batch_bytes); split it"
            )
        words = words_of(shard.config, batch)
        if len(words) > MOST_WORDS:
            raise LimitExceededError(
                f"record batch for the indexed shard {shard.name!r} has {len(words)} keys and tags to index, over the "
                f"limit of {MOST_WORDS} in one batch; send fewer records in a batch"
            )
        return words


def _new_salt() -> int:
    return secrets.randbits(64)
