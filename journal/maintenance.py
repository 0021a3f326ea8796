"""What goes on in the background: flushing tails to log files, checkpoints, retention, expiry, watching the disk.

Memory and start-up time are bounded here: tails may hold so many bytes before they are flushed, the journal so many
before a checkpoint recycles its files.
"""

from __future__ import annotations

import errno
import math
import posixpath
import struct
from collections.abc import Callable, Iterator

import outcome
import trio

from journal.commit import Committer
from journal.config import ShardsConfig, StorageConfig, WrittenPages
from journal.control import Control
from journal.disk import Disk
from journal.journal_file import JournalWriter
from journal.shard_table import ShardTable
from journal.views import Views
from shards import shard_records
from shards.clock import Clock
from shards.errors import DiskFullError
from shards.file_system import FileSystem
from shards.log_segment import FlushPlan, LogSegment
from shards.model import Mode, Retention, SegmentKind
from shards.retention import due
from shards.segment import Segment
from shards.shard import Shard
from shards.store import Family, Mutations

CHECKPOINT_KEY = b"checkpoint_lsn"
LSNS_RESERVED_KEY = b"lsns_reserved"
LSN = struct.Struct(">Q")

_FLUSHED_AT_ONCE = 256
_SAVED_AT_ONCE = 500
_SYNCED_ONE_BY_ONE = 32
_EXPIRED_AT_ONCE = 1000
_UNINDEXED_AT_ONCE = 2000


