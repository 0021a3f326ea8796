"""The messages that clients recorded, those read back from the store, and the comparison."""

__all__: list[str] = []
