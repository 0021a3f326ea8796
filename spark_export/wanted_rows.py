"""Rows that a query wants, made of the records of one shard as they are stored. Needs Arrow, and no Spark.

The column `topic` has the usual meaning: a record's own topic, or the name of its shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shards.parquet.schema import RECORD_SCHEMA as STORED
from shards.seams.clock import SystemClock
from spark_export.conditions import Condition
from spark_export.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROWS: Final = pa.schema(
    [
        STORED.field("topic"),
        pa.field("shard", pa.string(), nullable=False),
        *(STORED.field(name) for name in ("offset", "timestamp", "append_time", "key", "value", "headers", "tags")),
    ]
)
"""All columns, none of which is ever null; Spark's schema of them is `spark_export.record_columns.SPARK_SCHEMA`."""


@attrs.frozen(slots=True)
class Wanted:
    """The rows that a query wants.

    Attributes:
        schema: Arrow schema of the rows.
        conditions: All of them hold for every returned row.
        options: Which topics are wanted.
    """

    schema: Any
    conditions: tuple[Condition, ...]
    options: SourceOptions

    @classmethod
    def of(cls, schema: StructType, conditions: Sequence[Condition], options: SourceOptions) -> Wanted:
        """The wanted rows when Spark expects these columns."""
        # Imported late: what reads records without Spark needs no PySpark.
        from pyspark.sql.pandas.types import to_arrow_schema

        return cls(to_arrow_schema(schema, timezone="UTC"), tuple(conditions), options)

    @classmethod
    def of_columns(cls, columns: Sequence[str], options: SourceOptions) -> Wanted:
        """The wanted rows with some of the columns of `ROWS`."""
        return cls(pa.schema([ROWS.field(name) for name in columns]), (), options)

    @property
    def stored_columns(self) -> list[str]:
        """The columns that have to be read, except the topic: see `needs_topic`."""
        named = {*self.schema.names, *(one.column for one in self.conditions)}
        if self.options.as_queue:
            named.add("expires_at")
        return [name for name in STORED.names if name in named and name != "topic"]

    def rows(self, records: pa.RecordBatch, shard: str) -> pa.RecordBatch:
        """Rows of those records that the query wants.

        Args:
            records: Records of one shard, with at least the `stored_columns` and ``topic``, typed as `STORED`.
            shard: Its name.
        """
        records, topics = self._chosen(records, shard)
        columns = []
        for field in self.schema:
            if field.name == "shard":
                column = pa.repeat(pa.scalar(shard, pa.string()), records.num_rows)
            elif field.name == "topic":
                column = topics
            else:
                column = records.column(field.name)
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _chosen(self, records: pa.RecordBatch, shard: str) -> tuple[pa.RecordBatch, pa.Array]:
        own = records.column("topic")
        if _all_empty(own):
            topics = pa.repeat(pa.scalar(shard, pa.string()), records.num_rows)
            masks = [] if self.options.wants_topic(shard) else [pa.repeat(pa.scalar(False), records.num_rows)]
        else:
            topics = pc.if_else(pc.equal(own, ""), shard, own)
            there = topics.dictionary_encode()
            wanted = np.array([self.options.wants_topic(topic) for topic in there.dictionary.to_pylist()], bool)
            masks = [] if wanted.all() else [pa.array(wanted[there.indices.to_numpy()])]
        for one in self.conditions:
            if one.column == "shard":
                masks += [] if one.holds(shard) else [pa.repeat(pa.scalar(False), records.num_rows)]
            else:
                masks.append(one.mask(topics if one.column == "topic" else records.column(one.column)))
        if self.options.as_queue:
            masks.append(_unexpired(records.column("expires_at")))
        if not masks:
            return records, topics
        mask = masks[0]
        for other in masks[1:]:
            mask = pc.and_(mask, other)
        return records.filter(mask), topics.filter(mask)


def _unexpired(expiries: pa.Array) -> pa.Array:
    """Which records have not expired yet, as for a consumer: null means never."""
    now = pa.scalar(SystemClock().now_us(), expiries.type)
    return pc.fill_null(pc.greater(expiries, now), True)


def _all_empty(texts: pa.Array) -> bool:
    offsets = np.frombuffer(texts.buffers()[1] or b"", np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return not len(texts) or bool(offsets[0] == offsets[-1])
