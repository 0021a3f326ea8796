"""Shared files that are to be rewritten: which are next, and which are left alone for now.

`journal.engine.parquet.rewriting` decides by numbers alone; this module knows which files cannot be read or merged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import trio

from journal.engine.parquet.converter import ParquetConverter
from journal.engine.parquet.failed_conversions import AFTER_FAILURES
from journal.engine.parquet.gatherer import MOST_SOURCES, Chosen, in_order
from journal.engine.parquet.unreadable_files import UnreadableFiles
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from shards.errors import CorruptionError, FormatVersionError, StorageError
from shards.model import Retention
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment, file_of
from shards.segments.shard import Shard
from shards.views.shared_files import FileKey, SharedFileRecord

_log = logging.getLogger("journal.conversion")


class RewritingQueue:
    """The shared files of one engine that are to be rewritten.

    Args:
        table: The shards.
        most_parts: How many parts one decision may have.
        rewritable: Returns the files that are to be rewritten together; gets those that are left alone for now, and
            those that have too many parts to be merged.
        due_at: Returns when the first file after some time becomes one to rewrite by time alone; both are times of
            trio's clock.
        valid: Returns the shared files that are valid now.
    """

    def __init__(
        self,
        table: ShardTable,
        most_parts: int,
        rewritable: Callable[[set[FileKey], set[FileKey]], list[SharedFileRecord]],
        due_at: Callable[[float], float],
        valid: Callable[[], Sequence[FileKey]],
    ) -> None:
        self._table = table
        self._most_parts = most_parts
        self._rewritable = rewritable
        self._due_at = due_at
        self._unreadable = UnreadableFiles(table.sealed_root, valid)
        # Files that were rewritten, or could not be, and when they are looked at again: until a checkpoint has removed
        # a file, it seems to be as it was.
        self._resting: dict[FileKey, float] = {}
        self._not_mergeable: set[FileKey] = set()

    @property
    def failure(self) -> str:
        """Which files cannot be read; empty if all can."""
        return self._unreadable.description

    def due_times(self, looked_at: float) -> Iterator[float]:
        """When files may become due, by trio's clock, after they were looked at."""
        yield from self._resting.values()
        yield self._due_at(looked_at)
        yield self._unreadable.due_at

    async def take(self, converter: ParquetConverter) -> list[Chosen]:
        """The segments to rewrite now, in the order of a plan. Their files are left alone for some minutes.

        Args:
            converter: Reads which shards are in a file.
        """
        await self._unreadable.look_again(converter)
        while records := self._due():
            keys = {record.key for record in records}
            shard_ids = await self._shards_in(converter, records)
            if shard_ids is None:
                continue
            try:
                chosen = await self._segments_in(sorted(shard_ids), keys)
            except (CorruptionError, FormatVersionError) as error:
                # The record of a shard is damaged. Without knowing its segments, no file of it can be rewritten whole.
                self._rest_after(error, keys)
                continue
            is_whole = (
                len(shard_ids) <= self._most_parts
                and len(chosen) < MOST_SOURCES
                and await self._part_count(chosen) <= self._most_parts
            )
            if len(records) > 1 and not is_whole:
                # A part of them would become another file of the same size, and be merged again and again.
                self._not_mergeable |= keys
                continue
            stopped = set(filter(None, (file_of(segment) for shard, segment in chosen if shard.damage)))
            # If nothing is chosen, what refers to them was dropped since the last checkpoint.
            self._let_rest(stopped or keys)
            if is_whole and not stopped:
                return await in_order(chosen)
            # A file is rewritten whole: otherwise other programs would find records in two files.
        return []

    def note_unreadable(
        self, segment: LogSegment | ParquetSegment, error: CorruptionError, chosen: Iterable[Chosen]
    ) -> None:
        """Note that the file of a segment is damaged. The others that were chosen with it need not wait."""
        key = file_of(segment)
        if key is None or segment.path != error.path:
            return
        self._unreadable.add(key, error)
        for _, each in chosen:
            if (other := file_of(each)) is not None:
                self._resting.pop(other, None)

    def _due(self) -> list[SharedFileRecord]:
        """The files that are to be rewritten together."""
        now = trio.current_time()
        self._resting = {key: end for key, end in self._resting.items() if end > now}
        return self._rewritable(self._resting.keys() | self._unreadable.keys, self._not_mergeable)

    def _let_rest(self, keys: set[FileKey]) -> None:
        self._resting |= dict.fromkeys(keys, trio.current_time() + AFTER_FAILURES.longest_s)

    def _rest_after(self, error: Exception, keys: set[FileKey]) -> None:
        _log.warning("shared files are not rewritten for now: %s", error)
        self._let_rest(keys)

    async def _shards_in(self, converter: ParquetConverter, records: Sequence[SharedFileRecord]) -> set[int] | None:
        """Ids of the shards in the files. None if one cannot be read: then others are to be chosen."""
        shard_ids: set[int] = set()
        for record in records:
            try:
                shard_ids.update(await converter.shards_in(record.path(self._table.sealed_root)))
            except (StorageError, OSError) as error:
                keys = {each.key for each in records}
                if keys != {each.key for each in self._due()}:
                    # A checkpoint has removed one in the meantime.
                    return None
                if isinstance(error, CorruptionError | FileNotFoundError):
                    self._unreadable.add(record.key, error)
                else:
                    self._rest_after(error, keys)
                return None
        return shard_ids

    async def _segments_in(self, shard_ids: Sequence[int], keys: set[FileKey]) -> list[Chosen]:
        """Segments of some shards in some files, not more than are rewritten at once."""
        chosen: list[Chosen] = []
        step = TimeSlice()
        for shard_id in shard_ids[: self._most_parts]:
            if step.is_over:
                await step.rest()
            if len(chosen) >= MOST_SOURCES:
                break
            if (shard := self._table.by_id(shard_id)) is not None:
                chosen += [(shard, each) for each in _segments_in(shard, keys)]
        return chosen

    async def _part_count(self, chosen: list[Chosen]) -> int:
        """As how many parts segments of one day are rewritten at most: one a shard, or more to drop them one by one."""
        step = TimeSlice()
        count = 0
        last: Shard | None = None
        for shard, _ in chosen:
            if step.is_over:
                await step.rest()
            count += shard is not last or shard.config.retention != Retention()
            last = shard
        return count


def _segments_in(shard: Shard, keys: set[FileKey]) -> Iterator[ParquetSegment]:
    """The segments of a shard in some files."""
    for segment in shard.segments:
        if isinstance(segment, ParquetSegment) and file_of(segment) in keys:
            yield segment
