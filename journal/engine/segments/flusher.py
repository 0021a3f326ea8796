"""Writing tails into log files: which, how many at once, and when they are synced.

What is flushed is not durable by itself; the journal keeps it safe until a checkpoint has synced the files. Where much
is written to one file it is synced at once all the same: that spreads the work, and lets the page cache be given back
while it is warm.

A disk that is full while bytes are being written costs nothing: they are in memory still and are written again. A sync
that fails is final, whatever the reason: bytes of earlier writes, which are in memory no more, may be lost with it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter

import trio

from journal.engine.segments.page_cache import PageCache, WrittenRange
from journal.engine.segments.unsynced_files import UnsyncedFiles
from journal.engine.wal.disk_full import RetriableWhenFull
from journal.settings.server import StorageConfig
from shards.seams.file_system import FileSystem
from shards.segments.log_segment import FlushPlan, LogSegment
from shards.segments.shard import Shard

LARGE_TAIL_BYTES = 1 << 20
"""A tail this large is flushed early and its file synced at once."""

_SHARDS_AT_ONCE = 256


class Flusher:
    """Flushes and syncs the log files of one engine; one task uses it.

    Args:
        files: The file system.
        directory: The directory of the log files.
        storage: How much of them stays in the page cache.
        written: Called as tails get shorter.
    """

    def __init__(
        self, files: FileSystem, directory: str, storage: StorageConfig, written: Callable[[], object]
    ) -> None:
        self._files = files
        self._directory = directory
        self._unsynced = UnsyncedFiles(files, directory)
        self._cached = PageCache(storage.page_cache_bytes)
        self._written = written
        self._limiter = trio.CapacityLimiter(1)
        self._made_directories: set[str] = set()

    async def flush(self, shards: Iterable[Shard], *, least_bytes: int = 0) -> None:
        """Write the committed batches of these shards that are in memory only into their files.

        Args:
            shards: The shards, looked at some at a time: one may be deleted meanwhile.
            least_bytes: Pass over segments that have less to write.

        Raises:
            DiskFullError: The disk is full. The batches stay in memory and in the journal, and may be written again.
            OSError: The disk failed, or a sync did for whatever reason. It is final.
        """
        for some in slices(shards, _SHARDS_AT_ONCE):
            plans = _plans(some, least_bytes)
            if not plans:
                await trio.lowlevel.checkpoint()
                continue
            await self._off_loop(lambda plans=plans: self._write(plans))  # type: ignore[misc]
            for plan in plans:
                plan.segment.flushed_to(plan)
            self._written()

    async def sync(self) -> None:
        """Return when everything flushed so far is durable.

        Raises:
            OSError: The disk failed, or was full. It is final.
        """
        await self._off_loop(self._unsynced.sync)

    def forget(self, segment: LogSegment) -> None:
        """Its files are going away: they need no sync."""
        self._unsynced.forget(segment.path, segment.index_path)

    async def close_forgotten(self) -> None:
        """Close the files that went away: their space is free only then."""
        if self._unsynced.has_forgotten:
            await self._off_loop(self._unsynced.limit)

    def close(self) -> None:
        """Close all files, synced or not."""
        self._unsynced.close()

    async def _off_loop(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._limiter)

    def _write(self, plans: list[FlushPlan]) -> None:
        for plan in plans:
            path = plan.segment.path
            size_bytes = sum(map(len, plan.buffers))
            with RetriableWhenFull(self._directory):
                self._make_directory(posixpath.dirname(path))
                # What a process before this one left in a file is not relied on. Whether its name and its bytes would
                # survive a power loss is not known: a sync that failed there is not told here again.
                log = self._unsynced.create(path) if plan.is_first else self._unsynced.open_written(path, plan.position)
                plan.write(log, lambda plan=plan: self._unsynced.open(plan.segment.index_path))  # type: ignore[misc]
            if size_bytes >= LARGE_TAIL_BYTES:
                self._unsynced.sync_content(path)
            self._cached.add(WrittenRange(path, plan.position, size_bytes))
        self._unsynced.limit()
        self._drop_pages()

    def _make_directory(self, directory: str) -> None:
        if directory not in self._made_directories:
            self._files.mkdir(directory)
            self._made_directories.add(directory)

    def _drop_pages(self) -> None:
        for path, ranges in groupby(self._cached.overdue(), key=attrgetter("path")):
            if self._files.exists(path):
                log = self._files.open(path, write=False)
                try:
                    for _, position, size_bytes in ranges:
                        log.drop_pages(position, size_bytes)
                finally:
                    log.close()


def _plans(shards: list[Shard], least_bytes: int) -> list[FlushPlan]:
    plans = []
    for shard in shards:
        if shard.gone:
            # Perhaps only since the flush began: what it held in memory is gone.
            continue
        for segment in shard.segments:
            if isinstance(segment, LogSegment):
                end = shard.visible_end(segment)
                if end - segment.flushed > least_bytes:
                    plans.append(segment.plan_flush(end, shard.visible_next_offset(segment)))
            if segment is shard.published_segment:
                break
    return plans


def slices(shards: Iterable[Shard], size: int) -> Iterator[list[Shard]]:
    """Cut shards into lists, so that the loop gets its turn in between."""
    remaining = iter(tuple(shards))
    while some := list(islice(remaining, size)):
        yield some
