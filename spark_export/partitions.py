"""The partitions of the data source: what one task of Spark reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_export.conditions import Condition
from spark_export.options import SourceOptions
from spark_export.planning import Part
from spark_export.reading import read_parts
from spark_export.snapshot import Store
from spark_export.wanted_rows import Wanted


class PartitionOfParts(InputPartition):
    """The parts that one task reads, and the store."""

    def __init__(self, store: Store, parts: Sequence[Part]) -> None:
        self.store = store
        self.parts = tuple(parts)


def read_partition(
    partition: InputPartition, schema: StructType, conditions: Sequence[Condition], options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition.

    Raises:
        DataLossError: Records are gone, and the query makes that an error.
        UnreadableError: A file is damaged, or the server cannot be reached.
    """
    if isinstance(partition, PartitionOfParts):
        # For an empty plan Spark makes a partition of its own class.
        yield from read_parts(partition.store, partition.parts, Wanted.of(schema, conditions, options))
