"""The journal's files between commit groups: prepared before they are needed, marked when idle, recycled."""

from __future__ import annotations

import math
from collections.abc import Callable

import outcome
import trio

from journal.engine.segments.disk_space import DiskSpace
from journal.engine.wal.disk import Disk, LimitedOffLoop, RetriableWhenFull
from journal.engine.wal.group_commit import Committer
from journal.engine.wal.journal_file import WrittenFile
from journal.engine.wal.journal_writer import JournalWriter
from journal.settings.server import StorageConfig
from shards.errors import DiskFullError


class JournalUpkeep:
    """Work on journal files that no commit group waits for. Its steps do not overlap.

    Args:
        directory: The journal's directory.
        storage: Sizes of files and of the journal, and intervals.
        writer: Writes the files.
        committer: Writes groups meanwhile.
        disk: Runs what must not overlap with a group.
        off_loop: Runs what may.
        disk_space: Refuses appends when a file cannot be made.
    """

    def __init__(
        self,
        *,
        directory: str,
        storage: StorageConfig,
        writer: JournalWriter,
        committer: Committer,
        disk: Disk,
        off_loop: LimitedOffLoop,
        disk_space: DiskSpace,
    ) -> None:
        self._directory = directory
        self._idle_s = storage.flush_interval_ms / 1000
        self._most_spares = math.ceil(storage.journal_budget_bytes / storage.journal_file_bytes)
        self._writer = writer
        self._committer = committer
        self._disk = disk
        self._off_loop = off_loop
        self._disk_space = disk_space
        self._seen_committed = 0
        self._seen_committed_at = trio.current_time()

    def _spares_wanted(self) -> int:
        """One zeroed spare file is enough for a quiet node; a node under load prepares the whole budget early."""
        used = self._writer.used_count
        return 1 if used < 2 else max(1, self._most_spares - used)

    async def prepare_spares(self) -> bool:
        """Prepare a zeroed journal file, unless there are enough. Returns whether more are wanted."""
        if self._writer.spare_count >= self._spares_wanted() or self._disk_space.full is not None:
            return False
        try:
            # A spare whose sync fails is removed; the next attempt writes another file.
            with RetriableWhenFull(self._directory):
                await self._off_loop(self._writer.add_spare)
        except DiskFullError as error:
            # The reserve is smaller than a journal file. A missing spare loses nothing.
            self._disk_space.refuse_for(error)
            return False
        return self._writer.spare_count < self._spares_wanted()

    async def mark_when_idle(self) -> None:
        """Write a mark when nothing was committed for a while: it proves that the last group was durable."""
        committed, now = self._committer.groups_committed, trio.current_time()
        if committed != self._seen_committed:
            self._seen_committed, self._seen_committed_at = committed, now
        elif not self._writer.is_marked and now - self._seen_committed_at >= self._idle_s:
            try:
                await self._on_disk_thread(self._writer.write_mark)
            except DiskFullError as error:
                self._disk_space.refuse_for(error)

    async def written(self) -> list[WrittenFile]:
        """How far the journal is written; read between two groups."""
        found: list[WrittenFile] = []
        await self._on_disk_thread(lambda: found.extend(self._writer.written()))
        return found

    async def recycle(self, lsn: int) -> None:
        """Recycle the files whose entries all have lsns up to this one."""
        await self._on_disk_thread(lambda: self._writer.release_up_to(lsn, self._most_spares))

    async def _on_disk_thread(self, work: Callable[[], None]) -> None:
        done = trio.Event()
        results: list[outcome.Outcome[None]] = []

        def finished(result: outcome.Outcome[None]) -> None:
            results.append(result)
            done.set()

        self._disk.submit(work, finished)
        await done.wait()
        results[0].unwrap()
