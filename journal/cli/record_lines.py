"""Records as lines of output: payloads unchanged, or one JSON object for each record. Pure; no input or output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from journal.protocol.record_json import record_fields
from shards.format.record import Gap, StoredRecord


def payload_lines(_shard: str, records: Iterable[StoredRecord]) -> Iterator[bytes]:
    """One payload a line, byte for byte. A payload with line breaks takes several lines; in JSON it does not."""
    return (record.value for record in records)


def topic_lines(shard: str, records: Iterable[StoredRecord]) -> Iterator[bytes]:
    """`topic payload` a line; the topic of a record without one is its shard's name."""
    return (f"{record.topic or shard} ".encode() + record.value for record in records)


def json_lines(shard: str, records: Iterable[StoredRecord | Gap]) -> Iterator[bytes]:
    """One JSON object a line, whole records; a lost range is `{"shard": ..., "gap": [first, next]}`."""
    for record in records:
        if isinstance(record, Gap):
            yield msgspec.json.encode({"shard": shard, "gap": [record.first_offset, record.next_offset]})
        else:
            yield msgspec.json.encode({"shard": shard, **record_fields(record, shard)})


def gap_note(shard: str, gap: Gap) -> str:
    """The message about a lost range."""
    most = gap.next_offset - gap.first_offset
    return (
        f"{shard}: offsets {gap.first_offset} to {gap.next_offset - 1} have no records: those that were in memory only "
        f"are lost, at most {most:,} (offsets are reserved ahead of their use)"
    )
