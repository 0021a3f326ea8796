"""Shards' files: moving records from the write-ahead log into them, checkpoints, retention, snapshots."""
