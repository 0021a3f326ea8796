"""Changes of shards, cursors, state and producers: appends, other commands, transactions."""

__all__: list[str] = []
