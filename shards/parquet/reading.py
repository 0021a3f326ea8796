"""Reading a sealed segment: its footer once, then row groups by number, as Arrow columns or as record batches again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from shards.errors import CorruptionError, FormatVersionError
from shards.format.checksum import crc32c
from shards.parquet.schema import (
    CHECKSUMS,
    CHECKSUMS_MAGIC,
    FORMAT_VERSION,
    MAGIC,
    METADATA_PREFIX,
    SCHEMA,
    TAIL,
    SegmentMetadata,
)
from shards.parquet.wire_batches import EncodedGroup, encode_group
from shards.seams.file_system import File, FileSystem

_FIRST_READ_BYTES = 64 << 10


@attrs.frozen
class RowGroup:
    """A row group: whole batches of at most about 1 MiB before compression, or one larger batch.

    Attributes:
        last_lsn: lsn of its last batch.
        newest_us: Newest record timestamp in it.
        value_bytes: Size of its values together.
    """

    index: int
    first_offset: int
    next_offset: int
    last_lsn: int
    newest_us: int
    value_bytes: int


class SealedReader:
    """A sealed segment, open for reading. Threads may share it.

    Args:
        files: The file system.
        path: The file.

    Attributes:
        shard: The name of the shard.
        base_offset: Offset of the first record.
        next_offset: Offset after the last record.
        row_groups: In the order of their offsets, without a gap from ``base_offset`` to ``next_offset``.
        metadata: The metadata in the file.
        footer: The same in pyarrow's form.

    Raises:
        CorruptionError: The file is damaged, truncated, or not a sealed segment.
        FormatVersionError: A newer program wrote it.
        OSError: It cannot be read.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self.path = path
        self._file = files.open(path, write=False)
        try:
            end = FileEnd.read(path, self._file)
        except BaseException:
            self._file.close()
            raise
        self.end = end
        self.metadata = end.metadata
        self.footer = end.footer
        self.shard = end.metadata.shard
        self.shard_id = end.metadata.shard_id
        self.base_offset = end.metadata.base_offset
        self.next_offset = end.metadata.next_offset
        self.row_groups = [
            RowGroup(index, entry.first_offset, entry.next_offset, entry.last_lsn, entry.newest_us, entry.value_bytes)
            for index, entry in enumerate(end.metadata.row_groups)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        self._file.close()

    def batches(self, index: int) -> EncodedGroup:
        """Return a row group as the record batches of the former log segment.

        Offsets, lsns, times and records are the same; producer fields are 0 and nothing is compressed.

        Raises:
            CorruptionError: The row group is damaged.
            OSError: It cannot be read.
        """
        rows = self.table(index)
        try:
            return encode_group(rows)
        except struct.error as error:
            raise self.corruption(index, f"an offset, lsn or time is below 0: {error}") from error

    def table(self, index: int, columns: Sequence[str] | None = None, *, check_pages: bool = False) -> pa.RecordBatch:
        """Return the rows of a row group, with all columns or those named, in the order of the schema.

        Args:
            columns: At least one name of a column.
            check_pages: Check the pages' own checksums too, not only the one of the whole row group.

        Raises:
            CorruptionError: The row group is damaged.
            KeyError: There is no column of that name.
            OSError: It cannot be read.
        """
        schema = SCHEMA if columns is None else _part_of_schema(columns)
        entry = self.metadata.row_groups[index]
        data = self._file.pread(entry.end - entry.start, entry.start)
        found = crc32c(data)
        if found != entry.crc or len(data) != entry.end - entry.start:
            raise self.corruption(
                index,
                f"checksum over {entry.end - entry.start} bytes: expected {entry.crc:#010x}, "
                f"found {found:#010x} over {len(data)}",
            )
        try:
            window = pa.PythonFile(_Window(data, entry.start, self.end.size_bytes), mode="r")
            file = pq.ParquetFile(
                window, metadata=self.footer, pre_buffer=False, page_checksum_verification=check_pages
            )
            rows = file.read_row_group(index, columns=schema.names, use_threads=False)
            batch = _one_batch(rows, schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self.corruption(index, f"the pages cannot be decoded: {error}") from error
        if batch.num_rows != entry.next_offset - entry.first_offset:
            raise self.corruption(
                index, f"expected {entry.next_offset - entry.first_offset} rows, found {batch.num_rows}"
            )
        return batch

    def corruption(self, index: int, problem: str) -> CorruptionError:
        """Return the error for a problem with a row group."""
        entry = self.metadata.row_groups[index]
        return CorruptionError(
            self.path,
            entry.start,
            f"row group {index} (offsets {entry.first_offset} to {entry.next_offset}): {problem}",
        )


def _part_of_schema(columns: Sequence[str]) -> Any:
    if unknown := set(columns).difference(SCHEMA.names):
        raise KeyError(f"a sealed segment has no column {sorted(unknown)}, only {SCHEMA.names}")
    return pa.schema([field for field in SCHEMA if field.name in columns])


def _one_batch(rows: pa.Table, schema: Any) -> pa.RecordBatch:
    rows = rows.select(schema.names)
    if rows.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=schema)
    columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Window:
    """A part of a file as a file object: reads outside of it return nothing."""

    closed = False

    def __init__(self, data: bytes, start: int, file_size: int) -> None:
        self._data = memoryview(data)
        self._start = start
        self._file_size = file_size
        self._at = 0

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = position + (0, self._at, self._file_size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> memoryview:
        begin = self._at - self._start
        if begin < 0 or size < 0:
            return self._data[:0]
        self._at += size
        return self._data[begin : begin + size]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@attrs.frozen
class FileEnd:
    """The part after the pages of a sealed segment: page index, checksums, footer.

    Attributes:
        size_bytes: Size of the whole file.
        index_end: Position after the page index.
        index_crc: Expected CRC-32C of the page index.
    """

    size_bytes: int
    index_end: int
    index_crc: int
    footer: Any
    metadata: SegmentMetadata

    @classmethod
    def read(cls, path: str, file: File) -> FileEnd:
        """Read and check the end of a file; see `SealedReader` for the errors."""
        size = file.size()
        smallest = len(MAGIC) + CHECKSUMS.size + TAIL.size
        if size < smallest:
            raise CorruptionError(path, size, f"a sealed segment has at least {smallest} bytes, found {size}")
        tail_at = max(size - _FIRST_READ_BYTES, 0)
        tail = file.pread(size - tail_at, tail_at)
        footer_size, magic = TAIL.unpack_from(tail, len(tail) - TAIL.size)
        if magic != MAGIC:
            raise CorruptionError(path, size - len(MAGIC), f"expected magic {MAGIC!r}, found {magic!r}")
        if footer_size > size - smallest:
            raise CorruptionError(
                path, size - TAIL.size, f"expected a footer of at most {size - smallest} bytes, found {footer_size}"
            )
        footer_at = size - TAIL.size - footer_size
        if footer_at - CHECKSUMS.size < tail_at:
            missing_at = footer_at - CHECKSUMS.size
            tail = file.pread(tail_at - missing_at, missing_at) + tail
            tail_at = missing_at
        found_magic, footer_crc, index_crc = CHECKSUMS.unpack_from(tail, footer_at - CHECKSUMS.size - tail_at)
        if found_magic != CHECKSUMS_MAGIC:
            raise CorruptionError(
                path,
                footer_at - CHECKSUMS.size,
                f"expected {CHECKSUMS_MAGIC!r}, which sealed segments have before the footer, found {found_magic!r}",
            )
        footer = tail[footer_at - tail_at :]
        found_crc = crc32c(memoryview(footer)[: -TAIL.size])
        if found_crc != footer_crc:
            raise CorruptionError(
                path, footer_at, f"checksum of the footer: expected {footer_crc:#010x}, found {found_crc:#010x}"
            )
        parsed, metadata = _parse_footer(path, footer_at, footer)
        _check_places(path, footer_at, metadata)
        return cls(size, footer_at - CHECKSUMS.size, index_crc, parsed, metadata)


def _parse_footer(path: str, footer_at: int, footer: bytes) -> tuple[Any, SegmentMetadata]:
    try:
        # With the magic in front, this is a complete Parquet file as long as its pages are not read.
        parsed = pq.read_metadata(pa.BufferReader(MAGIC + footer))
        version = int((parsed.metadata or {}).get(f"{METADATA_PREFIX}format".encode(), b"0"))
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                f"{path} has sealed format {version}, this program knows up to {FORMAT_VERSION}; use a newer one"
            )
        metadata = SegmentMetadata.decode(parsed.metadata or {})
        schema = parsed.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError(path, footer_at, f"the footer cannot be read: {error}") from error
    if not schema.equals(SCHEMA):
        raise CorruptionError(path, footer_at, f"expected the columns {SCHEMA}, found {schema}")
    if parsed.num_row_groups != len(metadata.row_groups):
        raise CorruptionError(
            path, footer_at, f"expected {len(metadata.row_groups)} row groups, found {parsed.num_row_groups}"
        )
    return parsed, metadata


def _check_places(path: str, footer_at: int, metadata: SegmentMetadata) -> None:
    """Refuse metadata with positions outside of the file."""
    pages_end = footer_at - CHECKSUMS.size
    if not len(MAGIC) <= metadata.data_bytes <= pages_end:
        raise CorruptionError(
            path, footer_at, f"expected pages up to byte {len(MAGIC)} to {pages_end}, found {metadata.data_bytes}"
        )
    for index, entry in enumerate(metadata.row_groups):
        if not len(MAGIC) <= entry.start <= entry.end <= pages_end or not 0 <= entry.first_offset < entry.next_offset:
            raise CorruptionError(
                path,
                footer_at,
                f"row group {index} has bytes {entry.start} to {entry.end} and offsets {entry.first_offset} to "
                f"{entry.next_offset}; expected rising ones, and bytes from {len(MAGIC)} to {pages_end}",
            )
