"""Reading a log segment for conversion: every batch is checked, and its records are collected into row groups."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pyarrow as pa

from shards.errors import BatchError, CorruptionError
from shards.format.batch import HEADER_SIZE, MAX_RAW_BYTES, BatchHeader, decode, iterate, verify
from shards.format.batch_header import stored_size
from shards.parquet.arrow_batches import BatchCollector
from shards.parquet.arrow_buffers import column_numbers, data_size
from shards.parquet.schema import SCHEMA
from shards.seams.file_system import File
from shards.segments.conversion_plan import ConversionPlan
from shards.segments.log_segment import LogHeader

ROW_GROUP_BYTES = 1 << 20
ROW_GROUP_RECORDS = 1 << 16
"""A row group ends at the latest with the batch that brings it to this many records."""
BUFFER_BYTES = 4 << 20
_MAX_BATCH_BYTES = 2 * MAX_RAW_BYTES
_LOG_HEADER_BYTES = 2048


@attrs.frozen
class LogRows:
    """Rows of a row group, and its entry in the metadata."""

    rows: pa.Table
    first_offset: int
    next_offset: int
    last_lsn: int

    @property
    def newest_us(self) -> int:
        return max(int(column_numbers(times).max()) for times in self.rows.column("timestamp").chunks)

    @property
    def value_bytes(self) -> int:
        return sum(data_size(values) for values in self.rows.column("value").chunks)


class LogReader:
    """Reads the batches of a log segment, checks them and collects them into row groups.

    The log is read through one buffer that is reused: allocating memory would take longer than all checks.
    """

    def __init__(self, log: File, plan: ConversionPlan, row_group_bytes: int, buffer_bytes: int) -> None:
        _check_header(log, plan)
        self._log = log
        self._plan = plan
        self._row_group_bytes = row_group_bytes
        self._buffer = bytearray(min(buffer_bytes, plan.end_position - plan.start_position))
        self._filled = 0
        # Position in the log of the buffer's first byte.
        self._position = plan.start_position
        self._last = BatchHeader(0, plan.base_offset, *(0,) * 15)
        self._collector = BatchCollector()
        self._collected_from = 0
        # Rows of the present group whose bytes are not in the buffer any more.
        self._parts: list[pa.RecordBatch] = []

    def groups(self) -> Iterator[LogRows]:
        """Yield row group after row group.

        Raises:
            CorruptionError: As `convert_log`.
        """
        plan, collector, row_group_bytes = self._plan, self._collector, self._row_group_bytes
        at = 0
        first_offset, record_count, body_bytes = plan.base_offset, 0, 0
        while self._position + at < plan.end_position:
            available = self._filled - at
            if available < HEADER_SIZE or (size := stored_size(self._buffer, at)) > available:
                self._empty_collector(at)
                self._fill(at)
                at = 0
                continue
            header = self._verify(at)
            if record_count and (
                body_bytes >= row_group_bytes
                or record_count >= ROW_GROUP_RECORDS
                or header.raw_size >= row_group_bytes
                or header.record_count >= ROW_GROUP_RECORDS
            ):
                yield self._group(at, first_offset)
                first_offset, record_count, body_bytes = header.base_offset, 0, 0
            try:
                collector.add(self._buffer, at, header)
            except BatchError as error:
                raise self._corruption(at, error) from error
            record_count += header.record_count
            body_bytes += header.raw_size
            self._last = header
            at += size
        if self._last.next_offset != plan.next_offset:
            raise CorruptionError(
                plan.log_path,
                plan.end_position,
                f"the batches end before offset {self._last.next_offset}, expected {plan.next_offset}",
            )
        if record_count:
            yield self._group(at, first_offset)

    def _fill(self, at: int) -> None:
        """Move the bytes from ``at`` on to the front of the buffer and fill the rest from the log."""
        plan = self._plan
        rest = bytes(memoryview(self._buffer)[at : self._filled])
        self._position += at
        needed = stored_size(rest) if len(rest) >= HEADER_SIZE else HEADER_SIZE
        left = plan.end_position - self._position
        if needed > min(left, _MAX_BATCH_BYTES):
            raise CorruptionError(
                plan.log_path, self._position, f"a batch of {needed} bytes begins here, expected at most {left}"
            )
        if needed > len(self._buffer):
            self._buffer = bytearray(needed)
        self._buffer[: len(rest)] = rest
        wanted = min(len(self._buffer), left)
        view = memoryview(self._buffer)[len(rest) : wanted]
        self._filled = len(rest) + self._log.readinto(view, self._position + len(rest))
        self._collected_from = 0
        if self._filled < wanted:
            raise CorruptionError(
                plan.log_path,
                self._position + self._filled,
                f"the file ends here, expected {plan.end_position} bytes",
            )

    def _verify(self, at: int) -> BatchHeader:
        try:
            header = verify(self._buffer, at)
        except BatchError as error:
            raise self._corruption(at, error) from error
        last = self._last
        if (
            header.base_offset != last.base_offset + last.record_count
            or header.lsn <= last.lsn
            or header.append_time_us < last.append_time_us
            or header.flags
        ):
            raise self._corruption(at, _why_out_of_order(header, last))
        return header

    def _group(self, at: int, first_offset: int) -> LogRows:
        """Return the collected rows up to ``at``, and begin a new group."""
        self._empty_collector(at)
        rows = pa.Table.from_batches(self._parts, SCHEMA)
        self._parts = []
        return LogRows(rows, first_offset, self._last.next_offset, self._last.lsn)

    def _empty_collector(self, at: int) -> None:
        """Convert the collected batches, which are in the buffer up to ``at``, to rows."""
        if self._collector.record_count:
            try:
                self._parts.append(self._collector.finish())
            except BatchError as error:
                raise self._find_unreadable(at, error) from error
        self._collected_from = at

    def _find_unreadable(self, end: int, found: BatchError) -> CorruptionError:
        """Return the error for the first batch that cannot be decoded alone, after all together could not."""
        for at, _ in iterate(self._buffer, self._collected_from, end):
            try:
                decode(self._buffer, at)
            except BatchError as error:
                return self._corruption(at, error)
        return self._corruption(self._collected_from, found)

    def _corruption(self, at: int, problem: object) -> CorruptionError:
        return CorruptionError(self._plan.log_path, self._position + at, str(problem))


def _why_out_of_order(header: BatchHeader, last: BatchHeader) -> str:
    """Return the reason why a batch cannot follow the one before."""
    if header.is_gap:
        return "expected a batch of records, found a gap"
    if header.base_offset != last.next_offset:
        return f"expected a batch from offset {last.next_offset} on, found one from {header.base_offset}"
    if header.lsn <= last.lsn:
        return f"expected a batch with an lsn over {last.lsn}, found lsn {header.lsn}"
    return f"expected a batch appended at {last.append_time_us} us or later, found {header.append_time_us} us"


def _check_header(log: File, plan: ConversionPlan) -> None:
    header, size = LogHeader.decode(plan.log_path, log.pread(_LOG_HEADER_BYTES, 0))
    for what, expected, found in (
        ("shard", plan.name, header.name),
        ("shard id", f"{plan.shard_id:016x}", f"{header.shard_id:016x}"),
        ("base offset", plan.base_offset, header.base_offset),
        ("position of the first batch", plan.start_position, size),
    ):
        if expected != found:
            raise CorruptionError(plan.log_path, 0, f"{what}: expected {expected}, found {found}")
