"""What a node keeps in its ordered store: shards, cursors, state, producers, indexes."""

__all__: list[str] = []
