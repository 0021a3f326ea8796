"""Reading log segments, which may still grow, and the statistics of row groups.

Records are yielded as `pyarrow.RecordBatch` with the columns of `shards.parquet.schema`. Batches that a query does not
want are skipped by the times in their headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from shards.errors import BatchError, CorruptionError
from shards.format.batch import HEADER_SIZE, BatchHeader, verify
from shards.parquet.arrow_batches import read_table
from shards.seams.file_system import File, FileSystem
from shards.segments.log_segment import LogHeader
from shards.segments.read_slices import LostBatchError, check_stamp
from shards.segments.sparse_index import STORED_SIZE, SparseIndex
from spark_export.conditions import Condition, may_hold
from spark_export.wanted_rows import Wanted

_WINDOW_BYTES: Final = 4 << 20
_LOG_HEADER_BYTES: Final = 2048
_TIMES: Final = ("timestamp", "append_time")


class LogEndsError(Exception):
    """A log file does not have the records that a reader wants, or they are damaged.

    Attributes:
        offset: First offset that was not read.
        error: The error at that place.
    """

    def __init__(self, offset: int, error: CorruptionError) -> None:
        super().__init__(str(error))
        self.offset = offset
        self.error = error


class GroupStatistics:
    """The statistics of a row group in the footer.

    Args:
        group: The row group in the footer, in pyarrow's form.
        schema: The columns of the file.
    """

    def __init__(self, group: Any, schema: Any) -> None:
        self._group = group
        self._schema = schema

    def may_hold(self, conditions: Sequence[Condition]) -> bool:
        """Whether conditions on times may hold for at least one of its records."""
        for column in _TIMES:
            if any(one.column == column for one in conditions):
                found = self._of(column)
                if found is not None and not may_hold(conditions, column, found.min_raw, found.max_raw):
                    return False
        return True

    def may_have(self, column: str, values: Sequence[str]) -> bool:
        """Whether a record of it may have one of these texts in a column."""
        found = self._of(column)
        return found is None or any(found.min <= value <= found.max for value in values)

    def bounds(self, column: str) -> tuple[str, str] | None:
        """The smallest and the largest text in a column; None if the footer does not tell."""
        found = self._of(column)
        return None if found is None else (found.min, found.max)

    def _of(self, column: str) -> Any:
        found = self._group.column(self._schema.get_field_index(column)).statistics
        return found if found is not None and found.has_min_max else None


def read_log(
    files: FileSystem, path: str, shard_id: int, first: int, end: int, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    """Records of a log segment from offset ``first`` up to ``end``; its server may be appending to it.

    Raises:
        FileNotFoundError: The file does not exist (any more, or yet).
        LogEndsError: It has fewer records, or other data; the records before that are yielded.
    """
    file = files.open(path, write=False)
    try:
        position, offset = _begin(files, file, path, shard_id, first)
        while offset < end:
            data, following, given = _whole_batches(file, path, position, offset, (first, end), wanted.conditions)
            for piece in given:
                try:
                    records = read_table(memoryview(data)[piece])
                except BatchError as error:
                    raise LogEndsError(max(first, offset), CorruptionError(path, position, str(error))) from error
                yield clipped(records, first, end)
            position, offset = position + following[0], following[1]
    finally:
        file.close()


def clipped(records: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """The records from ``first`` up to ``end``; the input is in offset order."""
    if not records.num_rows:
        return records
    offsets = records.column("offset").to_numpy()
    low, high = offsets.searchsorted(first), offsets.searchsorted(end)
    return records if high - low == len(offsets) else records.slice(low, high - low)


def _begin(files: FileSystem, file: File, path: str, shard_id: int, first: int) -> tuple[int, int]:
    """Position and offset of a batch at or before the one that holds an offset."""
    try:
        header, position = LogHeader.decode(path, file.pread(_LOG_HEADER_BYTES, 0))
    except CorruptionError as error:
        # Not flushed yet: the file is created before its first bytes are written.
        raise LogEndsError(first, error) from error
    if header.shard_id != shard_id:
        problem = f"expected a log of the shard with id {shard_id}, found one of {header.name!r}, id {header.shard_id}"
        raise LogEndsError(first, CorruptionError(path, 0, problem))
    indexed = _indexed_position(files, f"{path.removesuffix('.log')}.index", first, position)
    return indexed or (position, header.base_offset)


def _indexed_position(files: FileSystem, path: str, offset: int, start: int) -> tuple[int, int] | None:
    """The entry of the sparse index of a log; None if there is no useful one. It only saves time."""
    if not files.exists(path):
        return None
    file = files.open(path, write=False)
    try:
        size = file.size()
        index = SparseIndex.decode(file.pread(size, 0), size // STORED_SIZE)
    finally:
        file.close()
    if index is None:
        return None
    position = index.position_before_offset(offset, start)
    return None if position == start else (position, index.offset_at(position))


def _whole_batches(
    file: File,
    path: str,
    position: int,
    offset: int,
    bounds: tuple[int, int],
    conditions: Sequence[Condition],
) -> tuple[bytes, tuple[int, int], list[slice]]:
    """Read a window of a log, beginning with a batch.

    Returns:
        Its bytes, how many of them were examined and the offset after these, and the runs of batches that are wanted.
    """
    first, end = bounds
    data = file.pread(_WINDOW_BYTES, position)
    runs: list[slice] = []
    at = 0
    while offset < end:
        header = _header_at(data, at, offset)
        if isinstance(header, str):
            if at:
                break
            raise LogEndsError(max(first, offset), CorruptionError(path, position, header))
        stop = at + header.size_bytes
        if stop > len(data):
            if at:
                break
            data = file.pread(stop, position)
            if stop > len(data):
                problem = f"the batch has {stop} bytes, the file only {len(data)} from here on"
                raise LogEndsError(max(first, offset), CorruptionError(path, position, problem))
        if header.next_offset > first and not _rules_out(data, at, header, conditions):
            if runs and runs[-1].stop == at:
                runs[-1] = slice(runs[-1].start, stop)
            else:
                runs.append(slice(at, stop))
        at, offset = stop, header.next_offset
    return data, (at, offset), runs


def _header_at(data: bytes, at: int, offset: int) -> BatchHeader | str:
    """The header of the batch that should begin here with this offset, or a description of the problem."""
    if len(data) - at < HEADER_SIZE:
        return f"expected the batch of offset {offset}, the file ends after {len(data) - at} bytes"
    try:
        check_stamp(data, at)
    except LostBatchError as error:
        return str(error)
    header = BatchHeader.unpack(data, at)
    if header.base_offset != offset:
        return f"expected the batch of offset {offset}, found that of {header.base_offset}"
    return header


def _rules_out(data: bytes, at: int, header: BatchHeader, conditions: Sequence[Condition]) -> bool:
    """Whether conditions on times exclude all records of a batch; its header shows that, if it is complete."""
    if may_hold(conditions, "timestamp", header.min_timestamp_us, header.max_timestamp_us) and may_hold(
        conditions, "append_time", header.append_time_us, header.append_time_us
    ):
        return False
    try:
        verify(data, at)
    except BatchError:
        # The reader of the batch reports what is wrong.
        return False
    return True
