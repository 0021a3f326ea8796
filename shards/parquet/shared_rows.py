"""The row groups of shared files: batches of many logs, by the day of their append, with the columns for the shard."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shards.errors import CorruptionError
from shards.format.batch import BatchHeader
from shards.parquet.collected_rows import ROW_GROUP_RECORDS, CollectedRows
from shards.parquet.schema import DAY_US, DICTIONARY, WRITTEN_SCHEMA
from shards.parquet.source_batches import SourceBatches
from shards.seams.file_system import FileSystem
from shards.segments.conversion_plan import PartSource
from shards.segments.segment_paths import LAST_DAY


@attrs.define
class Run:
    """Adjacent rows of one source in a row group.

    Attributes:
        source: Index of the source.
        body_bytes: Size of its batches' bodies before compression.
    """

    source: int
    base_offset: int
    next_offset: int
    body_bytes: int
    newest_append_us: int
    last_lsn: int
    newest_us: int

    @property
    def record_count(self) -> int:
        return self.next_offset - self.base_offset


@attrs.frozen
class SharedRows:
    """A row group of a day's file.

    Attributes:
        day: Days since 1970.
        rows: In the order of the runs, with the columns of `WRITTEN_SCHEMA`.
        runs: In the order of the sources.
    """

    day: int
    rows: pa.Table
    runs: Sequence[Run]


class _Day:
    """The row group of one day that is being collected."""

    def __init__(self, sources: Sequence[PartSource], row_group_bytes: int) -> None:
        self._sources = sources
        self._row_group_bytes = row_group_bytes
        self._runs: list[Run] = []
        self.collected = CollectedRows()

    def is_full_before(self, source: int, header: BatchHeader) -> bool:
        """Whether the row group ends before this batch: it is full, or half full and the batch is of another shard."""
        collected, runs = self.collected, self._runs
        ends_shard = bool(runs) and self._sources[runs[-1].source].shard_id != self._sources[source].shard_id
        is_half_full = (
            collected.body_bytes * 2 >= self._row_group_bytes or collected.record_count * 2 >= ROW_GROUP_RECORDS
        )
        return (ends_shard and is_half_full) or collected.is_full_before(header, self._row_group_bytes)

    def add(self, batches: SourceBatches, source: int, at: int, header: BatchHeader) -> None:
        runs = self._runs
        if not runs or runs[-1].source != source:
            runs.append(Run(source, header.base_offset, header.next_offset, 0, 0, 0, 0))
        run = runs[-1]
        run.next_offset = header.next_offset
        run.body_bytes += header.raw_size
        run.newest_append_us = header.append_time_us
        run.last_lsn = header.lsn
        run.newest_us = max(run.newest_us, header.max_timestamp_us)
        self.collected.add(batches, at, header)

    def take(self, day: int) -> SharedRows:
        runs, self._runs = self._runs, []
        names = [self._sources[run.source].name for run in runs]
        ids = [self._sources[run.source].shard_id for run in runs]
        return SharedRows(
            day, _with_shards(self.collected.take(), names, ids, [run.record_count for run in runs]), runs
        )


def shared_row_groups(
    files: FileSystem, sources: Sequence[PartSource], row_group_bytes: int, buffer_bytes: int
) -> Generator[SharedRows]:
    """Yield the row groups of all days; those of one day are in the order of the sources.

    Raises:
        ValueError: The sources are not in order, or two of them overlap.
        CorruptionError: A batch is damaged, or the batches are not those of a source.
        OSError: A log cannot be read.
    """
    _require_order(sources)
    days: dict[int, _Day] = {}

    def empty() -> None:
        for day in days.values():
            day.collected.empty()

    batches = SourceBatches(files, sources, buffer_bytes, empty)
    index = {id(source): number for number, source in enumerate(sources)}
    for at, header in batches:
        source = index[id(batches.source)]
        number = header.append_time_us // DAY_US
        day = days.get(number)
        if day is None:
            if number > LAST_DAY:
                raise CorruptionError(
                    batches.source.log_path,
                    batches.position_of(at),
                    f"appended at {header.append_time_us} us, expected a time before the year 10000",
                )
            day = days[number] = _Day(sources, row_group_bytes)
        elif day.is_full_before(source, header):
            yield day.take(number)
        day.add(batches, source, at, header)
    for number, day in days.items():
        if day.collected.record_count:
            yield day.take(number)


def _require_order(sources: Sequence[PartSource]) -> None:
    for before, after in pairwise(sources):
        first, second = ((source.name.encode(), source.shard_id) for source in (before, after))
        if first > second or (first == second and before.next_offset > after.base_offset):
            raise ValueError(
                f"offsets {after.base_offset} to {after.next_offset} of shard {after.name!r} ({after.shard_id}) cannot "
                f"follow offsets {before.base_offset} to {before.next_offset} of shard {before.name!r} "
                f"({before.shard_id}): sources are sorted by shard name, shard id and offset"
            )


def _with_shards(rows: pa.Table, names: list[str], ids: list[int], counts: list[int]) -> pa.Table:
    """Add the columns that tell the shard, and fill in the topics."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
    shards = _dictionary(np.repeat(codes, counts), pa.array(list(numbers), pa.string()))
    stored = rows.column("topic")
    own = pc.greater(pc.binary_length(stored), 0)
    owned = pc.sum(own).as_py() or 0
    if not owned:
        topics: Any = shards
    elif owned == len(stored):
        topics = stored.dictionary_encode()
    else:
        topics = pc.if_else(own, stored, shards.cast(pa.string())).dictionary_encode()
    arrays: dict[str, Any] = {name: rows.column(name) for name in rows.column_names}
    arrays |= {"shard": shards, "shard_id": pa.array(np.repeat(np.array(ids, np.int64), counts))}
    arrays |= {"topic": topics, "own_topic": own}
    return pa.Table.from_arrays([arrays[name] for name in WRITTEN_SCHEMA.names], schema=WRITTEN_SCHEMA)


def _dictionary(codes: Any, values: pa.Array) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes), values).cast(DICTIONARY)
