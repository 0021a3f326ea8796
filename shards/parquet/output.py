"""Writing a shared file: pyarrow makes row groups and footer, this module places them with their checksums."""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from shards.format.checksum import crc32c
from shards.parquet.schema import CHECKSUMS, CHECKSUMS_MAGIC, TAIL
from shards.seams.file_system import File


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


class FileOutput:
    """A shared file that is being written; a context, since pyarrow's writer must be closed on an error too.

    Args:
        out: The file; it is empty.
        schema: Its columns.
        options: Keyword arguments of `pyarrow.parquet.ParquetWriter`.
    """

    def __init__(self, out: File, schema: Any, options: dict[str, Any]) -> None:
        self._sink = _Sink(out)
        self._python_file = pa.PythonFile(self._sink, mode="w")
        self._writer = pq.ParquetWriter(self._python_file, schema, **options)
        self._sink.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._python_file.close()

    @property
    def position(self) -> int:
        """Position after what was written."""
        return self._sink.position

    @property
    def digest(self) -> bytes:
        """SHA-256 of what was written."""
        return self._sink.digest.digest()

    def add(self, rows: pa.Table) -> tuple[int, int, int]:
        """Write a row group; returns its position, its end and the CRC-32C of its bytes.

        Raises:
            OSError: The file could not be written.
        """
        start = self._sink.position
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        crc = self._sink.save()
        return start, self._sink.position, crc

    def finish(self, metadata: dict[str, str]) -> None:
        """Write the page index and the footer with this metadata, and their checksums between them.

        Raises:
            OSError: The file could not be written.
        """
        sink = self._sink
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        end = sink.take()
        footer_size, _ = TAIL.unpack_from(end, len(end) - TAIL.size)
        footer_at = len(end) - TAIL.size - footer_size
        index, footer = end[:footer_at], end[footer_at:]
        sink.write(index)
        sink.write(CHECKSUMS.pack(CHECKSUMS_MAGIC, crc32c(footer[: -TAIL.size]), crc32c(index)))
        sink.write(footer)
        sink.save()
