"""Sealing: a closed log segment is read once, checked, and written as one Parquet file.

It runs in a process of its own, or anywhere else: it needs a file system and a plan, and knows no shard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from shards.batch import HEADER_SIZE, MAX_RAW_BYTES, BatchHeader, decode, iterate, verify
from shards.batch_header import stored_size
from shards.checksum import crc32c
from shards.errors import BatchError, CorruptionError
from shards.file_system import File, FileSystem
from shards.log_segment import LogHeader
from shards.parquet.arrow_batches import BatchCollector
from shards.parquet.schema import (
    FORMAT_VERSION,
    SCHEMA,
    SEALS,
    SEALS_MAGIC,
    TAIL,
    WRITER_OPTIONS,
    RowGroupEntry,
    SegmentMetadata,
)

ROW_GROUP_BYTES = 1 << 20
"""A row group ends with the batch that takes it to so many bytes of bodies before compression."""
ROW_GROUP_RECORDS = 1 << 16
"""Or to so many records."""
_WINDOW_BYTES = 4 << 20
_MAX_BATCH_BYTES = 2 * MAX_RAW_BYTES
_LOG_HEADER_BYTES = 2048


@attrs.frozen
class SealPlan:
    """What is to be sealed; all of it survives a trip through JSON.

    Attributes:
        log_path: The log segment, which holds ``base_offset`` up to but not including ``next_offset``.
        out_path: The file to write; one that is there already is written over.
        name: The shard's.
        start_position: Where in the log the first batch begins.
        end_position: Where in the log the last batch ends.
        created_us: When the log segment was opened.
    """

    log_path: str
    out_path: str
    name: str
    shard_id: int
    base_offset: int
    next_offset: int
    start_position: int
    end_position: int
    created_us: int


@attrs.frozen
class SealedFile:
    """What became of it.

    Attributes:
        size_bytes: Size of the Parquet file.
        digest: SHA-256 of the Parquet file.
        value_bytes: Size of all values together.
    """

    size_bytes: int
    digest: bytes
    record_count: int
    value_bytes: int
    row_groups: int


def seal_log(files: FileSystem, plan: SealPlan) -> SealedFile:
    """Write the Parquet file of a log segment and return when it is durable; its directory entry is not yet.

    Memory use is bounded by a few row groups, or by the largest batch if that is larger.

    Raises:
        CorruptionError: A batch of the log is damaged or cannot be read, or the batches are not what the plan says.
        OSError: A file could not be read or written.
    """
    log = files.open(plan.log_path, write=False)
    try:
        _check_header(log, plan)
        out = files.open(plan.out_path, create=True)
        try:
            out.truncate(0)
            sealed = _write(_Sink(out), plan, _LogReader(log, plan).groups())
            out.fsync()
        except BaseException:
            out.close()
            with suppress(FileNotFoundError):
                files.remove(plan.out_path)
            raise
        out.close()
        return sealed
    finally:
        log.close()


def _check_header(log: File, plan: SealPlan) -> None:
    header, size = LogHeader.decode(plan.log_path, log.pread(_LOG_HEADER_BYTES, 0))
    for what, expected, found in (
        ("shard id", f"{plan.shard_id:016x}", f"{header.shard_id:016x}"),
        ("base offset", plan.base_offset, header.base_offset),
        ("position of the first batch", plan.start_position, size),
    ):
        if expected != found:
            raise CorruptionError(plan.log_path, 0, f"{what}: expected {expected}, found {found}")


@attrs.frozen
class _Group:
    """Rows that become a row group, and what its entry in the metadata says of them."""

    rows: pa.Table
    first_offset: int
    next_offset: int
    last_lsn: int
    newest_us: int


class _LogReader:
    """Reads the batches of a log segment, checks them and gathers them into row groups.

    The log comes through one buffer, used again and again: fresh memory would cost more than all checks.
    """

    def __init__(self, log: File, plan: SealPlan) -> None:
        self._log = log
        self._plan = plan
        self._buffer = bytearray(min(_WINDOW_BYTES, plan.end_position - plan.start_position))
        self._filled = 0
        # Position in the log of the buffer's first byte.
        self._position = plan.start_position
        self._last = BatchHeader(0, plan.base_offset, *(0,) * 15)
        self._collector = BatchCollector()
        self._collected_from = 0
        # Rows of the group whose bytes have left the buffer.
        self._parts: list[pa.RecordBatch] = []

    def groups(self) -> Iterator[_Group]:
        """Yield row group after row group.

        Raises:
            CorruptionError: As `seal_log`.
        """
        plan, collector = self._plan, self._collector
        at = 0
        first_offset, record_count, body_bytes, newest_us = plan.base_offset, 0, 0, 0
        while self._position + at < plan.end_position:
            size = self._size_if_whole(at)
            if size == 0:
                self._empty_collector(at)
                self._fill(at)
                at = 0
                continue
            header = self._verify(at)
            if record_count and (
                body_bytes >= ROW_GROUP_BYTES
                or record_count >= ROW_GROUP_RECORDS
                or header.raw_size >= ROW_GROUP_BYTES
                or header.record_count >= ROW_GROUP_RECORDS
            ):
                yield self._group(at, first_offset, newest_us)
                first_offset, record_count, body_bytes, newest_us = header.base_offset, 0, 0, 0
            try:
                collector.add(self._buffer, at, header)
            except BatchError as error:
                raise self._corruption(at, error) from error
            record_count += header.record_count
            body_bytes += header.raw_size
            newest_us = max(newest_us, header.max_timestamp_us)
            self._last = header
            at += size
        if self._last.next_offset != plan.next_offset:
            raise CorruptionError(
                plan.log_path,
                plan.end_position,
                f"the batches end before offset {self._last.next_offset}, expected {plan.next_offset}",
            )
        if record_count:
            yield self._group(at, first_offset, newest_us)

    def _size_if_whole(self, at: int) -> int:
        """Return the size of the batch at ``at``, or 0 if the buffer holds only the beginning of it."""
        available = self._filled - at
        if available < HEADER_SIZE:
            return 0
        size = stored_size(self._buffer, at)
        return size if size <= available else 0

    def _fill(self, at: int) -> None:
        """Move what the buffer holds from ``at`` on to its front and fill it from the log."""
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
        for what, is_right, expected, found in (
            ("a batch of records", not header.is_gap, "records", "a gap"),
            ("base offset", header.base_offset == last.next_offset, last.next_offset, header.base_offset),
            ("lsn", header.lsn > last.lsn, f"over {last.lsn}", header.lsn),
            (
                "append time",
                header.append_time_us >= last.append_time_us,
                f"from {last.append_time_us}",
                header.append_time_us,
            ),
        ):
            if not is_right:
                raise self._corruption(at, f"{what}: expected {expected}, found {found}")
        return header

    def _group(self, at: int, first_offset: int, newest_us: int) -> _Group:
        """Return what was gathered up to ``at``, and begin anew."""
        self._empty_collector(at)
        rows = pa.Table.from_batches(self._parts, SCHEMA)
        self._parts = []
        return _Group(rows, first_offset, self._last.next_offset, self._last.lsn, newest_us)

    def _empty_collector(self, at: int) -> None:
        """Turn the batches collected, which lie in the buffer up to ``at``, into rows."""
        if self._collector.record_count:
            try:
                self._parts.append(self._collector.finish())
            except BatchError as error:
                raise self._find_unreadable(at, error) from error
        self._collected_from = at

    def _find_unreadable(self, end: int, found: BatchError) -> CorruptionError:
        """Return the error for the first batch that cannot be read alone; all were read together."""
        for at, _ in iterate(self._buffer, self._collected_from, end):
            try:
                decode(self._buffer, at)
            except BatchError as error:
                return self._corruption(at, error)
        return self._corruption(self._collected_from, found)

    def _corruption(self, at: int, problem: object) -> CorruptionError:
        return CorruptionError(self._plan.log_path, self._position + at, str(problem))


class _Sink:
    """What pyarrow writes to: keeps the bytes until `save` writes them to the file and adds them to the digest."""

    closed = False

    def __init__(self, out: File) -> None:
        self._out = out
        self._pieces: list[bytes] = []
        self._waiting = 0
        self.position = 0
        """Position after the last byte saved."""
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._pieces.append(data)
        self._waiting += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position + self._waiting

    def flush(self) -> None:
        """Do nothing: `save` is what counts."""

    def close(self) -> None:
        """Do nothing: the file belongs to the caller."""

    def take(self) -> bytes:
        """Return the bytes that were not saved, which count as not written."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        return data

    def save(self) -> int:
        """Write what was not saved to the file and return its CRC-32C."""
        data = self.take()
        self._out.pwritev([data], self.position)
        self.position += len(data)
        self.digest.update(data)
        return crc32c(data)


