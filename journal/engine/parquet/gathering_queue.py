"""Closed log segments that wait until they are gathered with those of other shards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator

import attrs
import trio

from journal.engine.parquet.gatherer import MOST_BYTES, MOST_PARTS, Chosen, is_in_part
from journal.engine.time_slice import TimeSlice
from shards.segments.log_segment import LogSegment
from shards.segments.shard import Shard

EARLY_SHARDS = MOST_PARTS
EARLY_BYTES = 64 << 20
"""When so many shards or bytes wait, they are gathered before the time."""
LARGE_SEGMENT_BYTES = 32 << 20
"""A segment of this size does not wait for others: it gets a file of its own."""


@attrs.frozen(slots=True)
class Waiting:
    """What waits.

    Attributes:
        records: Number of records in the segments.
        seconds: How long the first of them has waited; 0 if there is none.
    """

    records: int
    seconds: float


class GatheringQueue:
    """Shards with small closed segments. There may be a hundred thousand, so no step goes through all of them.

    Args:
        gather_after_s: How long they wait.
        small_logs: Returns the segments of a shard that are to be gathered.
        flush_all: Writes the tails of shards to their log files, and returns when that was tried.
    """

    def __init__(
        self,
        gather_after_s: float,
        small_logs: Callable[[Shard], Iterator[LogSegment]],
        flush_all: Callable[[Iterable[Shard]], Awaitable[None]],
    ) -> None:
        self._gather_after_s = gather_after_s
        self._small_logs = small_logs
        self._flush_all = flush_all
        self._shards: dict[int, Shard] = {}
        # Records of each that wait, and of all together.
        self._records: dict[int, int] = {}
        self._record_count = 0
        # Bytes of each, likewise.
        self._bytes: dict[int, int] = {}
        self._byte_count = 0
        # When the first of them began to wait.
        self._since = 0.0
        # Until then they wait, however many they are: none could be taken the last time.
        self._not_before = 0.0

    def __bool__(self) -> bool:
        return bool(self._shards)

    def look_at(self, shard: Shard) -> None:
        """Let a shard wait if it has segments that are to be gathered with those of others, and otherwise no longer."""
        if not self._shards:
            self._since = trio.current_time()
        self._remove(shard)
        if segments := list(self._small_logs(shard)):
            self._shards[shard.shard_id] = shard
            self._records[shard.shard_id] = sum(segment.next_offset - segment.base_offset for segment in segments)
            self._record_count += self._records[shard.shard_id]
            self._bytes[shard.shard_id] = sum(segment.size_bytes for segment in segments)
            self._byte_count += self._bytes[shard.shard_id]

    def _remove(self, shard: Shard) -> None:
        self._shards.pop(shard.shard_id, None)
        self._record_count -= self._records.pop(shard.shard_id, 0)
        self._byte_count -= self._bytes.pop(shard.shard_id, 0)

    @property
    def waiting(self) -> Waiting:
        """How many records wait, and how long."""
        return Waiting(self._record_count, trio.current_time() - self._since if self._shards else 0.0)

    @property
    def due_at(self) -> float:
        """When the segments are to be gathered, by trio's clock; it may be in the past."""
        if not self._shards:
            return float("inf")
        if len(self._shards) >= EARLY_SHARDS or self._byte_count >= EARLY_BYTES:
            return max(self._since, self._not_before)
        return self._since + self._gather_after_s

    async def take(self, most_parts: int) -> list[Chosen]:
        """Remove and return the segments to gather now, in no order.

        Those of which a part is in a log file are flushed first. Others have no file, and get none.

        Shards that begin to wait in the meantime wait for the next time.

        Args:
            most_parts: Number of segments; those of one shard are returned together even if they are more.
        """
        shards = list(self._shards.values())
        await self._flush_all(await self._in_part(shards))
        now = trio.current_time()
        chosen: list[Chosen] = []
        size_bytes = 0
        step = TimeSlice()
        for shard in shards:
            if step.is_over:
                await step.rest()
            segments = list(self._small_logs(shard))
            if any(map(is_in_part, segments)):
                # The disk is full, or it was rolled a moment ago.
                continue
            size_bytes += sum(segment.size_bytes for segment in segments)
            if chosen and (len(chosen) + len(segments) > most_parts or size_bytes > MOST_BYTES):
                return chosen
            chosen += [(shard, segment) for segment in segments]
            self._remove(shard)
        self._since = now
        if not chosen:
            self._not_before = now + self._gather_after_s
        return chosen

    async def _in_part(self, shards: Iterable[Shard]) -> list[Shard]:
        found = []
        step = TimeSlice()
        for shard in shards:
            if step.is_over:
                await step.rest()
            if any(map(is_in_part, self._small_logs(shard))):
                found.append(shard)
        return found
