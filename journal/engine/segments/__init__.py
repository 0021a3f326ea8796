"""Files of shards: writing records from memory to them, checkpoints, retention, snapshots."""

__all__: list[str] = []