def _write(sink: _Sink, plan: SealPlan, groups: Iterator[_Group]) -> SealedFile:
    record_count = value_bytes = 0
    entries: list[RowGroupEntry] = []
    with pa.PythonFile(sink, mode="w") as python_file:
        writer = pq.ParquetWriter(python_file, SCHEMA, **WRITER_OPTIONS)
        sink.save()
        for group in groups:
            start = sink.position
            writer.write_table(group.rows, row_group_size=group.rows.num_rows)
            crc = sink.save()
            group_value_bytes = _value_bytes(group.rows)
            entries.append(
                RowGroupEntry(
                    first_offset=group.first_offset,
                    next_offset=group.next_offset,
                    last_lsn=group.last_lsn,
                    newest_us=group.newest_us,
                    value_bytes=group_value_bytes,
                    start=start,
                    end=sink.position,
                    crc=crc,
                )
            )
            record_count += group.rows.num_rows
            value_bytes += group_value_bytes
        metadata = SegmentMetadata(
            format=FORMAT_VERSION,
            shard=plan.name,
            shard_id=plan.shard_id,
            base_offset=plan.base_offset,
            next_offset=plan.next_offset,
            created_us=plan.created_us,
            value_bytes=value_bytes,
            data_bytes=sink.position,
            data_sha256=sink.digest.hexdigest(),
            row_groups=tuple(entries),
        )
        writer.add_key_value_metadata(metadata.encode())
        writer.close()
        _write_end(sink)
    return SealedFile(sink.position, sink.digest.digest(), record_count, value_bytes, len(entries))


def _write_end(sink: _Sink) -> None:
    """Save the page index and the footer, with their checksums between them."""
    end = sink.take()
    footer_size, _ = TAIL.unpack_from(end, len(end) - TAIL.size)
    footer_at = len(end) - TAIL.size - footer_size
    index, footer = end[:footer_at], end[footer_at:]
    sink.write(index)
    sink.write(SEALS.pack(SEALS_MAGIC, crc32c(footer[: -TAIL.size]), crc32c(index)))
    sink.write(footer)
    sink.save()


def _value_bytes(rows: pa.Table) -> int:
    """Return the size of all values together."""
    return sum(chunk.buffers()[2].size for chunk in rows.column("value").chunks)
