"""The columns of a table: as Arrow writes them to Parquet, and as the Delta log has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from broker_adapter.sinks.arrow_types import ARROW_TYPES
from spark_export.tables.declaration import TableDeclaration

PARTITION: Final = "date"
TIME: Final = pa.timestamp("us", tz="UTC")
STATISTICS_OF: Final = ("topic", "shard", "shard_id", "offset", "append_time")
"""Columns of which the Delta log has the smallest and the largest value in each file."""

_FRONT: Final = (
    ("topic", pa.string(), "MQTT topic of the record"),
    ("shard", pa.string(), "Name of the shard; without mapping rules it is the topic"),
    ("shard_id", pa.int64(), "Id of the shard; a shard that was deleted and created again has another one"),
    ("offset", pa.int64(), "Number of the record in its shard, from 0; unique with shard_id"),
    ("append_time", TIME, "When the server stored the record, by the server's clock"),
)
_BACK: Final = (
    ("problem", pa.string(), "Why a column of the record is null although the payload should have it; null if none is"),
    ("bad_payload", pa.binary(), "The payload of a record with a problem"),
)
_DELTA: Final[Mapping[Any, str]] = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    TIME: "timestamp",
}


def arrow_schema(declaration: TableDeclaration) -> pa.Schema:
    """The columns of the table's Parquet files: all but the partition."""
    front = [pa.field(name, kind, nullable=False) for name, kind, _ in _FRONT]
    fields = [pa.field(column, ARROW_TYPES[kind]) for column, kind in declaration.kinds.items()]
    return pa.schema([*front, *fields, *(pa.field(name, kind) for name, kind, _ in _BACK)])


def delta_schema(declaration: TableDeclaration) -> str:
    """The schema of the table as the Delta log has it: JSON."""
    comments = {name: comment for name, _, comment in (*_FRONT, *_BACK)}
    comments |= {column: f"{source}, as {declaration.kinds[column]}" for column, source in declaration.fields.items()}
    fields = [_field(PARTITION, "date", "UTC day of the append; the partition", nullable=True)]
    fields += [
        _field(each.name, _DELTA[each.type], comments[each.name], nullable=each.nullable)
        for each in arrow_schema(declaration)
    ]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _field(name: str, kind: str, comment: str, *, nullable: bool) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {"comment": comment}}
