"""The bans of all brokers of a store: stored there, changed by compare-and-set, and followed by every broker."""

__all__: list[str] = []
