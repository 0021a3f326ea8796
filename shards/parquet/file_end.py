"""The end of a shared file: page index, checksums and footer, checked before anything uses them."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from shards.errors import CorruptionError, FormatVersionError
from shards.format.checksum import crc32c
from shards.parquet.metadata import METADATA_PREFIX, FileMetadata
from shards.parquet.schema import CHECKSUMS, CHECKSUMS_MAGIC, FORMAT_VERSION, MAGIC, SHARED_SCHEMA, TAIL
from shards.seams.file_system import File

_FIRST_READ_BYTES = 64 << 10


@attrs.frozen
class FileEnd:
    """The part after the pages of a shared file: page index, checksums, footer.

    Attributes:
        size_bytes: Size of the whole file.
        index_end: Position after the page index.
        index_crc: Expected CRC-32C of the page index.
        footer: The footer in pyarrow's form.
        metadata: The ``journal.*`` keys in it.
    """

    size_bytes: int
    index_end: int
    index_crc: int
    footer: Any
    metadata: FileMetadata

    @classmethod
    def read(cls, path: str, file: File) -> FileEnd:
        """Read and check the end of a file.

        Raises:
            CorruptionError: The file is damaged, truncated, or not a shared file.
            FormatVersionError: A newer program wrote it.
            OSError: It cannot be read.
        """
        size = file.size()
        smallest = len(MAGIC) + CHECKSUMS.size + TAIL.size
        if size < smallest:
            raise CorruptionError(path, size, f"a shared file has at least {smallest} bytes, found {size}")
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
                f"expected {CHECKSUMS_MAGIC!r}, which shared files have before the footer, found {found_magic!r}",
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


def _parse_footer(path: str, footer_at: int, footer: bytes) -> tuple[Any, FileMetadata]:
    try:
        # With the magic in front, this is a complete Parquet file as long as its pages are not read.
        parsed = pq.read_metadata(pa.BufferReader(MAGIC + footer))
        version = int((parsed.metadata or {}).get(f"{METADATA_PREFIX}format".encode(), b"0"))
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                f"{path} has sealed format {version}, this program knows up to {FORMAT_VERSION}; use a newer one"
            )
        metadata = FileMetadata.decode(parsed.metadata or {})
        schema = parsed.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError(path, footer_at, f"the footer cannot be read: {error}") from error
    if not schema.equals(SHARED_SCHEMA):
        raise CorruptionError(path, footer_at, f"expected the columns {SHARED_SCHEMA}, found {schema}")
    if parsed.num_row_groups != len(metadata.row_groups):
        raise CorruptionError(
            path, footer_at, f"expected {len(metadata.row_groups)} row groups, found {parsed.num_row_groups}"
        )
    return parsed, metadata


def _check_places(path: str, footer_at: int, metadata: FileMetadata) -> None:
    """Refuse metadata with positions outside of the file, or with impossible rows."""
    pages_end = footer_at - CHECKSUMS.size
    if not len(MAGIC) <= metadata.data_bytes <= pages_end:
        raise CorruptionError(
            path, footer_at, f"expected pages up to byte {len(MAGIC)} to {pages_end}, found {metadata.data_bytes}"
        )
    for index, entry in enumerate(metadata.row_groups):
        if entry.row_count <= 0 or not len(MAGIC) <= entry.start <= entry.end <= pages_end:
            raise CorruptionError(
                path,
                footer_at,
                f"row group {index} has bytes {entry.start} to {entry.end} and {metadata.rows_of(index)}; "
                f"expected rising ones, and bytes from {len(MAGIC)} to {pages_end}",
            )
