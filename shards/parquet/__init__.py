"""Sealed segments as Parquet files: written from log segments, read back as batches, checked.

What needs pyarrow and numpy lives here and nowhere else in `shards`; the segment as the shard sees it does not
(`shards.segments.parquet_segment`).
"""

__all__: list[str] = []
