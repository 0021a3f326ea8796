"""Shared files, which are Parquet files with sealed segments of many shards: writing, reading and verifying them.

In `shards`, only this package uses pyarrow and numpy; the shard's view of such a segment does not
(`shards.segments.parquet_segment`).
"""

__all__: list[str] = []
