"""The clients of all brokers of a store, for administrators: lists of them, and ending their connections."""

__all__: list[str] = []
