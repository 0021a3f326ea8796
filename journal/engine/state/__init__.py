"""State of shards, producers, cursors and keys: tables in memory over the views."""

__all__: list[str] = []
