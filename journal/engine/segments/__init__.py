"""Shards' files: moving records from the write-ahead log into them, checkpoints, retention, snapshots."""

__all__: list[str] = []
