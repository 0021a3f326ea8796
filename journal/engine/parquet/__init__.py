"""Converting closed segments to Parquet, in a separate process."""

__all__: list[str] = []
