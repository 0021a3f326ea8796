"""The write-ahead log: its files and entries, group commit, and recovery at a start."""

__all__: list[str] = []