class Maintenance:
    """The background work of one engine; one task runs it, so its steps never overlap.

    Attributes:
        dirty: Shards that changed since their records were saved.
        disk_full: The error that appends get while the disk is nearly full.
        checkpoints: Checkpoints made since the start.
    """

    def __init__(
        self,
        *,
        files: FileSystem,
        directory: str,
        storage: StorageConfig,
        defaults: ShardsConfig,
        disk: Disk,
        writer: JournalWriter,
        committer: Committer,
        table: ShardTable,
        views: Views,
        control: Control,
        clock: Clock,
        fail: Callable[[Exception], None],
    ) -> None:
        self._files = files
        self._directory = directory
        self._storage = storage
        self._defaults = defaults
        self._disk = disk
        self._writer = writer
        self._committer = committer
        self._table = table
        self._views = views
        self._control = control
        self._clock = clock
        self._fail = fail
        self._limiter = trio.CapacityLimiter(1)
        self._wake = trio.Event()
        self._progress = trio.lowlevel.ParkingLot()
        self._unsynced: set[str] = set()
        self._directories: set[str] = set()
        self._to_remove: list[LogSegment] = []
        self._to_unindex: dict[int, Shard] = {}
        self.dirty: dict[int, Shard] = {}
        self.disk_full: DiskFullError | None = None
        self.checkpoints = 0

    # Back-pressure

    def has_room(self) -> bool:
        """Whether more file-mode appends may be taken in without passing the memory and journal budgets.

        Always while the disk is full: then appends are refused anyhow, and reads and whatever frees space must go on.
        """
        return self.disk_full is not None or (
            self._table.tail_pool.held_bytes < self._storage.tail_budget_bytes
            and self._writer.used_bytes < self._storage.journal_budget_bytes + self._storage.journal_file_bytes
        )

    async def wait_for_room(self) -> None:
        """Return when `has_room`, or when the engine has failed and the answer will say so."""
        while not self.has_room() and self._committer.failure is None:
            self.wake()
            await self._progress.park()

    def wake_if_needed(self) -> None:
        """Start the background work early when a budget is half used; costs nearly nothing otherwise."""
        if self._tails_due() or self._checkpoint_due() or not self._writer.spare_count:
            self.wake()

    def wake(self) -> None:
        """Have the background work look at once."""
        self._wake.set()

    def _tails_due(self) -> bool:
        return self._table.tail_pool.held_bytes * 2 > self._storage.tail_budget_bytes

    def _checkpoint_due(self) -> bool:
        return self._writer.used_count > 1 and self._writer.used_bytes * 2 > self._storage.journal_budget_bytes

    # The task

    async def run(self) -> None:
        """Work until cancelled. An error of the disk or the views stops the engine, and with it this task."""
        self.look_at_disk()
        next_retention = trio.current_time() + self._storage.retention_interval_s
        try:
            await self._open_retained_shards()
            while self._committer.failure is None:
                with trio.move_on_after(self._storage.flush_interval_ms / 1000):
                    await self._wake.wait()
                self._wake = trio.Event()
                self.look_at_disk()
                if self._checkpoint_due():
                    await self.checkpoint()
                elif self._tails_due():
                    await self.flush()
                await self.remove_files()
                await self.clean_indexes()
                await self.prepare_spares()
                if trio.current_time() >= next_retention:
                    next_retention = trio.current_time() + self._storage.retention_interval_s
                    await self.apply_retention()
                self._progress.unpark_all()
        except Exception as error:  # noqa: BLE001 whatever it was, nothing may be acknowledged on top of it
            self._fail(error)
        finally:
            self._progress.unpark_all()

    async def _off_loop(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._limiter)

    def _spares_wanted(self) -> int:
        """One zeroed file ahead is enough for a quiet node; one under load gets the whole budget early."""
        used = self._writer.used_count
        return 1 if used < 2 else max(1, self._spares() - used)

    async def prepare_spares(self) -> None:
        """Have zeroed journal files ready before they are needed, one a turn."""
        if self._writer.spare_count < self._spares_wanted() and self.disk_full is None:
            try:
                await self._off_loop(self._writer.add_spare)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # The reserve is smaller than a journal file. Nothing is lost by not having a spare yet.
                self._refuse_for(DiskFullError(f"{self._directory}: {error.strerror}; free some space. Reads go on"))
                return
            if self._writer.spare_count < self._spares_wanted():
                self.wake()

    def look_at_disk(self) -> None:
        """Refuse appends before the disk is really full, and take them again when there is room."""
        free = self._files.free_bytes(self._directory)
        reserve = self._storage.disk_reserve_bytes
        if free >= reserve:
            self._refuse_for(None)
        else:
            self._refuse_for(
                DiskFullError(
                    f"the disk of {self._directory} has {free} bytes left, under the reserve of {reserve} "
                    f"(storage.disk_reserve_bytes); free some space, trim shards or shorten retention. Reads go on"
                )
            )

    def _refuse_for(self, full: DiskFullError | None) -> None:
        self.disk_full = full
        self._control.refuse = full

    # Flushing

    def _plans(self, shards: list[Shard]) -> list[FlushPlan]:
        plans = []
        for shard in shards:
            if shard.gone:
                # Perhaps only since the flush began: what it held in memory is gone.
                continue
            for segment in shard.segments:
                if isinstance(segment, LogSegment):
                    end = shard.visible_end(segment)
                    if segment.flushed < end:
                        plans.append(segment.plan_flush(end, shard.visible_next_offset(segment)))
                if segment is shard.published_segment:
                    break
        return plans

    async def flush(self) -> None:
        """Write all committed batches that are in memory only into their log files. Not durable by itself."""
        for some in _slices(list(self.dirty.values()), _FLUSHED_AT_ONCE):
            plans = self._plans(some)
            if not plans:
                await trio.lowlevel.checkpoint()
                continue
            try:
                await self._off_loop(lambda plans=plans: self._write(plans))  # type: ignore[misc]
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # The batches stay in memory and in the journal; appends are refused until they can be written.
                self._refuse_for(DiskFullError(f"{self._directory}: {error.strerror}; free some space. Reads go on"))
                return
            for plan in plans:
                self._unsynced.add(plan.segment.path)
                if plan.index_bytes:
                    self._unsynced.add(plan.segment.index_path)
                plan.segment.flushed_to(plan)
            self._progress.unpark_all()

    def _write(self, plans: list[FlushPlan]) -> None:
        for plan in plans:
            path = plan.segment.path
            directory = posixpath.dirname(path)
            if directory not in self._directories:
                self._files.mkdir(directory)
                self._directories.add(directory)
            log = self._files.open(path, create=True)
            try:
                plan.write(self._files, log)
            finally:
                log.close()

    def _sync(self, paths: list[str]) -> None:
        if len(paths) > _SYNCED_ONE_BY_ONE:
            # One call for all files of the file system costs less than thousands of small ones.
            self._files.sync_all(self._directory)
        for path in paths:
            if self._files.exists(path):
                self._sync_one(path, is_synced=len(paths) > _SYNCED_ONE_BY_ONE)
        if len(paths) > _SYNCED_ONE_BY_ONE:
            return
        for directory in sorted({posixpath.dirname(path) for path in paths}):
            self._files.sync_directory(directory)
            self._files.sync_directory(posixpath.dirname(directory))

    def _sync_one(self, path: str, *, is_synced: bool) -> None:
        log = self._files.open(path)
        try:
            if not is_synced:
                log.fdatasync()
            if self._storage.written_pages is WrittenPages.DROP:
                log.drop_pages()
        finally:
            log.close()

    async def checkpoint(self) -> None:
        """Bring all views safely to disk without the journal, and recycle the journal files that are not needed now."""
        lsn = self._committer.journal_lsn
        await self.flush()
        if self.disk_full is not None:
            return
        paths = list(self._unsynced)
        if paths:
            await self._off_loop(lambda: self._sync(paths))
        self._unsynced.difference_update(paths)
        dirty, self.dirty = list(self.dirty.values()), {}
        for some in _slices(dirty, _SAVED_AT_ONCE):
            mutations = Mutations()
            for shard in some:
                if shard.gone:
                    continue
                recorded = self._table.recorded(shard.shard_id)
                self._table.set_recorded(shard.shard_id, shard_records.save(mutations, shard, recorded=recorded))
                if shard_records.safe_offset(shard) < shard.published_offset:
                    self.dirty[shard.shard_id] = shard
            self._views.store.write(mutations)
            await trio.lowlevel.checkpoint()
        mutations = Mutations()
        mutations.put(Family.META, CHECKPOINT_KEY, LSN.pack(lsn))
        mutations.put(Family.META, LSNS_RESERVED_KEY, LSN.pack(self._views.lsns_reserved))
        self._views.store.write(mutations)
        await self._off_loop(self._views.store.flush)
        await self._on_disk_thread(lambda: self._writer.release_up_to(lsn, self._spares()))
        self.checkpoints += 1

    def _spares(self) -> int:
        return math.ceil(self._storage.journal_budget_bytes / self._storage.journal_file_bytes)

    async def _on_disk_thread(self, work: Callable[[], None]) -> None:
        done = trio.Event()
        results: list[outcome.Outcome[None]] = []

        def finished(result: outcome.Outcome[None]) -> None:
            results.append(result)
            done.set()

        self._disk.submit(work, finished)
        await done.wait()
        results[0].unwrap()

    # Removing

    def drop(self, segments: list[Segment]) -> None:
        """Take over segments whose records are gone: their memory now, their files when the loop has time."""
        for segment in segments:
            written = segment.size_bytes > 0
            segment.chunks.release()
            # An empty segment never had a file: the one of its name belongs to the segment that began at the same
            # offset after it (a mode switched back and forth with no record in between).
            if isinstance(segment, LogSegment) and written:
                self._to_remove.append(segment)
                self._unsynced.difference_update((segment.path, segment.index_path))
        if segments:
            self._wake.set()

    async def remove_files(self) -> None:
        """Remove the files of dropped segments. A file that was never written, or is gone already, is no error."""
        gone, self._to_remove = self._to_remove, []
        if gone:
            await self._off_loop(lambda: self._remove(gone))

    def _remove(self, segments: list[LogSegment]) -> None:
        for segment in segments:
            for path in (segment.path, segment.index_path):
                if self._files.exists(path):
                    self._files.remove(path)

    def index_trimmed(self, shard: Shard) -> None:
        """The words of a shard's trimmed records are to go from its index."""
        self._to_unindex[shard.shard_id] = shard

    async def clean_indexes(self) -> None:
        """Remove index entries of trimmed records. Readers pass over those that are still there."""
        waiting, self._to_unindex = self._to_unindex, {}
        for shard in waiting.values():
            following: bytes | None = b""
            while following is not None and not shard.deleted:
                mutations = Mutations()
                following = self._views.word_index.drop_below(
                    mutations, shard.shard_id, shard.start_offset, _UNINDEXED_AT_ONCE, following
                )
                self._views.store.write(mutations)
                await trio.lowlevel.checkpoint()

    # Retention and expiry

    async def _open_retained_shards(self) -> None:
        """Shards that keep things for a time only must be looked at even if nobody uses them."""
        for number, (shard_id, record) in enumerate(self._table.catalogue.records()):
            if record.config.retention != Retention():
                self._table.by_id(shard_id)
            if number % _SAVED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def retain(self, shard: Shard) -> None:
        """Decide the trim that the shard's retention asks for, and keep its memory segments within their bound."""
        if shard.deleted or shard.damage or not shard.segments:
            return
        retention = shard.config.retention
        if retention != Retention():
            # Nothing is due as long as the oldest segment stays; records lost before it are a gap that readers meet.
            self._trim(shard, due(retention, shard.segments, self._clock.now_us()))
        if not retention.max_bytes:
            self._bound_memory(shard)

    def _trim(self, shard: Shard, offset: int) -> None:
        if offset > max(shard.segments[0].base_offset, shard.start_offset, shard.trim_decided):
            shard.trim_decided = min(offset, shard.published_offset)
            self._control.trim_nowait(shard, shard.trim_decided)

    def _bound_memory(self, shard: Shard) -> None:
        """Let the oldest memory segments go when they hold more than a shard may that names no bound of its own.

        Behind log segments they leave a gap: what is in files stays until a retention says otherwise.
        """
        memory = [segment for segment in shard.segments if segment.kind is SegmentKind.MEMORY]
        over = sum(segment.size_bytes for segment in memory) - self._defaults.memory_max_bytes
        for segment in memory:
            if over <= 0 or not segment.sealed or segment is shard.published_segment:
                return
            over -= segment.size_bytes
            if segment is shard.segments[0] or segment.base_offset <= shard.trim_decided:
                self._trim(shard, segment.next_offset)
            else:
                shard.segments.remove(segment)
                self.drop([segment])

    async def apply_retention(self) -> None:
        """Trim what retention no longer keeps, and remove state that has expired."""
        now = self._clock.now_us()
        for some in _slices(self._table.open_shards(), _SAVED_AT_ONCE):
            for shard in some:
                max_age = shard.config.retention.max_age_s
                active = shard.active()
                if (
                    max_age
                    and active is not None
                    and active.next_offset > active.base_offset
                    and now - active.newest_append_us > max_age * 1_000_000
                ):
                    # Nothing young is in it: close it, so that it can go.
                    self._control.roll_nowait(shard)
                self.retain(shard)
            self._committer.kick()
            await trio.lowlevel.checkpoint()
        while self._control.expire_state_nowait(_EXPIRED_AT_ONCE) == _EXPIRED_AT_ONCE:
            await self._committer.wait(self._committer.group)
        self._committer.kick()

    def mode_of_next(self, shard: Shard) -> Mode:
        """Mode of the segment that comes after the active one."""
        return Mode.MEMORY if shard.in_memory_mode else Mode.FILE


def _slices(shards: list[Shard], size: int) -> Iterator[list[Shard]]:
    for start in range(0, len(shards), size):
        yield shards[start : start + size]
