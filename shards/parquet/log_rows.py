"""The row groups of one converted log segment: whole batches, in the order of their offsets."""

from __future__ import annotations

from collections.abc import Generator

import attrs
import pyarrow as pa

from shards.parquet.arrow_buffers import column_numbers, data_size
from shards.parquet.log_batches import CollectedRows, LogBatches
from shards.seams.file_system import FileSystem
from shards.segments.conversion_plan import ConversionPlan


@attrs.frozen
class LogRows:
    """Rows of a row group, and its entry in the metadata."""

    rows: pa.Table
    first_offset: int
    next_offset: int
    last_lsn: int

    @property
    def newest_us(self) -> int:
        return newest_us(self.rows)

    @property
    def value_bytes(self) -> int:
        return value_bytes(self.rows)


def newest_us(rows: pa.Table) -> int:
    """Newest timestamp of the rows."""
    return max(int(column_numbers(times).max()) for times in rows.column("timestamp").chunks)


def value_bytes(rows: pa.Table) -> int:
    """Size of the values of the rows together."""
    return sum(data_size(values) for values in rows.column("value").chunks)


def log_row_groups(
    files: FileSystem, plan: ConversionPlan, row_group_bytes: int, buffer_bytes: int
) -> Generator[LogRows]:
    """Yield row group after row group of a log segment.

    Raises:
        CorruptionError: As `shards.parquet.conversion.convert_log`.
        OSError: The log cannot be read.
    """
    collected = CollectedRows()
    batches = LogBatches(files, [plan], buffer_bytes, collected.empty)
    first_offset, last_lsn, next_offset = plan.base_offset, 0, plan.base_offset
    for at, header in batches:
        if collected.is_full_before(header, row_group_bytes):
            yield LogRows(collected.take(), first_offset, next_offset, last_lsn)
            first_offset = header.base_offset
        collected.add(batches, at, header)
        next_offset, last_lsn = header.next_offset, header.lsn
    if collected.record_count:
        yield LogRows(collected.take(), first_offset, next_offset, last_lsn)
