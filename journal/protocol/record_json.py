"""The JSON form of records, one for every way out: the command line's lines, the JSON sub-protocol. Pure.

Bytes are text where they are UTF-8; else they are base64, under the field's name with `_base64` behind it.
"""

from __future__ import annotations

from shards.format.record import StoredRecord


def record_fields(record: StoredRecord, shard: str) -> dict[str, object]:
    """All fields of a record; one without a topic of its own shows its shard's name."""
    fields: dict[str, object] = {
        "offset": record.offset,
        "lsn": record.lsn,
        "append_time_us": record.append_time_us,
        "timestamp_us": record.timestamp_us,
        "topic": record.topic or shard,
    }
    fields.update(bytes_field("key", record.key))
    fields.update(bytes_field("value", record.value))
    fields["headers"] = [{"name": name, **bytes_field("value", value)} for name, value in record.headers]
    fields["tags"] = list(record.tags)
    fields["expires_at_us"] = record.expires_at_us
    return fields


def bytes_field(name: str, value: bytes) -> dict[str, object]:
    """One field of bytes."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        # msgspec writes bytes as base64.
        return {f"{name}_base64": value}
