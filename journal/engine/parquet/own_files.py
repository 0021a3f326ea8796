"""Sealed segments with files of their own, as stores of before have them: they go into shared files, oldest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from journal.engine.parquet.gatherer import MOST_BYTES, Chosen
from journal.engine.state.shard_table import ShardTable
from journal.engine.time_slice import TimeSlice
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.shard import Shard

_DAY_US = 86_400_000_000


class OwnFiles:
    """Knows which shards have such segments, and chooses some of one day at a time.

    Args:
        table: The shards.
        recorded: Scans what the views record: the id of each shard with such segments and the newest append time of its
            first one, None for a pause.
        is_usable: Whether a segment may be chosen; those that are damaged may not.
    """

    def __init__(
        self,
        table: ShardTable,
        recorded: Callable[[], Generator[tuple[int, int] | None, None, None]],
        is_usable: Callable[[Shard, ParquetSegment], bool],
    ) -> None:
        self._table = table
        self._recorded = recorded
        self._is_usable = is_usable
        # The newest append time of a shard's first segment with a file of its own, and the shard's id.
        self._oldest: list[tuple[int, int]] = []
        self._listed: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._oldest)

    async def find_recorded(self) -> None:
        """Find the shards that had such segments at the start, in short steps."""
        with closing(self._recorded()) as found:
            step = TimeSlice()
            for each in found:
                if each is not None:
                    self._list(*each)
                if step.is_over:
                    await step.rest()

    def add(self, shard: Shard) -> None:
        """Look at a shard that may have such segments."""
        first = next(self._segments(shard), None)
        if first is not None:
            self._list(shard.shard_id, first.newest_append_us)

    def _list(self, shard_id: int, newest_append_us: int) -> None:
        if shard_id not in self._listed:
            self._listed.add(shard_id)
            heapq.heappush(self._oldest, (newest_append_us, shard_id))

    async def choose(self, most: int) -> list[Chosen]:
        """At most so many segments of the oldest day; those that could not be gathered must be added again."""
        step = TimeSlice()
        chosen: list[Chosen] = []
        size_bytes = 0
        day = -1
        while self._oldest:
            if step.is_over:
                await step.rest()
            newest_append_us, shard_id = self._oldest[0]
            if chosen and newest_append_us // _DAY_US != day:
                break
            heapq.heappop(self._oldest)
            self._listed.discard(shard_id)
            shard = self._table.by_id(shard_id)
            for segment in self._segments(shard) if shard is not None else ():
                assert shard is not None  # it has segments
                day = segment.newest_append_us // _DAY_US if not chosen else day
                size_bytes += segment.size_bytes
                is_full = len(chosen) == most or size_bytes > MOST_BYTES
                if chosen and (is_full or segment.newest_append_us // _DAY_US != day):
                    self._list(shard_id, segment.newest_append_us)
                    if is_full:
                        return chosen
                    break
                chosen.append((shard, segment))
        return chosen

    def _segments(self, shard: Shard) -> Iterator[ParquetSegment]:
        for segment in shard.segments if not shard.damage else ():
            if isinstance(segment, ParquetSegment) and segment.place is None and self._is_usable(shard, segment):
                yield segment
