"""Cutting the records to read into partitions: enough for all processors of a cluster, each large enough for a task.

Pure: snapshot and options in, parts of files out. No file is opened, so the size of compressed records is estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import attrs

from shards.model import SegmentKind
from spark_export.conditions import Condition, may_hold
from spark_export.errors import DataLossError, OptionError
from spark_export.options import SourceOptions
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot

_MIB: Final = 1 << 20
LARGEST_BYTES: Final = 64 * _MIB
"""Approximate limit of a partition in bytes of records, unless one record is larger."""
_SMALLEST_BYTES: Final = 4 * _MIB
_USUAL_PARTITIONS: Final = 16
# Opening a file costs about as much as reading this many bytes; this also limits the parts of a partition.
_OPENING_BYTES: Final = 64 << 10
# The rows before and behind it in a shared file are mostly in the same partition.
_PART_BYTES: Final = 4 << 10
# How much larger records are than their file.
_GROWTH: Final = {SegmentKind.MEMORY: 1, SegmentKind.LOG: 1, SegmentKind.PARQUET: 6}


@attrs.frozen(slots=True)
class ShardRange:
    """Records of a shard that a query wants: from ``first_offset`` up to but not including ``next_offset``."""

    shard: ShardSnapshot
    first_offset: int
    next_offset: int


@attrs.frozen(slots=True)
class Part:
    """Records that one task reads from one place.

    Attributes:
        shard: Name of the shard.
        shard_id: Its id.
        segment: Where they were stored at the time of the snapshot.
        first_offset: First offset wanted.
        next_offset: Offset after the last one wanted.
    """

    shard: str
    shard_id: int
    segment: SegmentRange
    first_offset: int
    next_offset: int


def batch_ranges(snapshot: Snapshot, options: SourceOptions) -> list[ShardRange]:
    """The offsets that a batch query with these options wants of each shard.

    Raises:
        OptionError: An option names a shard that does not exist, or an offset past its end.
        DataLossError: Wanted records were trimmed, or their shard is gone, and the options make that an error.
    """
    others = _other_shards(snapshot, options)
    positions = {"startingOffsets": options.starting, "endingOffsets": options.ending}
    known = {shard.name for shard in snapshot.shards}
    for option, position in positions.items():
        for name in position.offsets:
            if name not in known and options.fail_on_data_loss:
                raise OptionError(
                    f"option {option!r} names shard {name!r}, which is not among the {len(known)} shards that 'topics' "
                    f"and 'shards' choose here; leave it out, or set failOnDataLoss to false to pass over it"
                )
    return [_batch_range(shard, options) for shard in snapshot.shards if shard.name not in others]


def _other_shards(snapshot: Snapshot, options: SourceOptions) -> set[str]:
    """Names of the shards that do not have their required ids, if that is not an error."""
    ids = {shard.name: shard.shard_id for shard in snapshot.shards}
    others = {name for name, shard_id in options.shard_ids.items() if ids.get(name) != shard_id}
    if others and options.fail_on_data_loss:
        name = min(others)
        found = f"the one of that name has id {ids[name]}" if name in ids else "there is none of that name"
        raise DataLossError(
            f"shard {name!r} with id {options.shard_ids[name]} is to be read, but {found}: it was deleted; to continue "
            f"without it, set failOnDataLoss to false"
        )
    return others


def _batch_range(shard: ShardSnapshot, options: SourceOptions) -> ShardRange:
    held = f"it holds offsets from {shard.start_offset} up to but not including {shard.next_offset}"
    first = options.starting.of(shard.name, earliest=shard.start_offset, latest=shard.next_offset)
    end = options.ending.of(shard.name, earliest=shard.start_offset, latest=shard.next_offset)
    if options.starts_at_search:
        first = shard.start_offset if shard.found_offset is None else shard.found_offset
    for option, offset in (("startingOffsets", first), ("endingOffsets", end)):
        if offset > shard.next_offset and options.fail_on_data_loss:
            raise OptionError(f"option {option!r} names offset {offset} of shard {shard.name!r}, but {held}")
    if first < shard.start_offset and options.fail_on_data_loss:
        raise DataLossError(
            f"option 'startingOffsets' names offset {first} of shard {shard.name!r}, but {held}: the records below "
            f"were trimmed; start at 'earliest', or set failOnDataLoss to false to begin with what is there"
        )
    if first > end and options.fail_on_data_loss and options.ending.offsets:
        raise OptionError(
            f"shard {shard.name!r}: the query would begin at offset {first} and end before offset {end}: "
            f"give 'endingOffsets' a later one"
        )
    first = max(first, shard.start_offset)
    return ShardRange(shard, first, max(first, min(end, shard.next_offset)))


def plan_partitions(
    ranges: Iterable[ShardRange], conditions: Sequence[Condition] = (), *, min_partitions: int = 0
) -> list[tuple[Part, ...]]:
    """Cut ranges into partitions: every wanted offset that is in a segment is in exactly one part.

    Parts of one shard follow each other in the order of their offsets. Those in shared files of one day are together,
    so that each row group of such a file, which has rows of many shards, is read by one task or few.

    Args:
        ranges: What to read.
        conditions: Shards and offsets that they exclude are left out.
        min_partitions: Make at least this many, if there are as many records.
    """
    parts = _by_day([part for one in ranges for part in _parts(one, conditions)])
    total = sum(map(_weight, parts))
    target = min(LARGEST_BYTES, max(_SMALLEST_BYTES, total // _USUAL_PARTITIONS))
    if min_partitions:
        target = max(1, min(target, total // min_partitions))
    partitions: list[tuple[Part, ...]] = []
    open_parts: list[Part] = []
    open_weight = 0
    for part in (piece for whole in parts for piece in _cut(whole, target)):
        weight = _weight(part)
        if open_parts and open_weight + weight > target:
            partitions.append(tuple(open_parts))
            open_parts, open_weight = [], 0
        open_parts.append(part)
        open_weight += weight
    if open_parts:
        partitions.append(tuple(open_parts))
    return _at_least(min_partitions, partitions)


def parts_of(ranges: Iterable[ShardRange]) -> list[Part]:
    """The parts of the ranges, uncut, in the order of `plan_partitions`."""
    return _by_day([part for one in ranges for part in _parts(one, ())])


def weight_bytes(parts: Iterable[Part]) -> int:
    """Approximate bytes of records in parts, plus the cost of opening their files."""
    return sum(map(_weight, parts))


def _at_least(count: int, partitions: list[tuple[Part, ...]]) -> list[tuple[Part, ...]]:
    """The partitions, the heaviest halved until there are ``count``, or one for each record."""
    while len(partitions) < count:
        divisible = [at for at, parts in enumerate(partitions) if _records(parts) > 1]
        if not divisible:
            break
        divisible.sort(key=lambda at: -sum(map(_weight, partitions[at])))
        halved = set(divisible[: count - len(partitions)])
        partitions = [
            half for at, parts in enumerate(partitions) for half in (_halves(parts) if at in halved else (parts,))
        ]
    return partitions


def _halves(parts: tuple[Part, ...]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The first and the second half of the records of parts that have at least two."""
    left = _records(parts) // 2
    for at, part in enumerate(parts):
        count = _records((part,))
        if count >= left:
            middle = part.first_offset + left
            first = (*parts[:at], attrs.evolve(part, next_offset=middle))
            rest = (attrs.evolve(part, first_offset=middle),) if left < count else ()
            return first, (*rest, *parts[at + 1 :])
        left -= count
    raise AssertionError("half of the records must be before the last part ends")


