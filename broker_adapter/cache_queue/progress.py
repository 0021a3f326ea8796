"""How far a queue is done with, and what became of its records: one value of the state store, changed in one step.

A record leaves its queue and is counted in one step; one that was refused becomes a dead letter in one step with the
note that it is one. Counts are of records: a store that dies gives up the offsets which it had reserved for records in
memory, and those that no record had are in no count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing

import msgspec

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.gauge import gaps_of, gives_up_offsets
from broker_adapter.cache_queue.ranges import Range, covered_count, intersection
from broker_adapter.cache_queue.stored import Counts, Definition, KnownEnd, Progress, Status
from broker_adapter.state_forms import decode
from shards.model import ShardInfo
from shards.topics.reserved_names import QUEUE_CURSOR


def added(first: Counts, second: Counts) -> Counts:
    """The sums."""
    return Counts(*(one + other for one, other in zip(_fields(first), _fields(second), strict=True)))


def total(counts: Counts) -> int:
    """How many records have left the queue."""
    return sum(_fields(counts))


def _fields(counts: Counts) -> tuple[int, ...]:
    return msgspec.structs.astuple(counts)


async def read_progress(adapter: StorageAdapter, queue: str, shard_id: int) -> tuple[Progress, int]:
    """How far a queue is done with, and the version of that; 0 if nothing was written down yet.

    Args:
        shard_id: Of the queue's shard: what was written of one that is gone says nothing of this one.
    """
    key = names.progress_key(queue)
    found = await adapter.get_state(key)
    if found is None:
        return await _progress_from_cursor(adapter, queue, shard_id), 0
    progress = decode(Progress, key, found.value)
    return (progress if progress.shard_id == shard_id else Progress(shard_id)), found.version


async def _progress_from_cursor(adapter: StorageAdapter, queue: str, shard_id: int) -> Progress:
    """As programs wrote it that had no `Progress`: the offset as a cursor, the counts in the driver's status."""
    cursor = await adapter.get_cursor(names.shard_of(queue), QUEUE_CURSOR)
    if cursor is None:
        return Progress(shard_id)
    counts, counted_offset, purged_count = Counts(), 0, 0
    status = await adapter.get_state(names.status_key(queue))
    if status is not None:
        told = decode(Status, status.key, status.value)
        counts, counted_offset = told.counts, told.counted_offset
    definition = await adapter.get_state(names.definition_key(queue))
    if definition is not None:
        purged_count = decode(Definition, definition.key, definition.value).purged_count - counts.purged
    confirmed_count = max(0, cursor.offset - counted_offset - purged_count)
    counts = added(counts, Counts(confirmed=confirmed_count, purged=purged_count))
    return Progress(shard_id, cursor.offset, counts)


async def known_ends(adapter: StorageAdapter, queue: str, shard_id: int) -> list[KnownEnd]:
    """What writers know of which offsets were given to records."""
    async with aclosing(adapter.scan_state(names.known_ends_prefix(queue))) as found:
        ends = [decode(KnownEnd, each.key, each.value) async for each in found]
    return [end for end in ends if end.shard_id == shard_id]


def unused_in(gap: Range, ends: Iterable[KnownEnd]) -> list[Range]:
    """Which offsets of a gap never had a record, as far as writers know; without their knowledge, none."""
    ends = tuple(ends)
    unused = intersection([gap], _agreed(ends))
    first, after = gap
    before = [end.end_offset for end in ends if end.end_offset < after]
    if not before or not gives_up_offsets(max(before), after) or (unused and len(before) < len(ends)):
        return unused
    # What nobody has looked at is behind the last record that anybody knew, and behind what is known of earlier lives.
    return [*unused, (max(first, *before), after)]


def _agreed(ends: Sequence[KnownEnd]) -> list[Range]:
    """Ranges without a record. Where those of several writers overlap it is what all say: each knows its own part."""
    agreed: list[Range] = []
    for first, after in sorted(each for end in ends for each in end.unused):
        if agreed and first < agreed[-1][1]:
            agreed[-1] = (max(first, agreed[-1][0]), min(after, agreed[-1][1]))
        else:
            agreed.append((first, after))
    return [each for each in agreed if each[0] < each[1]]


def unused_of(info: ShardInfo, first_offset: int, ends: Sequence[KnownEnd]) -> list[Range]:
    """Which offsets from one on never had a record, as far as writers know."""
    trimmed = intersection([(first_offset, info.start_offset)], _agreed(ends))
    return [*trimmed, *(each for gap in gaps_of(info, first_offset) for each in unused_in(gap, ends))]


def left_behind(info: ShardInfo, progress: Progress, ends: Sequence[KnownEnd], end_offset: int | None = None) -> Counts:
    """What becomes of all records that are not done with if they are thrown away now.

    Args:
        info: The queue's shard, with segments.
        end_offset: Only of those below this one.
    """
    end = info.next_offset if end_offset is None else end_offset
    unused = unused_of(info, progress.offset, ends)
    set_aside = progress.set_aside

    def record_count(ranges: Iterable[Range]) -> int:
        """Offsets in ranges, but for those that had no record and those that are counted as dead letters."""
        return sum(
            max(0, after - first) - covered_count(unused, first, after) - covered_count(set_aside, first, after)
            for first, after in ((first, min(after, end)) for first, after in ranges)
        )

    start = max(progress.offset, info.start_offset)
    held = [(max(start, each.base_offset), each.next_offset) for each in info.segments]
    return Counts(
        dead_lettered=covered_count(set_aside, progress.offset, end),
        dropped_oldest=record_count([(progress.offset, info.start_offset)]),
        lost=record_count(gaps_of(info, start)),
        purged=record_count(each for each in held if each[0] < each[1]),
    )
