"""The columns of a sealed segment, the names in the file's metadata, and the settings of pyarrow's writer.

The layout of the whole file is in docs/formats.md, section "Sealed segment (Parquet)".
"""

from __future__ import annotations

import struct
from typing import Any

import attrs
import msgspec
import pyarrow as pa

FORMAT_VERSION = 1
SHARED_FORMAT_VERSION = 2
TIME = pa.timestamp("us", tz="UTC")


def _required(name: str, arrow_type: Any) -> Any:
    return pa.field(name, arrow_type, nullable=False)


HEADER = pa.struct([_required("key", pa.string()), _required("value", pa.binary())])
HEADERS = pa.list_(_required("element", HEADER))
TAGS = pa.list_(_required("element", pa.string()))
SCHEMA = pa.schema(
    [
        _required("offset", pa.int64()),
        _required("lsn", pa.int64()),
        _required("timestamp", TIME),
        _required("append_time", TIME),
        _required("topic", pa.string()),
        _required("key", pa.binary()),
        _required("value", pa.binary()),
        _required("headers", HEADERS),
        _required("tags", TAGS),
        pa.field("expires_at", TIME),
    ]
)
"""The columns. ``expires_at`` is null for never; an empty ``topic`` means the name of the shard."""

WRITER_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["topic", "key", "tags.list.element", "headers.list.element.key"],
    "column_encoding": {
        "offset": "DELTA_BINARY_PACKED",
        "lsn": "DELTA_BINARY_PACKED",
        "timestamp": "DELTA_BINARY_PACKED",
        "append_time": "DELTA_BINARY_PACKED",
    },
    "write_statistics": ["offset", "lsn", "timestamp", "append_time", "topic", "key"],
    "write_page_index": True,
    "write_page_checksum": True,
    "version": "2.6",
    "data_page_version": "1.0",
    # The Parquet schema is sufficient; Arrow's own copy would only enlarge every footer.
    "store_schema": False,
}
"""Keyword arguments of `pyarrow.parquet.ParquetWriter`."""

MAGIC = b"PAR1"
TAIL = struct.Struct("<I4s")
"""The end of every Parquet file: size of the footer and magic."""
CHECKSUMS = struct.Struct("<4sII")
"""The bytes right before the footer, which Parquet readers ignore: magic, CRC-32Cs of footer and page index."""
CHECKSUMS_MAGIC = b"JSEG"

METADATA_PREFIX = "journal."


@attrs.frozen
class RowGroupEntry:
    """The metadata of one row group.

    Attributes:
        start: Position of its first page.
        end: Position after its last page.
        crc: CRC-32C of the bytes in between.
    """

    first_offset: int
    next_offset: int
    last_lsn: int
    newest_us: int
    value_bytes: int
    start: int
    end: int
    crc: int


@attrs.frozen
class SegmentMetadata:
    """The ``journal.*`` keys of the file's metadata, all of them texts.

    Attributes:
        format: Version of this layout.
        data_bytes: Size of the part of the file up to the end of the last page.
        data_sha256: Digest of that part, in hexadecimal digits.
        value_bytes: Size of all values together.
        row_groups: JSON: for each row group a list of the fields of `RowGroupEntry`, in order.
    """

    format: int
    shard: str
    shard_id: int
    base_offset: int
    next_offset: int
    created_us: int
    value_bytes: int
    data_bytes: int
    data_sha256: str
    row_groups: tuple[RowGroupEntry, ...]

    def row_count_of(self, index: int) -> int:
        """Number of rows of a row group."""
        return self.row_groups[index].next_offset - self.row_groups[index].first_offset

    def rows_of(self, index: int) -> str:
        """Which rows a row group has, for messages."""
        return f"offsets {self.row_groups[index].first_offset} to {self.row_groups[index].next_offset}"

    def is_possible(self, index: int) -> bool:
        """Whether a row group can have these rows."""
        return 0 <= self.row_groups[index].first_offset < self.row_groups[index].next_offset

    def encode(self) -> dict[str, str]:
        """Return the keys and texts to write."""
        texts = {
            "format": str(self.format),
            "shard": self.shard,
            "shard_id": f"{self.shard_id:016x}",
            "base_offset": str(self.base_offset),
            "next_offset": str(self.next_offset),
            "created_us": str(self.created_us),
            "value_bytes": str(self.value_bytes),
            "data_bytes": str(self.data_bytes),
            "data_sha256": self.data_sha256,
            "row_groups": msgspec.json.encode([attrs.astuple(group) for group in self.row_groups]).decode(),
        }
        return {f"{METADATA_PREFIX}{name}": text for name, text in texts.items()}

    @classmethod
    def decode(cls, stored: dict[bytes, bytes]) -> SegmentMetadata:
        """Decode the metadata from the keys and texts of a file.

        Raises:
            ValueError: A key is missing, or its text is not valid.
        """
        texts: dict[str, str] = {}
        for field in attrs.fields(cls):
            key = f"{METADATA_PREFIX}{field.name}"
            if (text := stored.get(key.encode())) is None:
                raise ValueError(f"the metadata has no {key}")
            texts[field.name] = text.decode()
        groups = msgspec.json.decode(texts["row_groups"], type=list[tuple[int, int, int, int, int, int, int, int]])
        return cls(
            format=int(texts["format"]),
            shard=texts["shard"],
            shard_id=int(texts["shard_id"], 16),
            base_offset=int(texts["base_offset"]),
            next_offset=int(texts["next_offset"]),
            created_us=int(texts["created_us"]),
            value_bytes=int(texts["value_bytes"]),
            data_bytes=int(texts["data_bytes"]),
            data_sha256=texts["data_sha256"],
            row_groups=tuple(RowGroupEntry(*group) for group in groups),
        )
