"""The processes: a broker with its listeners, and bridges without a broker."""

__all__: list[str] = []
