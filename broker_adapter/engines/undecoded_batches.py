"""Deliveries of batches that are not decoded before their records are read, of few records each.

Few records at once, so that a consumer that has room for a limited number gets a chance to pass them on in between, and
other tasks run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from broker_adapter.subscription import Delivery
from shards.format.batch import BatchHeader, batch_records
from shards.format.columns import Column
from shards.format.record import Gap, StoredRecord
from shards.segments.chunks import Readable

MAX_RECORDS: Final = 256
"""Most records of one delivery."""


class UndecodedBatch:
    """One batch, which is decoded once. REQUIRES: it is no gap, and none of its records can expire.

    Args:
        buffer: It has the batch.
        at: Position of the batch.
        header: Its header.
        first_offset: Records below it are left out.
        next_offset: Records from it on are left out.

    Attributes:
        first_offset: Offset of its first record that is not left out.
        next_offset: Offset after its last one.
        lsn: Its lsn.
        names_topics: Whether its records may name topics.
    """

    __slots__ = ("_at", "_buffer", "_header", "_records", "first_offset", "lsn", "names_topics", "next_offset")

    def __init__(self, buffer: Readable, at: int, header: BatchHeader, first_offset: int, next_offset: int) -> None:
        self._buffer = buffer
        self._at = at
        self._header = header
        self._records: Sequence[StoredRecord | Gap] | None = None
        self.first_offset = max(first_offset, header.base_offset)
        self.next_offset = min(next_offset, header.next_offset)
        self.lsn = header.lsn
        self.names_topics = header.columns & Column.TOPIC != 0

    def __len__(self) -> int:
        return self.next_offset - self.first_offset

    def records(self, first: int, after: int) -> Sequence[StoredRecord | Gap]:
        """Some of its records, by their numbers among those that are not left out.

        Raises:
            BatchError: It is damaged.
        """
        if self._records is None:
            self._records = batch_records(self._header, self._buffer, self._at, self.first_offset, self.next_offset)
        return self._records[first:after]


_Part = tuple[UndecodedBatch, int, int]
"""Some records of a batch: the number of the first one, and the number after the last one."""


def divided(shard: str, batches: Sequence[UndecodedBatch]) -> Iterator[Delivery]:
    """The deliveries of batches that follow one another, of at most `MAX_RECORDS` records each."""
    parts: list[_Part] = []
    room = MAX_RECORDS
    for batch in batches:
        first, count = 0, len(batch)
        while first < count:
            after = min(count, first + room)
            parts.append((batch, first, after))
            room -= after - first
            first = after
            if not room:
                yield _delivery(shard, parts)
                parts, room = [], MAX_RECORDS
    if parts:
        yield _delivery(shard, parts)


def _delivery(shard: str, parts: list[_Part]) -> Delivery:
    last, _, after = parts[-1]
    return Delivery(
        shard,
        partial(_records_of, parts),
        last.first_offset + after,
        last_lsn=last.lsn,
        names_topics=any(batch.names_topics for batch, _, _ in parts),
    )


def _records_of(parts: list[_Part]) -> list[StoredRecord | Gap]:
    records: list[StoredRecord | Gap] = []
    for batch, first, after in parts:
        records += batch.records(first, after)
    return records
