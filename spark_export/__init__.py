"""History in Spark and DuckDB: a data source for reading shards, a plain scan of sealed segments, and exports.

The data source is used by its name, ``journal``; exports are in `spark_export.export`.
"""

from spark_export.records_table import connect_duckdb, read_records
from spark_export.sealed_table import read_sealed

__all__ = ["connect_duckdb", "read_records", "read_sealed"]
