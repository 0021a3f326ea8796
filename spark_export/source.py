"""The data source `journal` for Spark: ``spark.read.format("journal").option("path", ...).load()``.

Spark finds it by itself through the top-level module `pyspark_journal`. This module is what Spark calls; options,
snapshot, planning and reading have modules of their own beside it, and so has reading as a stream.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_export.conditions import Condition, from_filters
from spark_export.options import SourceOptions, parse_options
from spark_export.partition import PartitionOfParts, read_partition
from spark_export.planning import batch_ranges, plan_partitions
from spark_export.record_columns import SPARK_SCHEMA, check_schema
from spark_export.snapshot import take_snapshot
from spark_export.streaming import JournalStreamReader

_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class JournalDataSource(DataSource):
    """Records of a journal, from its server, its data directory or a tree of its sealed segments."""

    @classmethod
    def name(cls) -> str:
        return "journal"

    def schema(self) -> StructType:
        # Called by load(): what is wrong with an option is said there, not when the query runs.
        parse_options(self.options)
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, "batch")
        check_schema(schema)
        takes_filters = options.filter_pushdown
        if takes_filters is None:
            # A reader that takes filters is refused unless spark.sql.python.filterPushdown.enabled is set. Only then
            # does Spark ask for a reader in this kind of worker.
            takes_filters = _PUSHDOWN_WORKER in sys.modules
        return JournalFilteringReader(options, schema) if takes_filters else JournalReader(options, schema)

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
    """The same, taking filters on offset, timestamp, append_time, topic and shard from Spark.

    A class of its own, because Spark refuses a reader that would take filters unless it is set to hand them over.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        conditions, others = from_filters(filters)
        self._conditions = tuple(conditions)
        return others
