"""Converting closed segments to Parquet, in a process of its own."""

__all__: list[str] = []
