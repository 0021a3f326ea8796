"""Writing tails to log files: which tails, how many at once, and when the files are synced.

Flushed bytes are not durable by themselves; the journal keeps them until a checkpoint has synced the files. A file that
gets many bytes is nevertheless synced at once: this spreads the work, and its pages can be released from the page cache
early.

If the disk is full during a write, nothing is lost: the bytes are still in memory and are written again. A failed sync
is final, whatever the reason: bytes of earlier writes, which are no longer in memory, may be lost.
"""

from __future__ import annotations

import posixpath
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from operator import attrgetter
from typing import NamedTuple

import trio

from journal.engine.segments.unsynced_files import UnsyncedFiles
from journal.engine.wal.disk import LimitedOffLoop, OffLoop, RetriableWhenFull
from journal.settings.server import StorageConfig
from shards.seams.file_system import FileSystem
from shards.segments.log_segment import FlushPlan, LogSegment
from shards.segments.shard import Shard

LARGE_TAIL_BYTES = 1 << 20
"""A tail of at least this size is flushed early and its file synced at once."""

_SHARDS_AT_ONCE = 32


class Flusher:
    """Flushes and syncs the log files of one engine; used by one task.

    Args:
        files: The file system.
        directory: The directory of the log files.
        storage: Settings; they limit how much of the files stays in the page cache.
        written: Called when tails have been written, and their memory was freed.
        off_loop: Runs the blocking calls.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        storage: StorageConfig,
        written: Callable[[], object],
        off_loop: OffLoop,
    ) -> None:
        self._files = files
        self._directory = directory
        self._unsynced = UnsyncedFiles(files, directory)
        self._cached = PageCache(storage.page_cache_bytes)
        self._written = written
        self._off_loop = LimitedOffLoop(off_loop)

    async def flush(self, shards: Iterable[Shard], *, least_bytes: int = 0) -> None:
        """Write the committed batches of these shards that are only in memory into their files.

        Args:
            shards: The shards, processed some at a time; one may be deleted in the meantime.
            least_bytes: Skip segments that have less to write.

        Raises:
            DiskFullError: The disk is full. The batches stay in memory and in the journal, and may be written again.
            OSError: The disk failed, or any sync failed. This is final.
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
        """Return when everything that was flushed is durable.

        Raises:
            OSError: The disk failed or was full. This is final.
        """
        await self._off_loop(self._unsynced.sync)

    def forget(self, segment: LogSegment) -> None:
        """Note that the files of a segment will be removed: they need no sync."""
        self._unsynced.forget(segment.path, segment.index_path)

    async def close_forgotten(self) -> None:
        """Close removed files: only then their space is free."""
        if self._unsynced.has_forgotten:
            await self._off_loop(self._unsynced.limit)

    def close(self) -> None:
        """Close all files, synced or not."""
        self._unsynced.close()

    def _write(self, plans: list[FlushPlan]) -> None:
        for plan in plans:
            path = plan.segment.path
            size_bytes = sum(map(len, plan.buffers))
            with RetriableWhenFull(self._directory):
                self._unsynced.make_directory(posixpath.dirname(path))
                # A file that an earlier process left is not trusted: it is not known whether its name and its bytes
                # would survive a power loss, since a sync that failed there is not reported again here.
                log = self._unsynced.create(path) if plan.is_first else self._unsynced.open_written(path, plan.position)
                plan.write(log, lambda plan=plan: self._unsynced.open(plan.segment.index_path))  # type: ignore[misc]
            if size_bytes >= LARGE_TAIL_BYTES:
                self._unsynced.sync_content(path)
            self._cached.add(WrittenRange(path, plan.position, size_bytes))
        self._unsynced.limit()
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


def _plans(shards: list[Shard], least_bytes: int) -> list[FlushPlan]:
    plans = []
    for shard in shards:
        if shard.gone:
            # Perhaps it was deleted after the flush began; its memory is freed.
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
    """Split shards into lists, so that other tasks run in between."""
    remaining = iter(tuple(shards))
    while some := list(islice(remaining, size)):
        yield some


_PAGE_BYTES = 4096


class WrittenRange(NamedTuple):
    """Bytes of a log file that were written."""

    path: str
    position: int
    size_bytes: int


class PageCache:
    """Records written ranges, oldest first, and returns those beyond the bound.

    A range counts as at least one page, so the number of recorded ranges is bounded, too.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._ranges: deque[WrittenRange] = deque()
        self._held_bytes = 0

    def add(self, written: WrittenRange) -> None:
        """Add a range as the newest."""
        self._ranges.append(written)
        self._held_bytes += _weight(written)

    def overdue(self) -> list[WrittenRange]:
        """Remove the oldest ranges beyond the bound and return them."""
        gone = []
        while self._held_bytes > self._limit_bytes and self._ranges:
            oldest = self._ranges.popleft()
            self._held_bytes -= _weight(oldest)
            gone.append(oldest)
        return gone


def _weight(written: WrittenRange) -> int:
    return max(_PAGE_BYTES, written.size_bytes)
