"""Reads a few records in the driver: then Spark starts no Python processes for them, which takes seconds.

Each of these processes would import PySpark and pyarrow: one to find the data source, one to plan it and one per task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from spark_export.options import SourceOptions
from spark_export.planning import Part, weight_bytes
from spark_export.snapshot import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_BYTES: Final = 16 << 20
"""Larger amounts are read by tasks: they work in parallel, and the driver would have to hold the records in memory."""
_MOST_ROW_BYTES: Final = 4 * MOST_BYTES


def driver_rows(spark: SparkSession, store: Store, parts: Sequence[Part], options: SourceOptions) -> DataFrame | None:
    """The records of parts, read now in the driver; None if there are too many.

    Args:
        spark: The session.
        store: Where they are stored.
        parts: What to read.
        options: Which topics are wanted, and whether a loss is an error.

    Raises:
        DataLossError: Records are gone, and the options make that an error.
        UnreadableError: A file is damaged, or the server cannot be reached.
    """
    if weight_bytes(parts) > MOST_BYTES:
        return None
    import pyarrow as pa

    from spark_export.reading import read_parts
    from spark_export.record_columns import SPARK_SCHEMA
    from spark_export.wanted_rows import Wanted

    wanted = Wanted.of(SPARK_SCHEMA, (), options)
    # At least one batch, or Spark treats the table as one without columns.
    batches = [pa.RecordBatch.from_pylist([], wanted.schema)]
    size_bytes = 0
    for batch in read_parts(store, parts, wanted):
        # Compressed batches may be much larger than their segment.
        size_bytes += batch.nbytes
        if size_bytes > _MOST_ROW_BYTES:
            return None
        batches.append(batch)
    return spark.createDataFrame(pa.Table.from_batches(batches, wanted.schema), SPARK_SCHEMA)
