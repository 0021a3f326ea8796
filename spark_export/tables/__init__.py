"""Typed tables: records of some topics as a Delta table with declared columns, kept up to date, each record once.

It needs pyarrow and deltalake, and no Spark.
"""

__all__: list[str] = []
