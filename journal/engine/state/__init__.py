"""What the engine knows of shards, producers, cursors and state: tables in memory over the views."""

__all__: list[str] = []
