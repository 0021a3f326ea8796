"""Reading records: from memory, from log segments and from Parquet segments."""
