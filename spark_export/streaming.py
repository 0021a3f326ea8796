"""Reading as a stream: the reader of ``spark.readStream.format("journal")``.

`spark_export.stream_planning` decides positions and ranges; tasks read a micro-batch like a batch query. The position
of a query is only stored in its checkpoint, so a query that is killed and restarted reads exactly the same records for
a micro-batch that was planned before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_export.discovery import take_snapshot
from spark_export.options import SourceOptions
from spark_export.partitions import PartitionOfParts, read_partition
from spark_export.planning import plan_partitions
from spark_export.positions import RECORDS_LEFT, StreamPosition
from spark_export.read_history import ReadHistory
from spark_export.shard_watch import ShardWatch
from spark_export.snapshot import Snapshot
from spark_export.stream_planning import (
    changed_shards,
    end_position,
    first_position,
    next_position,
    records_behind,
    stream_ranges,
)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads appended records, micro-batch by micro-batch.

    Args:
        options: Options of the query.
        schema: The columns that Spark expects.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._watch = ShardWatch(options)
        self._target: Snapshot | None = None
        self._records_left = 0

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End after the records that exist now."""
        self._target = take_snapshot(self._options.without_search(), with_segments=False)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The position where a query without a checkpoint begins."""
        found = self._target
        if found is None or self._options.starts_at_search:
            found = take_snapshot(self._options, with_segments=False)
        if self._target is not None:
            self._target = found
        return first_position(found, self._options).encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Limit of one micro-batch, unless the trigger sets another."""
        most = self._options.max_records_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The position where the micro-batch after ``start`` ends; ``start`` itself if there is nothing new."""
        begun = StreamPosition.decode(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        seen = self._seen(begun.read_history)
        found = next_position(begun, seen, self._options, most)
        self._records_left = records_behind(found, seen)
        return start if found is begun else found.encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The ends of the shards at the last look, and how many records the micro-batch leaves up to there.

        It is only used for the query's progress: positions do not show how many records are between them.
        """
        found = self._target or self._watch.last
        return None if found is None else {**end_position(found).encode(), RECORDS_LEFT: self._records_left}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts that the tasks of a micro-batch read, where their records are stored now."""
        begun, ended = StreamPosition.decode(start), StreamPosition.decode(end)
        changed = changed_shards(begun, ended)
        if not changed:
            return []
        snapshot = self._watch.segments(changed, ended.read_history)
        ranges = stream_ranges(begun, ended, snapshot, self._options)
        planned = plan_partitions(ranges, min_partitions=self._options.min_partitions)
        return [PartitionOfParts(snapshot.store, parts) for parts in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition."""
        return read_partition(partition, self._schema, (), self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the source keeps nothing for a query."""

    def _seen(self, read: ReadHistory) -> Snapshot:
        """The present shards, compared with what was read."""
        if self._target is None:
            return self._watch.look(read)
        compared = self._target.compared_with(read)
        if compared is None:
            # The store was restored since the query ran last: only the store knows from where on records differ.
            compared = take_snapshot(self._options.without_search(), with_segments=False, read=read)
        self._target = compared
        return compared
