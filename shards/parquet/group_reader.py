"""Reading the row groups of a shared file: each is checked as a whole, and decoded alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from shards.errors import CorruptionError
from shards.format.checksum import crc32c
from shards.parquet.file_end import FileEnd
from shards.parquet.schema import SHARED_SCHEMA
from shards.seams.file_system import File, FileSystem


class GroupReader:
    """A shared file, open for reading. Threads may share it.

    Args:
        files: The file system.
        path: The file.

    Attributes:
        metadata: The metadata in the file.
        footer: The same in pyarrow's form.
        end: Where what is.

    Raises:
        CorruptionError: The file is damaged, truncated, or not a shared file.
        FormatVersionError: A newer program wrote it.
        OSError: It cannot be read.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self.path = path
        self._file = files.open(path, write=False)
        try:
            self.end = FileEnd.read(path, self._file)
        except BaseException:
            self._file.close()
            raise
        self.metadata = self.end.metadata
        self.footer = self.end.footer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing again does nothing."""
        self._file.close()

    def modified_ns(self) -> int:
        """When the file was written, by the file system's clock, in nanoseconds since 1970."""
        return self._file.modified_ns()

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
        schema = SHARED_SCHEMA if columns is None else _part_of_schema(columns)
        entry = self.metadata.row_groups[index]
        data = self._file.pread(entry.end - entry.start, entry.start)
        found = crc32c(data)
        if found != entry.crc or len(data) != entry.end - entry.start:
            raise self.corruption(
                index,
                f"checksum over {entry.end - entry.start} bytes: expected {entry.crc:#010x}, "
                f"found {found:#010x} over {len(data)}",
            )
        window = pa.PythonFile(_Window(data, entry.start, self.end.size_bytes), mode="r")
        return self._decoded(index, schema, window, check_pages=check_pages)

    def _decoded(self, index: int, schema: Any, source: Any, *, check_pages: bool) -> pa.RecordBatch:
        try:
            file = pq.ParquetFile(
                source, metadata=self.footer, pre_buffer=False, page_checksum_verification=check_pages
            )
            rows = file.read_row_group(index, columns=schema.names, use_threads=False)
            batch = _one_batch(rows, schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self.corruption(index, f"the pages cannot be decoded: {error}") from error
        expected = self.metadata.row_groups[index].row_count
        if batch.num_rows != expected:
            raise self.corruption(index, f"expected {expected} rows, found {batch.num_rows}")
        return batch

    def pages_of(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of a row group; the others are not read. The pages' own checksums are checked.

        `table` reads all of the row group to check it as a whole.

        Raises:
            CorruptionError: The row group is damaged.
            KeyError: There is no column of that name.
            OSError: It cannot be read.
        """
        schema = _part_of_schema(columns)
        pages = pa.PythonFile(_Pages(self._file, self.end.size_bytes), mode="r")
        return self._decoded(index, schema, pages, check_pages=True)

    def corruption(self, index: int, problem: str) -> CorruptionError:
        """Return the error for a problem with a row group."""
        start = self.metadata.row_groups[index].start
        return CorruptionError(self.path, start, f"row group {index} ({self.metadata.rows_of(index)}): {problem}")


def _part_of_schema(columns: Sequence[str]) -> Any:
    if unknown := set(columns).difference(SHARED_SCHEMA.names):
        raise KeyError(f"a shared file has no column {sorted(unknown)}, only {SHARED_SCHEMA.names}")
    return pa.schema([field for field in SHARED_SCHEMA if field.name in columns])


def _one_batch(rows: pa.Table, schema: Any) -> pa.RecordBatch:
    rows = rows.select(schema.names)
    if rows.num_rows == 0:
        return pa.RecordBatch.from_pylist([], schema=schema)
    columns = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Pages:
    """A file as a file object; closing it does nothing."""

    closed = False

    def __init__(self, file: File, file_size: int) -> None:
        self._file = file
        self._file_size = file_size
        self._at = 0

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = position + (0, self._at, self._file_size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        size = self._file_size - self._at if size < 0 else size
        data = self._file.pread(size, self._at)
        self._at += len(data)
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the reader closes the file."""


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
