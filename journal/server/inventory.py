"""A census: what all shards, cursors and cache queues of a node come to, counted in the background.

Counting a million shards takes seconds, so it is never done for one who asks: a task walks over them in small steps and
keeps the outcome of its last round. Shards that nobody uses are counted from their records and stay closed. What is
counted is not of one instant, and is as old as `Inventory.counted_at` says.

What can be told apart by name is bounded however many names there are: the groups and queues with the most waiting are
named, the others are one sum.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Final

import attrs
import structlog
import trio

from journal.engine import Engine
from journal.telemetry.pace import Pace
from shards.errors import StorageError
from shards.format.batch import BatchHeader
from shards.model import SegmentKind
from shards.segments.shard import Shard
from shards.topics.reserved_names import QUEUE_CURSOR, QUEUE_PREFIX, group_of_cursor

OTHERS: Final = "(others)"
"""Stands for all groups or queues that are not named."""

NAMED_GROUPS: Final = 50
NAMED_QUEUES: Final = 50

_GROUPS_KEPT_APART: Final = 10_000
_QUEUES_LOOKED_AT: Final = 1_000
_PAUSE_S: Final = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class SegmentState(enum.StrEnum):
    """What a segment is at present."""

    MEMORY = "memory"
    OPEN = "open"
    CLOSED = "closed"
    SEALED = "sealed"


@attrs.define(slots=True)
class Amount:
    """How many there are, and their bytes."""

    count: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """One more of this size."""
        self.count += 1
        self.size_bytes += size_bytes


@attrs.define(slots=True)
class GroupLag:
    """How far a group is behind.

    Attributes:
        shards: Shards that the group has a position in.
        lag_records: Records behind its positions, of all shards together.
        most_records: The same of the shard where it is furthest behind.
    """

    name: str
    shards: int = 0
    lag_records: int = 0
    most_records: int = 0

    def add(self, lag_records: int) -> None:
        """Its lag in one more shard."""
        self.shards += 1
        self.lag_records += lag_records
        self.most_records = max(self.most_records, lag_records)

    def take_in(self, other: GroupLag) -> None:
        """Count another group with this one."""
        self.shards += other.shards
        self.lag_records += other.lag_records
        self.most_records = max(self.most_records, other.most_records)


@attrs.define(slots=True)
class QueueDepth:
    """What waits in a cache queue.

    Attributes:
        records: Records that wait.
        oldest_us: When the oldest of them was appended; 0 if none waits or it cannot be told.
    """

    name: str
    records: int
    oldest_us: int


@attrs.frozen(slots=True)
class Inventory:
    """One round.

    Attributes:
        segments: Of all shards, by state.
        damaged_shards: Shards that are stopped because stored data of them is damaged.
        cursors: Cursors of any name.
        groups: The named ones, those furthest behind first; then `OTHERS` if there are more.
        queues: The named ones, the deepest first; then `OTHERS` if there are more.
        counted_at: When the round ended, by trio's clock.
        took_s: How long the round took, pauses and all.
    """

    segments: dict[SegmentState, Amount]
    damaged_shards: int
    cursors: int
    groups: tuple[GroupLag, ...]
    queues: tuple[QueueDepth, ...]
    counted_at: float
    took_s: float


class InventoryTaker:
    """Counts in the background.

    Attributes:
        latest: What the last whole round found; None before the first has ended.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ages: dict[tuple[int, int], int] = {}
        self.latest: Inventory | None = None

    async def run(self) -> None:
        """Count round after round until cancelled, with a pause between them."""
        while True:
            try:
                self.latest = await self.count(Pace())
            except StorageError as error:
                # What is wrong with the store is told by those who use it; here only the figures grow old.
                log.warning("not counted", reason=str(error))
            await trio.sleep(_PAUSE_S)

    async def count(self, pace: Pace) -> Inventory:
        """Count once.

        Raises:
            StorageError: The store refuses.
        """
        began = trio.current_time()
        segments = {state: Amount() for state in SegmentState}
        damaged = await self._count_open(segments, pace) + await self._count_closed(segments, pace)
        cursors, groups = await self._count_cursors(pace)
        queues = await self._look_at_queues(pace)
        now = trio.current_time()
        return Inventory(segments, damaged, cursors, groups, queues, now, now - began)

    async def _count_open(self, segments: dict[SegmentState, Amount], pace: Pace) -> int:
        damaged = 0
        for shard in self._engine.open_shards():
            await pace.step()
            if shard.deleted:
                continue
            damaged += bool(shard.damage)
            for segment in shard.segments:
                segments[_state(segment.kind, is_closed=segment.sealed)].add(segment.end)
        return damaged

    async def _count_closed(self, segments: dict[SegmentState, Amount], pace: Pace) -> int:
        damaged = 0
        for found in self._engine.stored_outlines():
            await pace.step()
            if found is None:
                continue
            shard_id, kind, flag, end = found
            if self._engine.opened_shard(shard_id) is not None:
                continue
            if kind is None:
                damaged += flag
            else:
                segments[_state(kind, is_closed=flag)].add(end)
        return damaged

    async def _count_cursors(self, pace: Pace) -> tuple[int, tuple[GroupLag, ...]]:
        groups: dict[str, GroupLag] = {}
        others = GroupLag(OTHERS)
        count = 0
        known = 0
        records_from: Callable[[int], int] = _no_records
        for cursor in self._engine.all_cursors():
            await pace.step()
            if cursor is None:
                continue
            shard_id, cursor_name, offset = cursor
            count += 1
            name = group_of_cursor(cursor_name)
            if name is None:
                continue
            if shard_id != known:
                known = shard_id
                records_from = self._records_from(shard_id)
            group = groups.get(name)
            if group is None and (len(groups) >= _GROUPS_KEPT_APART or name == OTHERS):
                # However many names there are, only so many are kept apart while they are counted.
                group = others
            elif group is None:
                group = groups[name] = GroupLag(name)
            group.add(records_from(offset))
        return count, _furthest_behind(groups.values(), others)

    def _records_from(self, shard_id: int) -> Callable[[int], int]:
        """What tells how many records a shard has from an offset on."""
        shard = self._engine.opened_shard(shard_id)
        if shard is not None:
            return shard.record_count_from
        held = self._engine.stored_ranges(shard_id)
        return lambda offset: sum(max(0, following - max(first, offset)) for first, following in held)

    # Cache queues

    async def _look_at_queues(self, pace: Pace) -> tuple[QueueDepth, ...]:
        found: list[QueueDepth] = []
        ages: dict[tuple[int, int], int] = {}
        for name in self._engine.match_names(f"{QUEUE_PREFIX}+", limit=_QUEUES_LOOKED_AT):
            await pace.step()
            if self._engine.shard_id(name) is None:
                continue  # it was deleted meanwhile
            shard = self._engine.shard(name)
            cursor = self._engine.cursor_of(shard.shard_id, QUEUE_CURSOR)
            drained = max(shard.start_offset, 0 if cursor is None else cursor.offset)
            records = shard.record_count_from(drained)
            oldest_us = 0
            if records:
                key = (shard.shard_id, drained)
                oldest_us = ages[key] = self._ages.get(key) or await self._appended_us(shard, drained)
            found.append(QueueDepth(name.removeprefix(QUEUE_PREFIX), records, oldest_us))
        self._ages = ages
        return _deepest(found)

    async def _appended_us(self, shard: Shard, offset: int) -> int:
        """When the first record from an offset on was appended; 0 if it cannot be read."""
        try:
            while offset < shard.published_offset:
                extent = await self._engine.read(shard, offset, 1)
                header = BatchHeader.unpack(memoryview(extent.buffers[0]))
                if not header.is_gap:
                    return header.append_time_us
                offset = extent.next_offset
        except StorageError as error:
            # Whoever drains the queue meets the same and says so; the other figures are counted all the same.
            log.debug("age of a queue cannot be told", shard=shard.name, reason=str(error))
        return 0


def _no_records(_offset: int) -> int:
    return 0


def _state(kind: SegmentKind, *, is_closed: bool) -> SegmentState:
    if kind is SegmentKind.MEMORY:
        return SegmentState.MEMORY
    if kind is SegmentKind.PARQUET:
        return SegmentState.SEALED
    return SegmentState.CLOSED if is_closed else SegmentState.OPEN


def _furthest_behind(groups: Iterable[GroupLag], others: GroupLag) -> tuple[GroupLag, ...]:
    ranked = sorted(groups, key=lambda group: (-group.lag_records, group.name))
    for group in ranked[NAMED_GROUPS:]:
        others.take_in(group)
    named = tuple(ranked[:NAMED_GROUPS])
    return (*named, others) if others.shards else named


def _deepest(queues: list[QueueDepth]) -> tuple[QueueDepth, ...]:
    ranked = sorted(queues, key=lambda queue: (-queue.records, queue.name))
    named, rest = ranked[:NAMED_QUEUES], ranked[NAMED_QUEUES:]
    if not rest:
        return tuple(named)
    oldest_us = min((queue.oldest_us for queue in rest if queue.oldest_us), default=0)
    return (*named, QueueDepth(OTHERS, sum(queue.records for queue in rest), oldest_us))
