"""The inventory: figures of all shards, cursors and cache queues of a node, counted in the background.

Counting a million shards takes seconds, so it is never done during a request: a task counts them in small steps and
keeps the result of its last round. Unused shards are counted from their records and stay closed. The figures are not
from one instant; they are as old as `Inventory.counted_at` says.

The number of names is bounded, whatever the number of groups and queues: those with the most waiting records are named,
the others are summed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Final

import attrs
import structlog
import trio

from journal.engine import Engine
from shards.errors import StorageError
from shards.format.batch import BatchHeader
from shards.model import SegmentKind
from shards.segments.shard import Shard
from shards.topics.names import QUEUE_CURSOR, QUEUE_PREFIX, group_of_cursor

OTHERS: Final = "(others)"
"""Name of the sum of all groups or queues that are not named."""

NAMED_GROUPS: Final = 50
NAMED_QUEUES: Final = 50

_GROUPS_KEPT_APART: Final = 10_000
_QUEUES_LOOKED_AT: Final = 1_000
_PAUSE_S: Final = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class SegmentState(enum.StrEnum):
    """State of a segment."""

    MEMORY = "memory"
    OPEN = "open"
    CLOSED = "closed"
    SEALED = "sealed"


@attrs.define(slots=True)
class Amount:
    """A number of objects, and their bytes."""

    count: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Add one object of this size."""
        self.count += 1
        self.size_bytes += size_bytes


@attrs.define(slots=True)
class GroupLag:
    """The lag of a group.

    Attributes:
        shards: Number of shards in which the group has a position.
        lag_records: Records after its positions, in all shards together.
        most_records: The same for the shard with the largest lag.
    """

    name: str
    shards: int = 0
    lag_records: int = 0
    most_records: int = 0

    def add(self, lag_records: int) -> None:
        """Add its lag in one more shard."""
        self.shards += 1
        self.lag_records += lag_records
        self.most_records = max(self.most_records, lag_records)

    def take_in(self, other: GroupLag) -> None:
        """Add the lag of another group."""
        self.shards += other.shards
        self.lag_records += other.lag_records
        self.most_records = max(self.most_records, other.most_records)


@attrs.define(slots=True)
class QueueDepth:
    """The waiting records of a cache queue.

    Attributes:
        records: Number of waiting records.
        oldest_us: When the oldest of them was appended; 0 if there is none or the time is not known.
    """

    name: str
    records: int
    oldest_us: int


@attrs.frozen(slots=True)
class Inventory:
    """The result of one round.

    Attributes:
        segments: Segments of all shards, by state.
        damaged_shards: Shards that are stopped because stored data of them is damaged.
        cursors: Number of cursors.
        groups: The named groups, largest lag first; then `OTHERS` if there are more.
        queues: The named queues, deepest first; then `OTHERS` if there are more.
        counted_at: When the round ended, by trio's clock.
        took_s: Duration of the round in seconds, including pauses.
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
        latest: Result of the last complete round; None before the first.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ages: dict[tuple[int, int], int] = {}
        self.latest: Inventory | None = None

    async def run(self) -> None:
        """Count in rounds, with a pause between them, until cancelled."""
        while True:
            try:
                self.latest = await self.count(Pace())
            except StorageError as error:
                # Requests report the error of the store; here the figures only get older.
                log.warning("inventory not counted", reason=str(error))
            await trio.sleep(_PAUSE_S)

    async def count(self, pace: Pace) -> Inventory:
        """Count once.

        Raises:
            StorageError: The store returned an error.
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
                segments[_state(segment.kind, is_closed=segment.closed)].add(segment.end)
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
                # Only a bounded number of names is kept apart while they are counted.
                group = others
            elif group is None:
                group = groups[name] = GroupLag(name)
            group.add(records_from(offset))
        return count, _furthest_behind(groups.values(), others)

    def _records_from(self, shard_id: int) -> Callable[[int], int]:
        """A function that returns the number of a shard's records from an offset on."""
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
                continue  # it was deleted in the meantime
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
            # The driver of the queue gets the same error and reports it; the other figures are still counted.
            log.debug("age of a queue is not known", shard=shard.name, reason=str(error))
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


_LOOKED_AT_ONCE: Final = 64
_STEP_S: Final = 0.0005
_SHARE: Final = 0.01
"""Share of the loop's time that a walk may take."""


class Pace:
    """Limits a walk over a million things to one hundredth of the event loop's time: other tasks are not delayed.

    A step takes half a millisecond, the pause after it fifty.

    Args:
        share: Another share of the loop's time; 1 for no pause but a checkpoint between steps.
    """

    def __init__(self, share: float = _SHARE) -> None:
        self._pauses_per_step = 1 / share - 1
        self._left = _LOOKED_AT_ONCE
        self._began_s = perf_counter()

    async def step(self) -> None:
        """Call once for each thing of the walk; waits from time to time."""
        # Not a checkpoint on every call: this is called a million times.
        self._left -= 1
        if self._left:
            return
        self._left = _LOOKED_AT_ONCE
        spent_s = perf_counter() - self._began_s
        if spent_s >= _STEP_S:
            await self.rest()

    async def rest(self) -> None:
        """Wait as long as the time used since the last wait requires."""
        await trio.sleep((perf_counter() - self._began_s) * self._pauses_per_step)
        self._began_s = perf_counter()
