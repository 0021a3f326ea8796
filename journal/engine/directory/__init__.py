"""The data directory as a whole: whose it is, what locks it, what it remembers of restores."""

__all__: list[str] = []
