"""The columns of records and of shared files, fixed bytes in these files, and the settings of pyarrow's writer.

The layout of the whole file is in docs/formats.md, section "Shared file (Parquet)".
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

FORMAT_VERSION = 2
DAY_US = 86_400_000_000
TIME = pa.timestamp("us", tz="UTC")


def _required(name: str, arrow_type: Any) -> Any:
    return pa.field(name, arrow_type, nullable=False)


HEADER = pa.struct([_required("key", pa.string()), _required("value", pa.binary())])
HEADERS = pa.list_(_required("element", HEADER))
TAGS = pa.list_(_required("element", pa.string()))
RECORD_SCHEMA = pa.schema(
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
"""The columns of records. ``expires_at`` is null for never; an empty ``topic`` means the name of the shard."""

SHARED_SCHEMA = pa.schema(
    [
        _required("shard", pa.string()),
        _required("shard_id", pa.int64()),
        *(RECORD_SCHEMA.field(name) for name in ("offset", "lsn", "timestamp", "append_time", "topic")),
        _required("own_topic", pa.bool_()),
        *(RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "tags", "expires_at")),
    ]
)
"""The columns of a shared file. Where ``own_topic`` is false, the record had no topic; ``topic`` names the shard."""

DICTIONARY = pa.dictionary(pa.int32(), pa.string())
WRITTEN_SCHEMA = pa.schema(
    [pa.field(field.name, DICTIONARY, False) if field.name in ("shard", "topic") else field for field in SHARED_SCHEMA]
)
"""The same columns as pyarrow's writer gets them: names and topics repeat, and need not be hashed again."""

WRITER_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["shard", "shard_id", "topic", "key", "tags.list.element", "headers.list.element.key"],
    "column_encoding": {
        "offset": "DELTA_BINARY_PACKED",
        "lsn": "DELTA_BINARY_PACKED",
        "timestamp": "DELTA_BINARY_PACKED",
        "append_time": "DELTA_BINARY_PACKED",
    },
    "write_statistics": ["shard", "shard_id", "offset", "lsn", "timestamp", "append_time", "topic", "key"],
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
