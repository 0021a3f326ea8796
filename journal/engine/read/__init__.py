"""Reading records: from memory, from log segments and from Parquet segments."""

__all__: list[str] = []
