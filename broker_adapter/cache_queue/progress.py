"""The progress of a queue: its confirmed offset and the outcomes of its records, one value of the state store.

A record leaves its queue and is counted in one commit; a refused record becomes a dead letter in one commit with the
note that it is one. Counts are of records: a store that dies skips the offsets that it had reserved for records in
memory, and offsets that no record had are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from itertools import pairwise

import msgspec

from broker_adapter.adapter import StorageAdapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.gauge import gaps_of, gives_up_offsets
from broker_adapter.cache_queue.ranges import Range, contains, covered_count, intersection
from broker_adapter.cache_queue.stored import Counts, Definition, KnownEnd, Progress, Status
from broker_adapter.state_forms import decode
from shards.model import ShardInfo
from shards.topics.names import QUEUE_CURSOR


def added(first: Counts, second: Counts) -> Counts:
    """The sums of two counts."""
    return Counts(*(one + other for one, other in zip(_fields(first), _fields(second), strict=True)))


def total(counts: Counts) -> int:
    """How many records have left the queue."""
    return sum(_fields(counts))


def _fields(counts: Counts) -> tuple[int, ...]:
    return msgspec.structs.astuple(counts)


async def read_progress(adapter: StorageAdapter, queue: str, shard_id: int) -> tuple[Progress, int]:
    """The progress of a queue, and its version; version 0 if nothing was stored yet.

    Args:
        shard_id: Id of the queue's shard: a progress that was stored for a deleted shard does not apply to this one.
    """
    key = names.progress_key(queue)
    found = await adapter.get_state(key)
    if found is None:
        return await _progress_from_cursor(adapter, queue, shard_id), 0
    progress = decode(Progress, key, found.value)
    return (progress if progress.shard_id == shard_id else Progress(shard_id)), found.version


async def _progress_from_cursor(adapter: StorageAdapter, queue: str, shard_id: int) -> Progress:
    """The progress as older programs stored it: the offset as a cursor, the counts in the driver's status."""
    cursor = await adapter.get_cursor(names.shard_of(queue), QUEUE_CURSOR)
    if cursor is None:
        return Progress(shard_id)
    counts, counted_offset, purged_count = Counts(), 0, 0
    status = await adapter.get_state(names.status_key(queue))
    if status is not None:
        report = decode(Status, status.key, status.value)
        counts, counted_offset = report.counts, report.counted_offset
    definition = await adapter.get_state(names.definition_key(queue))
    if definition is not None:
        purged_count = decode(Definition, definition.key, definition.value).purged_count - counts.purged
    confirmed_count = max(0, cursor.offset - counted_offset - purged_count)
    counts = added(counts, Counts(confirmed=confirmed_count, purged=purged_count))
    return Progress(shard_id, cursor.offset, counts)


async def known_ends(adapter: StorageAdapter, queue: str, shard_id: int) -> list[KnownEnd]:
    """What writers know about which offsets have records."""
    async with aclosing(adapter.scan_state(names.known_ends_prefix(queue))) as found:
        ends = [decode(KnownEnd, each.key, each.value) async for each in found]
    return [end for end in ends if end.shard_id == shard_id]


def unused_in(gap: Range, ends: Iterable[KnownEnd]) -> list[Range]:
    """The offsets of a gap that never had a record, as far as writers know; none without their knowledge."""
    ends = tuple(ends)
    _, after = gap
    before = [end.end_offset for end in ends if end.end_offset < after]
    is_given_up = bool(before) and gives_up_offsets(max(before), after)
    # A writer that has not looked since the store died knows of no record behind its end.
    unseen = [[(end.end_offset, after)] if is_given_up and end.end_offset < after else [] for end in ends]
    return intersection([gap], _agreed([[*end.unused, *rest] for end, rest in zip(ends, unseen, strict=True)]))


def unused_of(info: ShardInfo, first_offset: int, ends: Sequence[KnownEnd]) -> list[Range]:
    """Offsets, from one on, that never had a record, as far as writers know."""
    trimmed = intersection([(first_offset, info.start_offset)], _agreed([end.unused for end in ends]))
    return [*trimmed, *(each for gap in gaps_of(info, first_offset) for each in unused_in(gap, ends))]


def _agreed(known: Iterable[Sequence[Range]]) -> list[Range]:
    """The offsets without a record in the knowledge of each writer that knows of them.

    A writer knows of the records since it began, which was at the latest when the store came back for the last time
    before the first of its ranges. Of what was before that it may know nothing.

    Args:
        known: The ranges without a record of each writer, sorted. A range begins when the store has its last record
            before a crash, and ends when it has come back.
    """
    writers = [ranges for ranges in known if ranges]
    came_back = [after for ranges in writers for _, after in ranges]
    began = [max((at for at in came_back if at <= ranges[0][0]), default=0) for ranges in writers]
    found = []
    for lower, upper in pairwise(sorted({offset for ranges in writers for each in ranges for offset in each})):
        said = [contains(ranges, lower) for ranges, at in zip(writers, began, strict=True) if lower >= at]
        if said and all(said):
            found.append((lower, upper))
    return found


def left_behind(info: ShardInfo, progress: Progress, ends: Sequence[KnownEnd], end_offset: int | None = None) -> Counts:
    """Outcomes of all unfinished records if they are deleted now.

    Args:
        info: The queue's shard, with segments.
        end_offset: Only records below this one.
    """
    end = info.next_offset if end_offset is None else end_offset
    unused = unused_of(info, progress.offset, ends)
    set_aside = progress.set_aside

    def record_count(ranges: Iterable[Range]) -> int:
        """Number of offsets in ranges, without those that had no record and those counted as dead letters."""
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
