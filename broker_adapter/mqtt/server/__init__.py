"""The processes: a broker that listens, and bridges that run alone."""

__all__: list[str] = []
