"""What the reads of every engine return: records of the batches that they got, by offset, time, key or tag.

`shards.format.batch.read_records` decodes the batches. Where they come from is the engines' business.
"""

from __future__ import annotations

from typing import Literal

from broker_adapter.results import ReadResult
from shards.format.batch import read_records
from shards.format.record import Gap, StoredRecord
from shards.position import Start


def first_records(records: list[StoredRecord | Gap], next_offset: int, max_records: int | None) -> ReadResult:
    """The result of a read: the first ``max_records`` of what it found, and where the next read goes on.

    Args:
        records: In the order of offsets.
        next_offset: Where the next read goes on if nothing is left out.
        max_records: None keeps all.
    """
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


def read_from(
    batches: bytes | memoryview,
    start: Start | int,
    offset: int,
    next_offset: int,
    *,
    max_records: int | None,
    now_us: int,
) -> ReadResult:
    """What a read from ``start``, which was found to be ``offset``, gives of the batches that it got."""
    next_offset = max(offset, next_offset)
    records = read_records(batches, start_offset=offset, end_offset=next_offset, now_us=now_us)
    if isinstance(start, Start) and start.kind == "time":
        records = from_time(records, start.value)
    return first_records(records, next_offset, max_records)


def read_word(
    batches: bytes | memoryview,
    by: Literal["key", "tag"],
    word: bytes,
    from_offset: int,
    next_offset: int,
    *,
    now_us: int,
) -> ReadResult:
    """The records with a key or tag among those of batches that an index named."""
    found = read_records(batches, start_offset=from_offset, end_offset=next_offset, now_us=now_us)
    kind = b"k" if by == "key" else b"t"
    return ReadResult([record for record in found if has_word(record, kind, word)], next_offset)


def newest_with_key(batches: bytes | memoryview, key: bytes, *, now_us: int) -> StoredRecord | None:
    """The last record with that key in the batches."""
    found = read_records(batches, now_us=now_us)
    return next((one for one in reversed(found) if isinstance(one, StoredRecord) and one.key == key), None)


def from_time(records: list[StoredRecord | Gap], time_us: int) -> list[StoredRecord | Gap]:
    """Skip to the first record with that timestamp or a later one, if any: what was read begins with a whole batch."""
    for at, record in enumerate(records):
        if isinstance(record, StoredRecord) and record.timestamp_us >= time_us:
            return records[at:]
    return records
