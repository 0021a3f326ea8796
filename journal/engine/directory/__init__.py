"""The data directory as a whole: its identity, its locks, and the record of its restores from backups."""

__all__: list[str] = []
