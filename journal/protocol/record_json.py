"""The JSON form of records, for the command line and the JSON sub-protocol. Pure.

Bytes that are UTF-8 are encoded as text; others as base64, in a field with `_base64` after its name.
"""

from __future__ import annotations

from shards.format.record import StoredRecord


def record_fields(record: StoredRecord, shard: str) -> dict[str, object]:
    """All fields of a record; the topic of a record without one is its shard's name."""
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
        # msgspec encodes bytes as base64.
        return {f"{name}_base64": value}
