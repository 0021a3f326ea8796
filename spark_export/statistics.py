"""Statistics of a journal, shard by shard: number of records, first and last time, kinds of segments. Needs no Spark.

Counts and sizes come from the names of files or from the server's catalogue; for the times one record at each end of a
shard is read. No values are scanned, so it takes as long for a terabyte as for a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from shards.model import SegmentKind
from spark_export.planning import Part
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot


@attrs.frozen(slots=True)
class SegmentTotal:
    """The sum of segments of one kind."""

    segments: int = 0
    records: int = 0
    size_bytes: int = 0

    def __add__(self, other: SegmentTotal) -> SegmentTotal:
        return SegmentTotal(
            self.segments + other.segments, self.records + other.records, self.size_bytes + other.size_bytes
        )


@attrs.frozen(slots=True)
class ShardStatistics:
    """One shard, or several together.

    Attributes:
        shard: Its name.
        start_offset: First offset that is still stored.
        next_offset: Offset after the last one.
        sealed: Parquet segments.
        unsealed: Segments in logs or in memory.
        gaps: Ranges of offsets without records: their records were in memory only and are lost, or the offsets were
            reserved and never used. How many records were lost is unknown.
        first_us: When the first record was appended, in microseconds since 1970; None if unknown.
        last_us: When the last record was appended, in microseconds since 1970; None if unknown.
    """

    shard: str
    start_offset: int
    next_offset: int
    sealed: SegmentTotal = SegmentTotal()
    unsealed: SegmentTotal = SegmentTotal()
    gaps: int = 0
    first_us: int | None = None
    last_us: int | None = None

    @property
    def records(self) -> int:
        """Number of records."""
        return self.sealed.records + self.unsealed.records

    @property
    def size_bytes(self) -> int:
        """Stored bytes."""
        return self.sealed.size_bytes + self.unsealed.size_bytes

    @property
    def per_second(self) -> float | None:
        """Records appended per second between the first and the last; None if these have the same time."""
        if self.first_us is None or self.last_us is None or self.last_us <= self.first_us:
            return None
        return (self.records - 1) / (self.last_us - self.first_us) * 1_000_000


_NOTHING: Final = SegmentTotal()


def shard_statistics(shard: ShardSnapshot) -> ShardStatistics:
    """Statistics of a snapshot, without the times."""
    sealed = unsealed = _NOTHING
    gaps = 0
    offset = shard.start_offset
    for segment in shard.segments:
        first = max(segment.base_offset, shard.start_offset)
        if first > offset:
            gaps += 1
        total = SegmentTotal(1, max(0, segment.next_offset - first), segment.size_bytes)
        if segment.kind is SegmentKind.PARQUET:
            sealed += total
        else:
            unsealed += total
        offset = max(offset, segment.next_offset)
    gaps += shard.next_offset > offset
    return ShardStatistics(shard.name, shard.start_offset, shard.next_offset, sealed, unsealed, gaps)


def ends(shards: Iterable[ShardSnapshot]) -> list[Part]:
    """The first and the last record of each shard, as parts to read."""
    parts = []
    for shard in shards:
        there = [each for each in shard.segments if each.next_offset > max(each.base_offset, shard.start_offset)]
        if there:
            first = max(there[0].base_offset, shard.start_offset)
            last = there[-1].next_offset - 1
            parts.append(_record(shard, there[0], first))
            if last > first:
                parts.append(_record(shard, there[-1], last))
    return parts


def with_times(all_statistics: Sequence[ShardStatistics], times_us: Iterable[tuple[str, int]]) -> list[ShardStatistics]:
    """Statistics with the times of records read at the ends: pairs of shard and append time."""
    found: dict[str, tuple[int, int]] = {}
    for shard, time_us in times_us:
        first_us, last_us = found.get(shard, (time_us, time_us))
        found[shard] = min(first_us, time_us), max(last_us, time_us)
    return [
        attrs.evolve(each, first_us=found[each.shard][0], last_us=found[each.shard][1]) if each.shard in found else each
        for each in all_statistics
    ]


def total(all_statistics: Sequence[ShardStatistics], name: str) -> ShardStatistics:
    """The sum; offsets of different shards cannot be added and are left out."""
    known_first = [each.first_us for each in all_statistics if each.first_us is not None]
    known_last = [each.last_us for each in all_statistics if each.last_us is not None]
    return ShardStatistics(
        shard=name,
        start_offset=0,
        next_offset=0,
        sealed=sum((each.sealed for each in all_statistics), _NOTHING),
        unsealed=sum((each.unsealed for each in all_statistics), _NOTHING),
        gaps=sum(each.gaps for each in all_statistics),
        first_us=min(known_first, default=None),
        last_us=max(known_last, default=None),
    )


def read_times(snapshot: Snapshot) -> Iterable[tuple[str, int]]:
    """Append times of the first and the last record of each shard; records that are gone meanwhile are skipped.

    Raises:
        UnreadableError: A file is damaged, or the server cannot be reached.
    """
    import pyarrow as pa

    from spark_export.options import parse_options
    from spark_export.reading import read_parts
    from spark_export.wanted_rows import Wanted

    options = parse_options({"path": "/", "failOnDataLoss": "false"})
    for rows in read_parts(snapshot.store, ends(snapshot.shards), Wanted.of_columns(["shard", "append_time"], options)):
        times_us = rows.column("append_time").cast(pa.int64()).to_pylist()
        yield from zip(rows.column("shard").to_pylist(), times_us, strict=True)


def _record(shard: ShardSnapshot, segment: SegmentRange, offset: int) -> Part:
    return Part(shard.name, shard.shard_id, segment, offset, offset + 1)
