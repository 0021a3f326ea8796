"""Rules that are the same at all brokers of a store: their form, where they are stored, how brokers follow changes."""

__all__: list[str] = []
