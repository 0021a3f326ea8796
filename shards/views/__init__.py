"""The data of a node in its ordered store: shards, cursors, state, producers, indexes."""

__all__: list[str] = []
