"""Reading a few records in the driver: then Spark starts no Python processes for them, which takes seconds.

Those would each import PySpark and pyarrow: one to find the data source, one to plan it and one for each task.
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
"""What weighs more is read by tasks: they work side by side, and the driver has to hold what it reads."""
_MOST_ROW_BYTES: Final = 4 * MOST_BYTES


def driver_rows(spark: SparkSession, store: Store, parts: Sequence[Part], options: SourceOptions) -> DataFrame | None:
    """The records of parts, read now and here; None if these are too many for that.

    Args:
        spark: The session.
        store: Where they lie.
        parts: What to read.
        options: Which topics are wanted, and whether a loss is an error.

    Raises:
        DataLossError: Records are gone and that is to be an error.
        UnreadableError: A file is damaged, or the server is out of reach.
    """
    if weight_bytes(parts) > MOST_BYTES:
        return None
    import pyarrow as pa

    from spark_export.reading import read_parts
    from spark_export.record_columns import SPARK_SCHEMA, Wanted

    wanted = Wanted.of(SPARK_SCHEMA, (), options)
    # One batch at least, or Spark takes the table for one without columns.
    batches = [pa.RecordBatch.from_pylist([], wanted.schema)]
    size_bytes = 0
    for batch in read_parts(store, parts, wanted):
        # Compressed batches may be far larger than their segment is.
        size_bytes += batch.nbytes
        if size_bytes > _MOST_ROW_BYTES:
            return None
        batches.append(batch)
    return spark.createDataFrame(pa.Table.from_batches(batches, wanted.schema), SPARK_SCHEMA)
