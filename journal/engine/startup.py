"""The recovery at a start, before there is an engine: it replays the journal, and makes the result durable.

If the log of the directory lies in a log store, what others wrote there is read next, until this server owns the store.

`journal.engine.wal.recovery` tells damage from a torn tail and decides what damage means; `journal.engine.state.views`
folds the entries; `journal.engine.parts` creates the parts of the engine on top of the result.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable

import attrs
import trio

from journal.engine.directory.data_directory import DataDirectory
from journal.engine.directory.restores import Restores
from journal.engine.environment import Environment
from journal.engine.following import FollowerReads, Following, ServedReads
from journal.engine.restoration import Restoration
from journal.engine.segments.file_fetching import FileFetcher
from journal.engine.segments.lifecycle import SegmentFiles
from journal.engine.shared_log.log import NOWHERE, SharedLog
from journal.engine.shared_log.stored_position import StoredPosition, read_position
from journal.engine.shared_log.stored_views import StoredViews
from journal.engine.shared_log.writer import ResumePoint
from journal.engine.state.node_record import NodeKey, NodeRecord, number_of_node, put_number, read_node_record
from journal.engine.state.node_time import NodeTime
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import FOLDED_AT_ONCE, Views
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.engine.wal.group_commit import GroupWriter
from journal.engine.wal.journal_writer import JournalWriter
from journal.engine.wal.recovery import Recovered, RecoveredGroup, read_journal
from journal.engine.wal.send_window import EarlyWriter
from journal.logstore.keys import Position
from journal.settings.server import StorageConfig
from shards.errors import CorruptionError, DataDirectoryError, StorageFailedError
from shards.seams.store import DirectoryStore, Mutations
from shards.segments.chunks import ChunkPool, Readable

_log = logging.getLogger("journal.engine")


@attrs.frozen(slots=True)
class RecoveryReport:
    """What a start read from the journal.

    Attributes:
        entries: Number of entries read.
        truncated_bytes: Bytes of an unfinished last write that were cut off; nothing of it had been acknowledged.
        damages: Damaged entries; their shards are stopped.
    """

    entries: int
    truncated_bytes: int
    damages: tuple[str, ...]


@attrs.frozen
class RecoveredState:
    """The recovered state, which is durable; the parts of an engine are created on top of it.

    Attributes:
        table: The shards.
        views: The state folded from the journal.
        time: The node's time, no earlier than the newest append that was found.
        writer: Writes to the journal file that this start began.
        groups: Writes the groups of an engine: `writer`, or what writes to the log of the store.
        ahead: The same, for what it sends ahead; None for `writer`.
        resume: Where reading the log of the store goes on later, if everything before an lsn is kept; None if there is
            no such log.
        stored: The checkpoints and files in the log store; None if there is no such log.
        is_whole: Whether the whole log is in it. Otherwise so much of it was read that a checkpoint is to be made
            before more is; there is nothing else to be done with it.
        restores: The restores of the node from backups.
        restoration: Its `finish` must be called before any client is served.
        report: What was read, for operators.
        checkpoint_lsn: Everything up to this lsn was durable in the views without the journal.
        journal_next_lsn: First lsn of the next group, after the journal's last one.
        next_lsn: The first lsn that was never assigned. Memory-mode batches may have used lsns that are not in the
            journal.
    """

    table: ShardTable
    views: Views
    time: NodeTime
    writer: JournalWriter
    groups: GroupWriter
    ahead: EarlyWriter | None
    resume: Callable[[int], ResumePoint | None]
    stored: StoredViews | None
    is_whole: bool
    restores: Restores
    restoration: Restoration
    report: RecoveryReport
    checkpoint_lsn: int
    journal_next_lsn: int
    next_lsn: int


async def recover(
    storage: StorageConfig,
    directory: DataDirectory,
    environment: Environment,
    store: DirectoryStore,
    log: SharedLog | None = None,
    stored: StoredViews | None = None,
    reads: FollowerReads | None = None,
) -> RecoveredState:
    """Fold the journal of a data directory into its views.

    On return everything that was recovered is durable, even if the process before left it unsynced.

    Args:
        storage: Sizes and budgets.
        directory: The open data directory.
        environment: What the engine runs on.
        store: The store of the views.
        log: The log of the store that the directory has a copy of. It is followed until this server owns the store.
        stored: The checkpoints and files in its log store, with `log`.
        reads: Reads of clients while the log is followed; None for no reads.

    Raises:
        CorruptionError: Acknowledged data is damaged or missing.
        BehindLogError: The directory is older than what the log store has. It has to be emptied.
        LogStoreError: The log of the store cannot be read.
        StorageFailedError: The recovered state could not be made durable again.
    """
    files = environment.files
    # If the next start finds nothing, tails stay in memory until they are trimmed. Their buffers are freed then,
    # and not kept for the next tail.
    tail_budget_bytes = storage.tail_budget_bytes if environment.lasts else 0
    table = ShardTable(
        store,
        directory.log,
        directory.sealed,
        tail_pool=ChunkPool(tail_budget_bytes),
        memory_pool=ChunkPool(0),
        segment_bytes=storage.segment_bytes,
        memory_segment_bytes=storage.memory_segment_bytes,
    )
    views = Views(store, table)
    restores = Restores(store)
    table.restored_lsn = restores.newest_lsn
    record = read_node_record(store)
    record.require_node(directory.state, directory.node_id)
    time = NodeTime(environment.clock)
    await time.load(store, record.newest_append_us)
    found = Recovered()

    new_file = _NewJournalFile(
        lambda spares: JournalWriter(
            files, directory.journal, storage.journal_file_bytes, _new_salt, found.used, spares
        ),
        directory,
        store,
        environment.off_loop,
        found,
        record,
    )
    try:
        expected = record.expected(was_complete=directory.was_complete, is_copy=log is not None)
        groups = read_journal(files, directory.journal, found, expected)
        entries = await _replay(groups, table, views, record.checkpoint, new_file)
        # The checkpoint may be ahead of the journal: memory-mode batches take lsns without an entry.
        journal_next_lsn = found.next_lsn if found.used else record.checkpoint + 1
        if log is not None:
            # A part of the journal may be missing: it is read again.
            resume = _resume_point(record, found, read_position(files, directory.journal))
            journal_next_lsn = max(found.next_lsn if found.used else 0, resume.next_lsn)
        writer = new_file.writer
        if writer is None:
            writer = await new_file.begin(journal_next_lsn)
        restoration = Restoration(files, directory.path, restores)
        groups_writer: GroupWriter = writer
        ahead: EarlyWriter | None = None
        is_whole = True
        served = None if reads is None else ServedReads(reads, views, time, restores)
        if log is not None:
            assert stored is not None
            _require_unbroken(directory, found, restoration)
            log.begin(resume)
            position = StoredPosition(files, directory.journal)
            fetcher = FileFetcher(
                stored.files,
                views.files,
                SegmentFiles(files, directory.path, environment.off_loop),
                files,
                environment.off_loop,
                views.unfetched,
                directory.sealed,
                lambda: record.checkpoint,
            )
            following = Following(
                log, writer, position, views, fetcher, environment.off_loop, record.checkpoint, journal_next_lsn, served
            )
            is_whole = await following.run(storage.journal_budget_bytes // 2)
            if served is not None and not is_whole:
                # The directory is opened again, with other objects for the shards.
                await served.end()
            journal_next_lsn = following.next_lsn
            if is_whole:
                groups_writer = ahead = log.writer(writer, position.note)
        time.raise_to(views.newest_append_us)
        time.warn_if_behind()
        views.lsns_reserved = max(views.lsns_reserved, record.lsns_reserved)
        next_lsn = max(journal_next_lsn, record.checkpoint + 1, views.lsns_reserved)
        if restoration.is_new:
            restoration.begin(table, views, next_lsn=next_lsn, now_us=time.now_us())
            next_lsn = max(next_lsn, views.lsns_reserved)
        if served is not None:
            # Those who read here are shown what was lost with the memory of the owner before.
            served.begin_group(next_lsn)
        table.finish_recovery(next_lsn - 1, more_follows=not is_whole)
    except BaseException:
        new_file.close()
        raise
    report = RecoveryReport(entries, found.truncated_bytes, tuple(str(damage) for damage in found.damages))
    return RecoveredState(
        table=table,
        views=views,
        time=time,
        writer=writer,
        groups=groups_writer,
        ahead=ahead,
        resume=(lambda _: None) if log is None else log.resume,
        stored=stored,
        is_whole=is_whole,
        restores=restores,
        restoration=restoration,
        report=report,
        checkpoint_lsn=record.checkpoint,
        journal_next_lsn=journal_next_lsn,
        next_lsn=next_lsn,
    )


def _require_unbroken(directory: DataDirectory, found: Recovered, restoration: Restoration) -> None:
    """Refuse a directory of which the content is not simply what the log of its store says.

    Raises:
        CorruptionError: An entry of its journal is damaged.
        DataDirectoryError: It was restored from a backup.
    """
    if found.damages:
        raise CorruptionError(
            found.damages[0].path,
            found.damages[0].position,
            f"{found.damages[0].problem}. The log store has everything that is in {directory.path}: move that "
            "directory away, and start again",
        )
    if restoration.is_new:
        raise DataDirectoryError(
            f"data directory {directory.path} was restored from a backup, which the log of its store knows nothing of: "
            "move it away, and start again with what the store has"
        )


def _resume_point(record: NodeRecord, found: Recovered, noted: ResumePoint | None) -> ResumePoint:
    """Where reading the log goes on: at that of the checkpoint, or later if the journal is known to have more.

    Args:
        record: The numbers in the views.
        found: The journal, which is read.
        noted: A position after which the journal was written, unless a power loss took the end of it.
    """
    resume = NOWHERE
    if record.log_epoch:
        resume = ResumePoint(Position(record.log_epoch, record.log_slot), record.log_lsn)
    if noted is not None and found.used and resume.next_lsn <= noted.next_lsn <= found.next_lsn:
        return noted
    return resume


class _NewJournalFile:
    """The journal file in which a start continues.

    Args:
        make_writer: Creates the writer, given the number of spare files that are complete.
        directory: The data directory.
        store: The store of the views.
        off_loop: Runs the blocking calls.
        found: What was found in the journal so far.
        record: The node's record.

    Attributes:
        writer: Writes to the file; None before `begin`.
    """

    def __init__(
        self,
        make_writer: Callable[[int], JournalWriter],
        directory: DataDirectory,
        store: DirectoryStore,
        off_loop: OffLoop,
        found: Recovered,
        record: NodeRecord,
    ) -> None:
        self._make_writer = make_writer
        self._directory = directory
        self._store = store
        self._off_loop = off_loop
        self._found = found
        self._record = record
        self.writer: JournalWriter | None = None

    async def begin(self, first_lsn: int, entries: Readable = b"", next_lsn: int | None = None) -> JournalWriter:
        """Begin the file, which is recorded in the views before anything in it is acknowledged.

        Args:
            first_lsn: First lsn in the file.
            entries: A group that may not be durable yet: it is written again.
            next_lsn: The lsn after that group.

        Raises:
            StorageFailedError: The file could not be written.
        """
        used, record = self._found.used, self._record
        stopped_orderly = bool(used) and used[-1].header.number == record.stopped_in
        writer = self.writer = self._make_writer(record.spares if stopped_orderly else 0)

        def begin() -> None:
            writer.begin(first_lsn, entries, next_lsn)
            mutations = Mutations()
            put_number(mutations, NodeKey.JOURNAL_FILE, writer.newest_number)
            put_number(mutations, NodeKey.NODE_ID, number_of_node(self._directory.node_id))
            self._store.write(mutations)
            self._store.flush()
            self._directory.complete()
            writer.release_up_to(record.checkpoint, 0)

        try:
            await LimitedOffLoop(self._off_loop)(begin)
        except OSError as error:
            raise StorageFailedError(
                f"the journal in {self._directory.journal} cannot continue in a new file ({error}); nothing was lost. "
                f"Free space or repair the disk, then start again"
            ) from error
        return writer

    def close(self) -> None:
        """Close the file if it was begun."""
        if self.writer is not None:
            self.writer.close()


def _new_salt() -> int:
    return secrets.randbits(64)


async def _replay(
    groups: Iterable[RecoveredGroup],
    table: ShardTable,
    views: Views,
    checkpoint: int,
    new_file: _NewJournalFile,
) -> int:
    """Fold the entries after the checkpoint, and stop the shards that have damaged entries there.

    Args:
        groups: The recovered groups.
        table: The shards.
        views: The views.
        checkpoint: The views hold everything up to this lsn.
        new_file: Begins with a group that may not be durable yet, before that group is folded, since the store of the
            views may write to the disk at any time.

    Returns:
        The number of entries read, including those up to the checkpoint.
    """
    entries = 0
    step = TimeSlice()
    for group in groups:
        if step.is_over:
            await step.rest()
        if group.unproven is not None:
            await new_file.begin(group.first_lsn, group.unproven, group.next_lsn)
        for damage in group.damages:
            shard = table.by_id(damage.shard_id)
            if shard is not None and damage.lsn > checkpoint:
                views.stop(shard, str(damage))
        wanted = [entry for entry in group.entries if entry.lsn > checkpoint]
        for start in range(0, len(wanted), FOLDED_AT_ONCE):
            views.replay(wanted[start : start + FOLDED_AT_ONCE])
            await trio.lowlevel.checkpoint()
        entries += len(group.entries)
    return entries
