"""Commands that change shards, cursors and state: appends, transactions, settings."""

__all__: list[str] = []
