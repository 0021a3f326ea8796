"""Storage formats and views: record batches, segments, shards, cursors, state. No network, no event loop."""

__all__: list[str] = []
