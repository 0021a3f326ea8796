"""What readers on every engine do to the records of whole batches: cut a range out, keep those with a key or tag."""

from __future__ import annotations

from broker_adapter.adapter import ReadResult
from shards.record import Gap, StoredRecord


def cut(records: list[StoredRecord | Gap], next_offset: int, max_records: int | None) -> ReadResult:
    """Keep what lies below ``next_offset``, and at most ``max_records`` of it.

    Args:
        records: In offset order.
        next_offset: Where a reader goes on if nothing is left out.
        max_records: None keeps all.
    """
    while records and isinstance(last := records[-1], StoredRecord) and last.offset >= next_offset:
        records.pop()
    if max_records is None or len(records) <= max_records:
        return ReadResult(records, next_offset)
    following = records[max_records]
    at = following.offset if isinstance(following, StoredRecord) else following.first_offset
    return ReadResult(records[:max_records], at)


def has_word(record: StoredRecord | Gap, kind: bytes, word: bytes) -> bool:
    """Whether a record has a key (kind ``b"k"``) or a tag (``b"t"``, the word in UTF-8)."""
    if isinstance(record, Gap):
        return False
    return record.key == word if kind == b"k" else word.decode(errors="replace") in record.tags
