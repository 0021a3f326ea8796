"""Rules that hold at all brokers of a store: what they are, where they lie, how brokers follow them."""

__all__: list[str] = []
