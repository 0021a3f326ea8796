"""Conversion: a closed log segment is read once, checked, and written as one Parquet file.

It needs only a file system and a plan, and no shard, so it can run in a separate process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq

from shards.format.checksum import crc32c
from shards.parquet.log_rows import BUFFER_BYTES, ROW_GROUP_BYTES, LogReader, LogRows
from shards.parquet.schema import (
    CHECKSUMS,
    CHECKSUMS_MAGIC,
    FORMAT_VERSION,
    SCHEMA,
    TAIL,
    WRITER_OPTIONS,
    RowGroupEntry,
    SegmentMetadata,
)
from shards.seams.file_system import File, FileSystem
from shards.segments.conversion_plan import ConversionPlan, SealedFile

__all__ = ["ConversionPlan", "SealedFile", "convert_log"]


def convert_log(
    files: FileSystem, plan: ConversionPlan, *, row_group_bytes: int = ROW_GROUP_BYTES, buffer_bytes: int = BUFFER_BYTES
) -> SealedFile:
    """Write the Parquet file of a log segment and return when it is durable, except for its directory entry.

    Memory use is bounded by the buffer and a few row groups, or by the largest batch if that is larger.

    Args:
        row_group_bytes: A row group ends with the batch that brings it to this many bytes of bodies before
            compression; a larger batch is a row group of its own.
        buffer_bytes: Number of bytes of the log that are read at once.

    Raises:
        CorruptionError: A batch of the log is damaged or cannot be decoded, or the batches do not match the plan.
        OSError: A file could not be read or written.
    """
    log = files.open(plan.log_path, write=False)
    try:
        rows = LogReader(log, plan, row_group_bytes, buffer_bytes)
        out = files.open(plan.out_path, create=True)
        try:
            out.truncate(0)
            sealed = _write(_Sink(out), plan, rows.groups())
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


class _Sink:
    """The output of pyarrow: keeps the bytes until `save` writes them to the file and adds them to the digest."""

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
        """Do nothing: only `save` writes."""

    def close(self) -> None:
        """Do nothing: the file belongs to the caller."""

    def take(self) -> bytes:
        """Return the bytes that were not saved, and drop them."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        return data

    def save(self) -> int:
        """Write the unsaved bytes to the file and return their CRC-32C."""
        data = self.take()
        self._out.pwritev([data], self.position)
        self.position += len(data)
        self.digest.update(data)
        return crc32c(data)


def _write(sink: _Sink, plan: ConversionPlan, groups: Iterator[LogRows]) -> SealedFile:
    record_count = value_bytes = 0
    entries: list[RowGroupEntry] = []
    # Closed on an error too, since the writer would raise at its end if it were still open.
    with (
        pa.PythonFile(sink, mode="w") as python_file,
        pq.ParquetWriter(python_file, SCHEMA, **WRITER_OPTIONS) as writer,
    ):
        sink.save()
        for group in groups:
            start = sink.position
            writer.write_table(group.rows, row_group_size=group.rows.num_rows)
            crc = sink.save()
            group_value_bytes = group.value_bytes
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
    sink.write(CHECKSUMS.pack(CHECKSUMS_MAGIC, crc32c(footer[: -TAIL.size]), crc32c(index)))
    sink.write(footer)
    sink.save()
