"""Where Spark finds the data source `journal`: it imports every top-level module called ``pyspark_...``."""

from spark_export.source import JournalDataSource as DefaultSource

__all__ = ["DefaultSource"]
