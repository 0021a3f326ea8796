"""The log of a store that several servers share: reading it, owning it, and writing commit groups to it."""

__all__: list[str] = []
