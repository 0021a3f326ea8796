"""A small tree of sealed segments, as a data directory has them under `sealed/`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shards.parquet.schema import SCHEMA
from shards.segment_paths import sealed_path

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def write_segment(
    directory: Path, shard: str, shard_id: int, base_offset: int, values: Sequence[bytes], *, topic: str = ""
) -> Path:
    """One Parquet segment with a record a second from `BEGAN` plus its offset on; returns its path."""
    path = Path(sealed_path(str(directory / "sealed"), shard, shard_id, base_offset, base_offset + len(values)))
    path.parent.mkdir(parents=True, exist_ok=True)
    offsets = range(base_offset, base_offset + len(values))
    times = [BEGAN + timedelta(seconds=offset) for offset in offsets]
    columns = {
        "offset": offsets,
        "lsn": [offset + 1 for offset in offsets],
        "timestamp": times,
        "append_time": times,
        "topic": [topic] * len(values),
        "key": [b"key"] * len(values),
        "value": list(values),
        "headers": [[{"key": "unit", "value": b"C"}]] * len(values),
        "tags": [["raw"]] * len(values),
        "expires_at": [None] * len(values),
    }
    table = pa.table({name: pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names}, SCHEMA)
    metadata = {"journal.format": "1", "journal.shard": shard, "journal.shard_id": str(shard_id)}
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path
