"""History in Spark: a data source for reading shards, a plain scan of sealed segments, and exports.

The data source is used by its name, ``journal``; exports are in `spark_export.export`.
"""

from spark_export.sealed_table import read_sealed

__all__ = ["read_sealed"]
