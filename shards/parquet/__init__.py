"""Sealed segments as Parquet files: converting log segments, reading them as batches, verifying them.

In `shards`, only this package uses pyarrow and numpy; the shard's view of such a segment does not
(`shards.segments.parquet_segment`).
"""

__all__: list[str] = []
