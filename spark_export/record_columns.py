"""The columns of the data source, as Spark's types."""

from __future__ import annotations

from typing import Final

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

from spark_export.errors import OptionError

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
