"""Writing tails into log files: which, how many at once, and when they are synced.

What is flushed is not durable by itself; the journal keeps it safe until a checkpoint has synced the files. Where much
is written to one file it is synced at once all the same: that spreads the work, and lets the page cache be given back
while it is warm.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter

import trio

from journal.config import StorageConfig
from journal.page_window import PageWindow, WrittenRange
from shards.errors import DiskFullError
from shards.file_system import FileSystem
from shards.log_segment import FlushPlan, LogSegment
from shards.shard import Shard

LARGE_TAIL_BYTES = 1 << 20
"""A tail this large is flushed early and its file synced at once."""

_SHARDS_AT_ONCE = 256
_SYNCED_ONE_BY_ONE = 32


class Flusher:
    """Flushes and syncs the log files of one engine; one task uses it. ``written`` is called as tails get shorter."""

    def __init__(
        self, files: FileSystem, directory: str, storage: StorageConfig, written: Callable[[], object]
    ) -> None:
        self._files = files
        self._directory = directory
        self._cached = PageWindow(storage.page_cache_bytes)
        self._written = written
        self._limiter = trio.CapacityLimiter(1)
        self._unsynced: set[str] = set()
        self._made_directories: set[str] = set()

    async def flush(self, shards: Iterable[Shard], *, least_bytes: int = 0) -> None:
        """Write the committed batches of these shards that are in memory only into their files.

        Args:
            shards: The shards, looked at some at a time: one may be deleted meanwhile.
            least_bytes: Pass over segments that have less to write.

        Raises:
            DiskFullError: The disk is full. The batches stay in memory and in the journal.
            OSError: The disk failed.
        """
        for some in slices(shards, _SHARDS_AT_ONCE):
            plans = _plans(some, least_bytes)
            if not plans:
                await trio.lowlevel.checkpoint()
                continue
            try:
                await self._off_loop(lambda plans=plans: self._write(plans))  # type: ignore[misc]
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                message = f"{self._directory}: {error.strerror}; free some space. Reads go on"
                raise DiskFullError(message) from error
            for plan in plans:
                self._unsynced.add(plan.segment.path)
                if plan.index_bytes:
                    self._unsynced.add(plan.segment.index_path)
                plan.segment.flushed_to(plan)
            self._written()

    async def sync(self) -> None:
        """Return when everything flushed so far is durable.

        Raises:
            OSError: The disk failed.
        """
        paths = sorted(self._unsynced)
        if paths:
            await self._off_loop(lambda: self._sync(paths))
        self._unsynced.difference_update(paths)

    def forget(self, segment: LogSegment) -> None:
        """Its files are going away: they need no sync."""
        self._unsynced.difference_update((segment.path, segment.index_path))

    async def _off_loop(self, work: Callable[[], None]) -> None:
        await trio.to_thread.run_sync(work, limiter=self._limiter)

    def _write(self, plans: list[FlushPlan]) -> None:
        for plan in plans:
            path = plan.segment.path
            directory = posixpath.dirname(path)
            if directory not in self._made_directories:
                self._files.mkdir(directory)
                self._made_directories.add(directory)
            if plan.is_first and self._files.exists(path):
                # Left by a process before this one. Whether its name and its bytes would survive a power loss is not
                # known: a sync that failed there is not told here again.
                self._files.remove(path)
            log = self._files.open(path, create=True)
            try:
                size_bytes = sum(map(len, plan.buffers))
                plan.write(self._files, log)
                if size_bytes >= LARGE_TAIL_BYTES:
                    log.fdatasync()
                self._cached.add(WrittenRange(path, plan.position, size_bytes))
            finally:
                log.close()
        self._drop_pages()

    def _drop_pages(self) -> None:
        for path, ranges in groupby(self._cached.overdue(), key=attrgetter("path")):
            if self._files.exists(path):
                log = self._files.open(path, write=False)
                try:
                    for _, position, size_bytes in ranges:
                        log.drop_pages(position, size_bytes)
                finally:
                    log.close()

    def _sync(self, paths: list[str]) -> None:
        if len(paths) > _SYNCED_ONE_BY_ONE:
            # One call for all files of the file system costs less than thousands of small ones.
            self._files.sync_all(self._directory)
            return
        for path in paths:
            if self._files.exists(path):
                log = self._files.open(path)
                try:
                    log.fdatasync()
                finally:
                    log.close()
        for directory in sorted({posixpath.dirname(path) for path in paths}):
            self._files.sync_directory(directory)
            self._files.sync_directory(posixpath.dirname(directory))


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
