"""The columns of the Delta table: those of a shared file, with a comment each, and the day as the partition."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pyarrow as pa

from shards.parquet.schema import SHARED_SCHEMA

COMMENTS: Final = {
    "date": "UTC day of the append; the partition",
    "shard": "Name of the shard; without mapping rules it is the MQTT topic",
    "shard_id": "Id of the shard; a shard that was deleted and created again has another one",
    "offset": "Number of the record in its shard, from 0; unique with shard_id",
    "lsn": "Position of the record's batch in the order of all writes of the node",
    "timestamp": "When the record was made, by its producer's clock",
    "append_time": "When the server stored the record, by the server's clock",
    "topic": "MQTT topic of the record; the name of the shard if it has none of its own",
    "own_topic": "Whether the record was stored with its topic; if not, topic is the name of the shard",
    "key": "Key of the record, empty for none",
    "value": "Payload",
    "headers": "Headers, such as MQTT user properties, in their order",
    "tags": "Tags of the record",
    "expires_at": "When the record expires; null for never",
}

_PRIMITIVES: Final = {
    "string": "string",
    "binary": "binary",
    "int64": "long",
    "bool": "boolean",
    "timestamp[us, tz=UTC]": "timestamp",
}


def table_schema() -> str:
    """Return the schema of the table as the Delta log has it: JSON."""
    fields = [
        {"name": "date", "type": "date", "nullable": True, "metadata": {"comment": COMMENTS["date"]}},
        *(_field(field, {"comment": COMMENTS[field.name]}) for field in SHARED_SCHEMA),
    ]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def _field(field: Any, metadata: dict[str, str]) -> dict[str, Any]:
    return {"name": field.name, "type": _type(field.type), "nullable": field.nullable, "metadata": metadata}


def _type(arrow_type: Any) -> str | dict[str, Any]:
    if pa.types.is_list(arrow_type):
        element = arrow_type.value_field
        return {"type": "array", "elementType": _type(element.type), "containsNull": element.nullable}
    if pa.types.is_struct(arrow_type):
        return {"type": "struct", "fields": [_field(field, {}) for field in arrow_type]}
    return _PRIMITIVES[str(arrow_type)]
