"""What clients know, what is read back from the store, and whether the two agree."""

__all__: list[str] = []