def _records(parts: Sequence[Part]) -> int:
    return sum(part.next_offset - part.first_offset for part in parts)


def _parts(wanted: ShardRange, conditions: Sequence[Condition]) -> Iterator[Part]:
    shard = wanted.shard
    if not may_hold(conditions, "shard", shard.name, shard.name):
        return
    for segment in shard.segments:
        first = max(wanted.first_offset, segment.base_offset)
        end = min(wanted.next_offset, segment.next_offset)
        for low, high in _narrowed(first, end, conditions):
            yield Part(shard.name, shard.shard_id, segment, low, high)


def _by_day(parts: list[Part]) -> list[Part]:
    """Parts in shared files by day: append times never decrease in a shard, so its parts stay in order.

    Other parts stay with the part before them in their shard.
    """
    days: list[int] = []
    for at, part in enumerate(parts):
        before = days[-1] if at and parts[at - 1].shard_id == part.shard_id else -1
        days.append(before if part.segment.place is None else max(before, part.segment.place.file.day))
    return [parts[at] for at in sorted(range(len(parts)), key=days.__getitem__)]


def _narrowed(first: int, end: int, conditions: Sequence[Condition]) -> Iterator[tuple[int, int]]:
    """The offsets from ``first`` up to ``end`` that conditions may accept, as one range, or none."""
    for one in conditions:
        if one.column != "offset" or first >= end:
            continue
        if isinstance(one.value, int):
            if one.operator in ("=", ">", ">="):
                first = max(first, one.value + (one.operator == ">"))
            if one.operator in ("=", "<", "<="):
                end = min(end, one.value + (one.operator != "<"))
        else:
            there = [value for value in one.value if isinstance(value, int) and first <= value < end]
            first, end = (min(there), max(there) + 1) if there else (end, end)
    if first < end:
        yield first, end


def _weight(part: Part) -> int:
    """Cost of reading a part, in bytes of records."""
    segment = part.segment
    share = (part.next_offset - part.first_offset) / (segment.next_offset - segment.base_offset)
    return _opening_bytes(part) + int(segment.size_bytes * _GROWTH[segment.kind] * share)


def _opening_bytes(part: Part) -> int:
    return _OPENING_BYTES if part.segment.place is None else _PART_BYTES


def _cut(part: Part, target: int) -> Iterator[Part]:
    """A part cut into pieces of about equal size that are not over the target."""
    count = part.next_offset - part.first_offset
    weight = _weight(part)
    opening = _opening_bytes(part)
    if target >= 2 * opening:
        # Every piece is opened separately.
        weight, target = weight - opening, target - opening
    pieces = max(1, min(count, -(-weight // target)))
    for number in range(pieces):
        yield attrs.evolve(
            part,
            first_offset=part.first_offset + count * number // pieces,
            next_offset=part.first_offset + count * (number + 1) // pieces,
        )
