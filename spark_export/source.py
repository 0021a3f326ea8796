"""The data source `journal` for Spark: ``spark.read.format("journal").option("path", ...).load()``.

Spark finds it by itself through the top-level module `pyspark_journal`. This module has the classes that Spark calls;
options, snapshot, planning and reading are in other modules, and so is reading as a stream.

A loaded data frame is a snapshot, taken at its first action: Spark plans its source once. With the option
`filterPushdown` that plan contains the filters of the query that came first, and Spark (seen in 4.3) uses it for all
later queries of the same frame: wrong rows, without an error. So load a separate frame for each query then; the option
is off by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_export.conditions import Condition, from_filters
from spark_export.discovery import take_snapshot
from spark_export.options import SourceOptions, parse_options
from spark_export.partitions import PartitionOfParts, read_partition
from spark_export.planning import batch_ranges, plan_partitions
from spark_export.record_columns import SPARK_SCHEMA, check_schema
from spark_export.streaming import JournalStreamReader


class JournalDataSource(DataSource):
    """Records of a journal, from its server, its data directory or a tree of its sealed segments."""

    @classmethod
    def name(cls) -> str:
        return "journal"

    def schema(self) -> StructType:
        # Called by load(): errors in options are reported there, not when the query runs.
        parse_options(self.options)
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, "batch")
        check_schema(schema)
        return JournalFilteringReader(options, schema) if options.filter_pushdown else JournalReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = parse_options(self.options, "stream")
        check_schema(schema)
        return JournalStreamReader(options, schema)


class JournalReader(DataSourceReader):
    """Reads a consistent snapshot, taken when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._conditions: tuple[Condition, ...] = ()

    def partitions(self) -> list[InputPartition]:
        snapshot = take_snapshot(self._options)
        planned = plan_partitions(
            batch_ranges(snapshot, self._options), self._conditions, min_partitions=self._options.min_partitions
        )
        return [PartitionOfParts(snapshot.store, parts) for parts in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self._schema, self._conditions, self._options)


class JournalFilteringReader(JournalReader):
    """A reader that accepts filters on offset, timestamp, append_time, topic and shard from Spark.

    It is a separate class, because Spark refuses a reader that accepts filters unless its setting
    ``spark.sql.python.filterPushdown.enabled`` is on.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        conditions, others = from_filters(filters)
        self._conditions = tuple(conditions)
        return others
