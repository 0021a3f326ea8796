"""From raw record batches to what readers of every engine get: records cut out, picked by key or tag, put in sequence.

Where the batches come from (a store, the journal service, the engine in this process) is the engines' business.
"""

from __future__ import annotations

from typing import Literal

from broker_adapter.results import ReadResult
from shards.format.batch import read_records
from shards.format.record import Gap, StoredRecord
from shards.position import Start


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
    records = read_records(batches, start_offset=offset, now_us=now_us)
    if isinstance(start, Start) and start.kind == "time":
        records = _from_time(records, start.value)
    return cut(records, max(offset, next_offset), max_records)


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
    found = read_records(batches, start_offset=from_offset, now_us=now_us)
    kind = b"k" if by == "key" else b"t"
    return cut([record for record in found if has_word(record, kind, word)], next_offset, None)


def newest_with_key(batches: bytes | memoryview, key: bytes, *, now_us: int) -> StoredRecord | None:
    """The last record with that key in the batches."""
    found = read_records(batches, now_us=now_us)
    return next((one for one in reversed(found) if isinstance(one, StoredRecord) and one.key == key), None)


class PushedRecords:
    """Turns the batches that a subscription is pushed into the records of its deliveries.

    Args:
        start: Where the subscription began.
        is_shared: It is a group's: its ranges need not follow one another.
    """

    def __init__(self, start: Start, *, is_shared: bool) -> None:
        self._start = start
        self._is_shared = is_shared
        self._next_offsets: dict[str, int] = {}

    def take(
        self, shard: str, batches: bytes | memoryview, first_offset: int, next_offset: int, *, now_us: int
    ) -> list[StoredRecord | Gap]:
        """Records and gaps of one push. A range that a trim took between two pushes shows as a gap."""
        records = read_records(batches, start_offset=first_offset, now_us=now_us)
        records = cut(records, next_offset, None).records
        if self._is_shared:
            return records
        expected = self._next_offsets.get(shard)
        self._next_offsets[shard] = next_offset
        if expected is not None and expected < first_offset:
            return [Gap(expected, first_offset), *records]
        if expected is None and self._start.kind == "time":
            return _from_time(records, self._start.value)
        return records


def _from_time(records: list[StoredRecord | Gap], time_us: int) -> list[StoredRecord | Gap]:
    """Skip to the first record with that timestamp or a later one, if any: what was read begins with a whole batch."""
    for at, record in enumerate(records):
        if isinstance(record, StoredRecord) and record.timestamp_us >= time_us:
            return records[at:]
    return records
