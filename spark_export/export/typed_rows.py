"""Typed rows of an export: columns with sources and types, as a bridge to files writes them.

The rows are made in Python (`spark_export.typed_fields`), so a field is the same in a bridge and in an export. A record
whose payload lacks a value, or has one of another type, is no error: its column is null, and two more columns say why
and hold the payload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker_adapter.sinks.column_types import ColumnType
from shards.format.record import StoredRecord
from spark_export.export.options import ExportOptions
from spark_export.export.rows import DIRECTORY_COLUMNS, add_directories, without_zones
from spark_export.typed_fields import TypedFields, types_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEPT: Final = ("shard", "offset", "append_time")
_SPARK_TYPES: Final[Mapping[ColumnType, str]] = {
    ColumnType.TEXT: "string",
    ColumnType.JSON: "string",
    ColumnType.BINARY: "binary",
    ColumnType.INT: "long",
    ColumnType.FLOAT: "double",
    ColumnType.BOOL: "boolean",
    ColumnType.TIMESTAMP: "long",
}


def typed(records: DataFrame, options: ExportOptions) -> DataFrame:
    """The records as rows of the export's fields; see `ExportOptions.fields`."""
    from pyspark.sql import functions

    kinds = types_of(options.fields, options.types)
    # Times are numbers on their way, since Python's would depend on the zone of a process.
    made = [f"`{column}` {_SPARK_TYPES[kind]}" for column, kind in kinds.items()]
    schema = f"struct<{', '.join(made)}, problem string, bad_payload binary>"
    row_of = functions.udf(_Conversion(options.fields, kinds), schema, useArrow=False)
    given = [functions.expr("unix_micros(append_time)"), functions.expr("unix_micros(timestamp)")]
    row = row_of("offset", "topic", "key", "value", "headers", *given)
    directories = [DIRECTORY_COLUMNS[one] for one in options.partition_by] if options.format != "jdbc" else []
    rows = add_directories(records, options) if directories else records
    rows = rows.select(*_KEPT, row.alias("made"), *directories).select(*_KEPT, "made.*", *directories)
    times = [column for column, kind in kinds.items() if kind is ColumnType.TIMESTAMP]
    rows = rows.withColumns({column: functions.timestamp_micros(f"`{column}`") for column in times})
    if options.format == "jdbc":
        return without_zones(rows, ("append_time", *times))
    if options.format in ("csv", "json"):
        bytes_of = [column for column, kind in kinds.items() if kind is ColumnType.BINARY]
        return rows.withColumns({name: functions.base64(f"`{name}`") for name in (*bytes_of, "bad_payload")})
    return rows


class _Conversion:
    """Makes the fields of a record; sent to the processes of Spark's tasks.

    Args:
        fields: Source by column.
        kinds: Type by column.
    """

    def __init__(self, fields: Mapping[str, str], kinds: Mapping[str, ColumnType]) -> None:
        self._fields = dict(fields)
        self._kinds = dict(kinds)
        # Made in the task: they consist of functions, which cannot be sent.
        self._typed: TypedFields | None = None

    def __call__(
        self,
        offset: int,
        topic: str,
        key: bytes,
        value: bytes,
        headers: Sequence[tuple[str, bytes]],
        append_time_us: int,
        timestamp_us: int,
    ) -> tuple[Any, ...]:
        if self._typed is None:
            self._typed = TypedFields(self._fields, self._kinds)
        pairs = tuple((name, bytes(content)) for name, content in headers)
        record = StoredRecord(offset, 0, append_time_us, bytes(value), bytes(key), topic, timestamp_us, pairs)
        made, problem = self._typed.convert(record)
        return *made, problem or None, record.value if problem else None
