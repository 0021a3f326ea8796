"""The columns of the data source, and conversion of the records of one shard to rows.

The column `topic` has the usual meaning: a record's own topic, or the name of its shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shards.parquet.schema import SCHEMA as STORED
from shards.seams.clock import SystemClock
from spark_export.conditions import Condition
from spark_export.errors import OptionError
from spark_export.options import SourceOptions

_HEADER = StructType([StructField("key", StringType(), False), StructField("value", BinaryType(), False)])
_TYPES: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "shard": StringType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "append_time": TimestampType(),
    "key": BinaryType(),
    "value": BinaryType(),
    "headers": ArrayType(_HEADER, False),
    "tags": ArrayType(StringType(), False),
}

SPARK_SCHEMA: Final = StructType([StructField(name, kind, False) for name, kind in _TYPES.items()])
"""All columns, none of which is ever null."""


def check_schema(schema: StructType) -> None:
    """Check that the data source has the columns of a schema.

    Raises:
        OptionError: It does not; the message has the column, the requested type and the type that it has.
    """
    for field in schema.fields:
        there = _TYPES.get(field.name)
        if there is None:
            raise OptionError(f"the schema asks for a column {field.name!r}; there are: {', '.join(_TYPES)}")
        if _plain(field.dataType) != _plain(there):
            raise OptionError(
                f"the schema asks for column {field.name!r} as {field.dataType.simpleString()}, it is "
                f"{there.simpleString()}: ask for that and cast it in the query"
            )


def _plain(kind: DataType) -> str:
    """A type without its nullability, which may differ in a user's schema."""
    return kind.simpleString()


@attrs.frozen(slots=True)
class Wanted:
    """The rows that a query wants.

    Attributes:
        schema: Arrow schema of the rows, exactly as Spark expects it.
        conditions: All of them hold for every returned row.
        options: Which topics are wanted.
    """

    schema: Any
    conditions: tuple[Condition, ...]
    options: SourceOptions

    @classmethod
    def of(cls, schema: StructType, conditions: Sequence[Condition], options: SourceOptions) -> Wanted:
        """The wanted rows when Spark expects these columns."""
        return cls(to_arrow_schema(schema, timezone="UTC"), tuple(conditions), options)

    @property
    def stored_columns(self) -> list[str]:
        """The columns that have to be read, except the topic: see `needs_topic`."""
        named = {*self.schema.names, *(one.column for one in self.conditions)}
        if self.options.as_queue:
            named.add("expires_at")
        return [name for name in STORED.names if name in named and name != "topic"]

    def shows_shard_topic(self, shard: str) -> bool:
        """Whether records without a topic of their own are wanted."""
        return self.options.wants_topic(shard) and all(
            one.holds(shard) for one in self.conditions if one.column == "topic"
        )

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
