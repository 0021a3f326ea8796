"""The write-ahead log: its files and entries, writing and syncing them in groups, and reading them at a start."""

__all__: list[str] = []
