"""Following the log of a store until this server owns it: its groups are copied, folded, and shown to readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import trio

from journal.engine.directory.restores import Restores
from journal.engine.readable import Readable
from journal.engine.segments.file_fetching import FetchPass, FileFetcher
from journal.engine.shared_log.log import SharedLog
from journal.engine.shared_log.repetition import until_answered
from journal.engine.shared_log.slot_groups import SlotGroup
from journal.engine.shared_log.stored_position import StoredPosition
from journal.engine.shared_log.writer import ResumePoint
from journal.engine.state.committed_lsns import CommittedLsns, FoldedLsns
from journal.engine.state.node_time import NodeTime
from journal.engine.state.views import FOLDED_AT_ONCE, Views, files_named
from journal.engine.time_slice import TimeSlice
from journal.engine.wal.disk import LimitedOffLoop, OffLoop
from journal.engine.wal.entry import Entry
from journal.engine.wal.journal_writer import JournalWriter
from journal.logstore.errors import LogDamagedError
from journal.logstore.keys import FileName
from shards.segments.parquet_segment import file_of
from shards.views import shard_records
from shards.views.shared_files import FileKey, SharedFileRecord


class FollowerReads(Protocol):
    """Reads of clients, while a recovery follows the log of a store."""

    @property
    def are_open(self) -> bool:
        """Whether clients read now."""

    def begin(self, views: Views, time: NodeTime, restores: Restores, lsns: CommittedLsns) -> Readable:
        """Let clients read what was recovered so far."""

    async def end(self) -> None:
        """Return when no client reads any more."""


class Following:
    """Reads the log of a store: its groups are copied to the journal of this server, and folded.

    Args:
        log: The log.
        writer: Writes to the journal of this server.
        views: The views.
        position: Notes for a later start how far the journal is.
        fetcher: Fetches files that entries name.
        off_loop: Runs the writes.
        checkpoint: The views have everything up to this lsn.
        next_lsn: The journal, or the views, have everything before this lsn.
        reads: Reads of clients; None for no reads.

    Attributes:
        next_lsn: The same now.
    """

    def __init__(
        self,
        log: SharedLog,
        writer: JournalWriter,
        position: StoredPosition,
        views: Views,
        fetcher: FileFetcher,
        off_loop: OffLoop,
        checkpoint: int,
        next_lsn: int,
        reads: ServedReads | None,
    ) -> None:
        self._reads = reads
        self._log = log
        self._writer = writer
        self._position = position
        self._views = views
        self._fetcher = fetcher
        self._checkpoint = checkpoint
        self._off_loop = LimitedOffLoop(off_loop)
        self.next_lsn = next_lsn

    async def run(self, most_bytes: int) -> bool:
        """Read until this server owns the store and has all of its log, or until it has read many bytes.

        Returns:
            Whether it owns the store. Files of the history may be missing, if the log store does not give them.
        """
        raised: Exception | None = None
        is_owner = False
        async with trio.open_nursery() as nursery:
            fetching = FetchPass(self._fetcher, self._log.until_fetched, self._views.unfetched, nursery)
            try:
                is_owner = await self._run(most_bytes, fetching)
            except Exception as error:  # noqa: BLE001 raised again below, without a group around it
                raised = error
            nursery.cancel_scope.cancel()
        if raised is not None:
            raise raised
        return is_owner

    async def _run(self, most_bytes: int, fetching: FetchPass) -> bool:
        read_bytes = 0
        while read_bytes < most_bytes:
            groups = await until_answered(partial(self._log.read, self.next_lsn))
            if groups is None:
                is_owner = self._log.epoch is not None
                may_begin = self._reads is not None and not self._reads.are_open
                missing = await fetching.all_there(is_last=is_owner, waits=is_owner or may_begin)
                if is_owner:
                    await self._require_unneeded(missing or ())
                    return True
                if self._reads is not None and self._log.claim.epoch and not missing:
                    # Before the end of the log, records may be in log files without content, and a start may have found
                    # views that are newer than its journal.
                    self._reads.begin(self.next_lsn)
                await until_answered(self._log.wait)
                continue
            for several in joined(groups, self._writer.largest_group_bytes):
                # First the copy: the store of the views may write what is folded to the disk at any time.
                is_last = several[-1] is groups[-1]
                await self._copy(several, self._log.resume(several[-1].next_lsn) if is_last else None)
                for group in several:
                    await self._fold(group, fetching)
                    read_bytes += len(group.data)
        return False

    async def _copy(self, groups: Sequence[SlotGroup], resume: ResumePoint | None) -> None:
        """Write groups that follow each other into the journal as one, with one sync.

        Args:
            groups: The groups.
            resume: Where the log goes on after them, if they are the end of what was read.
        """
        data = [group.data for group in groups]
        size_bytes, first_lsn, next_lsn = sum(map(len, data)), groups[0].first_lsn, groups[-1].next_lsn

        def write() -> None:
            self._writer.write_group(data, size_bytes, first_lsn, next_lsn)
            if resume is not None:
                self._position.note(resume)

        await self._off_loop(write)

    async def _require_unneeded(self, missing: Sequence[SharedFileRecord]) -> None:
        """Refuse to serve acknowledged records of which the file is gone, so that it can be put back.

        Raises:
            LogDamagedError: A shard has records in one of these files.
        """
        if not missing:
            return
        files = {record.key: record for record in missing}
        needed: set[FileKey] = set()
        table, step = self._views.table, TimeSlice()
        open_ids = set()
        for shard in table.open_shards():
            open_ids.add(shard.shard_id)
            needed.update(key for segment in shard.segments if (key := file_of(segment)) is not None)
            if step.is_over:
                await step.rest()
        for found in shard_records.references(self._views.store):
            # What is recorded of open shards is older than what they have.
            if found is not None and found[0] not in open_ids:
                needed.add(found[1])
            if step.is_over:
                await step.rest()
        for key in files.keys() & needed:
            raise LogDamagedError(
                f"the log store has not got the file {FileName(*key)}, in which shards have records: put it back. A "
                f"server that has fetched it has it as {files[key].path(table.sealed_root)}"
            )

    async def _fold(self, group: SlotGroup, fetching: FetchPass) -> None:
        wanted = [entry for entry in group.entries if entry.lsn > self._checkpoint]
        reads = self._reads
        if reads is not None and reads.are_open and not await fetching.provide(files_named(wanted)):
            # Records in a missing file cannot be read until an entry that follows has replaced it.
            await reads.end()
        if reads is not None:
            reads.begin_group(group.next_lsn)
        for start in range(0, len(wanted), FOLDED_AT_ONCE):
            step = wanted[start : start + FOLDED_AT_ONCE]
            self._fetcher.note_unfetched(files_named(step))
            self._views.replay(step)
            if reads is not None and len(step) < len(wanted):
                reads.folded_some(step)
            await trio.lowlevel.checkpoint()
        self.next_lsn = group.next_lsn
        if reads is not None:
            reads.folded(wanted)


def joined(groups: Sequence[SlotGroup], most_bytes: int) -> Iterator[list[SlotGroup]]:
    """Groups in runs that have so many bytes at most; one that has more is alone."""
    run: list[SlotGroup] = []
    size_bytes = 0
    for group in groups:
        if run and size_bytes + len(group.data) > most_bytes:
            yield run
            run, size_bytes = [], 0
        run.append(group)
        size_bytes += len(group.data)
    if run:
        yield run


class ServedReads:
    """Reads of clients while the log is followed. They are shown whole commit groups, so no half of a transaction.

    Args:
        reads: Serves them.
        views: The views.
        time: The node's time.
        restores: The restores of the node from backups.
    """

    def __init__(self, reads: FollowerReads, views: Views, time: NodeTime, restores: Restores) -> None:
        self._reads = reads
        self._table = views.table
        self._views = views
        self._time = time
        self._restores = restores
        self._deleted_count = 0
        self._lsns = FoldedLsns(0, 0)
        self._readable: Readable | None = None

    @property
    def are_open(self) -> bool:
        """Whether clients read now."""
        return self._reads.are_open

    def begin(self, next_lsn: int) -> None:
        """Let clients read, if they do not yet.

        Args:
            next_lsn: Everything before this lsn was folded.
        """
        if not self._reads.are_open:
            self._deleted_count = len(self._views.deleted)
            self._table.begin_reading()
            self._lsns = FoldedLsns(next_lsn, next_lsn - 1)
            lsns = CommittedLsns(self._lsns, is_followed=True)
            self._readable = self._reads.begin(self._views, self._time, self._restores, lsns)
            self._table.publishing = self._readable.discovery.publishing

    async def end(self) -> None:
        """Return when no client reads any more."""
        await self._reads.end()
        self._readable = None
        self._table.end_reading()

    def begin_group(self, next_lsn: int) -> None:
        """A commit group is folded from now on: parts of it may be published.

        Args:
            next_lsn: The first lsn after it.
        """
        self._lsns.next_lsn = next_lsn

    def folded_some(self, entries: Iterable[Entry]) -> None:
        """A part of a commit group was folded: no shard may seem to begin after its end."""
        if self._reads.are_open:
            self._table.show_trimmed({entry.shard_id for entry in entries})

    def folded(self, entries: Iterable[Entry]) -> None:
        """A commit group was folded: show it."""
        if self._readable is None or not self._reads.are_open:
            return
        self._table.show({entry.shard_id for entry in entries})
        for shard in self._views.deleted[self._deleted_count :]:
            self._readable.subscriptions.shard_deleted(shard)
        self._deleted_count = len(self._views.deleted)
        self._lsns.committed_lsn = self._lsns.next_lsn - 1
        self._readable.subscriptions.committed()
        self._readable.lsns.moved()
