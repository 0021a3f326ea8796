"""One shard over an `OrderedStore`: place batches, find and read them, say what retention and trims take.

No waiting, no flushing and no names here: every method returns at once, and changes are put into a `Mutations` that the
caller writes. `broker_adapter.engines.key_layout` says how the bytes lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from broker_adapter.engines.key_layout import (
    NUMBER,
    CatalogueEntry,
    Placement,
    batch_key,
    index_key,
    index_prefix,
    placement_key,
    placement_prefix,
)
from broker_adapter.engines.selection import cut, has_word
from broker_adapter.results import ReadResult, StoredBatches
from shards.errors import CorruptionError, IndexMissingError, OffsetOutOfRangeError
from shards.format import batch as batches
from shards.format.record import Gap, StoredRecord
from shards.model import SegmentInfo, SegmentKind, ShardConfig, ShardInfo
from shards.position import Start
from shards.seams.store import Family, Mutations, OrderedStore
from shards.topics.publish_epochs import PublishEpoch

_RESERVED_AHEAD = 1 << 14
"""Offsets that one durable reservation covers for appends in memory mode."""


class StoredShard:
    """The state of one open shard.

    Attributes:
        next_offset: Offset that the next record will get.
        visible_offset: Readers see records below it. It lags behind ``next_offset`` while batches wait for a flush.
        era: When it published last, see `shards.topics.publish_epochs`.
    """

    def __init__(self, store: OrderedStore, name: str, entry: CatalogueEntry) -> None:
        self.name = name
        self.deleted = False
        self.era: PublishEpoch[StoredShard] | None = None
        self._store = store
        self._entry = entry
        last = next(self._placements(reverse=True), None)
        first = next(self._placements(), None)
        self._total_bytes = last.total_bytes if last else 0
        self._dropped_bytes = first.total_bytes - first.size_bytes if first else 0
        self._last_lsn = last.lsn if last else entry.last_lsn
        # Reserved offsets may have been given out and lost with the node; they are never given out again.
        self.next_offset = max(entry.start_offset, entry.reserved_offset, last.next_offset if last else 0)
        self.visible_offset = self.next_offset
        held_end = max(entry.start_offset, last.next_offset if last else 0)
        self._gaps = tuple(gap for gap in entry.gaps if entry.start_offset < gap[1] <= held_end)
        if self.next_offset > held_end:
            self._gaps += ((held_end, self.next_offset),)

    # What is known of the shard

    @property
    def shard_id(self) -> int:
        """Number of the shard in its store."""
        return self._entry.shard_id

    @property
    def config(self) -> ShardConfig:
        """Its present configuration."""
        return self._entry.config

    @property
    def start_offset(self) -> int:
        """First offset that is still there."""
        return self._entry.start_offset

    @property
    def last_lsn(self) -> int:
        """The lsn of its newest batch, visible or not; 0 if it never had one."""
        return self._last_lsn

    def info(self, *, kind: SegmentKind | None = None) -> ShardInfo:
        """The shard as clients see it; with its one segment when a kind is given."""
        entry = self._entry
        return ShardInfo(
            self.name,
            entry.shard_id,
            entry.config,
            entry.created_us,
            entry.start_offset,
            self.visible_offset,
            self._last_lsn,
            self._total_bytes - self._dropped_bytes,
            () if kind is None else tuple(self._segments(kind)),
            record_count=self._records_between(self.start_offset, self.visible_offset),
        )

    def _segments(self, kind: SegmentKind) -> Iterator[SegmentInfo]:
        """One for each range without a gap."""
        first = self.start_offset
        for gap_first, gap_end in (*self._gaps, (self.visible_offset, self.visible_offset)):
            end = min(gap_first, self.visible_offset)
            if first < end:
                size_bytes = self._bytes_before(end) - self._bytes_before(first)
                yield SegmentInfo(kind, first, end, size_bytes, self._entry.created_us, sealed=False)
            first = max(first, gap_end)

    def _bytes_before(self, offset: int) -> int:
        """Bytes of all batches ever appended that begin below an offset, without the one that holds it."""
        placement = next(self._placements(offset), None)
        return self._total_bytes if placement is None else placement.total_bytes - placement.size_bytes

    def _records_between(self, first: int, end: int) -> int:
        lost_count = sum(max(0, min(end, gap_end) - max(first, gap_first)) for gap_first, gap_end in self._gaps)
        return max(0, end - first) - lost_count

    def change(self, mutations: Mutations, **changes: Any) -> None:
        """Change fields of the catalogue entry."""
        self._entry = attrs.evolve(self._entry, **changes)
        mutations.put(Family.CATALOGUE, self.name.encode(), self._entry.encode())

    def configure(self, mutations: Mutations, **settings: Any) -> None:
        """Change settings of its configuration."""
        self.change(mutations, config=attrs.evolve(self.config, **settings))

    # Writing

    def append(self, mutations: Mutations, batch: bytes, lsn: int, append_time_us: int) -> int:
        """Place a batch at the end and index it; return its base offset.

        Raises:
            BatchError: Its key or tag column, which the shard's indexes need, is damaged. Nothing has changed then.
        """
        words = list(self._index_words(batch))
        header = batches.BatchHeader.unpack(batch)
        base_offset = self.next_offset
        stamped = bytearray(batch)
        batches.stamp(stamped, 0, base_offset, lsn, append_time_us)
        placement = Placement(
            base_offset,
            len(stamped),
            header.record_count,
            lsn,
            append_time_us,
            header.max_timestamp_us,
            self._total_bytes + len(stamped),
        )
        mutations.put(Family.SEGMENTS, batch_key(self.shard_id, base_offset), bytes(stamped))
        mutations.put(Family.SEGMENTS, placement_key(self.shard_id, base_offset), placement.encode())
        for kind, word in words:
            mutations.put(Family.KEY_INDEX, index_key(self.shard_id, kind, word, base_offset), b"")
        if self._gaps != self._entry.gaps:
            # Behind this batch nothing tells any more that the offsets before it have no records.
            self.change(mutations, gaps=self._gaps)
        self.next_offset = placement.next_offset
        self._total_bytes = placement.total_bytes
        self._last_lsn = lsn
        return base_offset

    def reserve(self, mutations: Mutations) -> bool:
        """Cover the offsets given out in memory mode by a reservation; return whether a new one must be flushed."""
        if self.next_offset <= self._entry.reserved_offset:
            return False
        self.change(mutations, reserved_offset=self.next_offset + _RESERVED_AHEAD)
        return True

    def release_reservation(self, mutations: Mutations) -> None:
        """Forget the reservation: everything given out so far will be durable together with this."""
        if self._entry.reserved_offset:
            self.change(mutations, reserved_offset=0)

    def drop_below(self, mutations: Mutations, before_offset: int, *, limit: int) -> bool:
        """Move the start up to an offset and drop whole batches below it; return whether some are left to drop."""
        if before_offset > self.start_offset:
            self.change(mutations, start_offset=before_offset, last_lsn=self._last_lsn)
        for count, placement in enumerate(self._placements()):
            if placement.next_offset > before_offset:
                return False
            if count == limit:
                return True
            self._drop(mutations, placement)
        return False

    def retained_from(self, now_us: int) -> int:
        """The offset from which retention keeps records: whole batches go, oldest first, while a bound is passed.

        The rule is that of `shards.segments.retention.due` with batches in place of segments, asked of the oldest
        batches alone: a shard may have millions. The newest batch goes by age only.
        """
        retention = self.config.retention
        kept_from = self.start_offset
        for placement in self._placements():
            left_bytes = self._total_bytes - placement.total_bytes + placement.size_bytes
            newest = placement.next_offset == self.next_offset
            left_records = self._records_between(placement.base_offset, self.next_offset)
            too_many = 0 < retention.max_records < left_records and not newest
            too_large = 0 < retention.max_bytes < left_bytes and not newest
            too_old = 0 < retention.max_age_s * 1_000_000 < now_us - placement.append_time_us
            if not (too_many or too_large or too_old) or placement.next_offset > self.visible_offset:
                break
            kept_from = placement.next_offset
        return kept_from

    def passes_bound(self) -> bool:
        """Whether retention by count or size may have something to drop; quick enough to ask on every append."""
        retention = self.config.retention
        return (
            0 < retention.max_records < self._records_between(self.start_offset, self.next_offset)
            or 0 < retention.max_bytes < self._total_bytes - self._dropped_bytes
        )

    # Reading

    def offset_of(self, start: Start | int) -> int:
        """The offset that a position means now.

        Raises:
            OffsetOutOfRangeError: An offset was given that was trimmed or lies past the end.
        """
        if isinstance(start, int):
            return self._checked(start)
        match start.kind:
            case "earliest":
                return self.start_offset
            case "latest":
                return self.visible_offset
            case "offset":
                return self._checked(start.value)
            case "time":
                return self._offset_of_time(start.value)
            case _:
                return self._offset_of_lsn(start.value, self.visible_offset)

    def read(
        self, offset: int, *, max_bytes: int, now_us: int, max_records: int | None = None, end: int | None = None
    ) -> ReadResult:
        """Read visible records from ``offset`` (see `offset_of`) up to ``end``; at least one batch if there is one."""
        end = self.visible_offset if end is None else min(end, self.visible_offset)
        records: list[StoredRecord | Gap] = []
        for batch, next_offset in self._batches(offset, end, max_bytes):
            records += batches.read_records(batch, start_offset=offset, now_us=now_us)
            offset = next_offset
            if max_records is not None and len(records) >= max_records:
                break
        return cut(records, min(offset, end), max_records)

    def read_batches(self, offset: int, *, max_bytes: int) -> StoredBatches:
        """Read visible batches from the one that holds ``offset`` on; at least one if there is one."""
        found = list(self._batches(offset, self.visible_offset, max_bytes))
        next_offset = found[-1][1] if found else offset
        return StoredBatches(b"".join(batch for batch, _ in found), self.start_offset, next_offset)

    def read_word(self, kind: bytes, word: bytes, from_offset: int, *, max_bytes: int, now_us: int) -> ReadResult:
        """Read records with a key (kind ``b"k"``) or tag (``b"t"``).

        Raises:
            IndexMissingError: The shard keeps no such index.
        """
        self._require_index(kind)
        offset = self._checked(from_offset)
        holding = next(self._placements(offset), None)
        records: list[StoredRecord | Gap] = []
        size_bytes = 0
        for base_offset in self._indexed(kind, word, start=holding.base_offset if holding else offset):
            stored = self._store.get(Family.SEGMENTS, batch_key(self.shard_id, base_offset))
            if base_offset >= self.visible_offset or stored is None:
                break
            if size_bytes and size_bytes + len(stored) > max_bytes:
                return ReadResult(records, base_offset)
            size_bytes += len(stored)
            found = batches.read_records(stored, start_offset=offset, now_us=now_us)
            records += [record for record in found if has_word(record, kind, word)]
        return ReadResult(records, self.visible_offset)

    def latest_with_key(self, key: bytes, *, now_us: int) -> StoredRecord | None:
        """The newest visible record with a key that has not expired. Raises `IndexMissingError`."""
        self._require_index(b"k")
        for base_offset in self._indexed(b"k", key, reverse=True):
            stored = self._store.get(Family.SEGMENTS, batch_key(self.shard_id, base_offset))
            if base_offset >= self.visible_offset or stored is None:
                continue
            for record in reversed(batches.read_records(stored, start_offset=self.start_offset, now_us=now_us)):
                if isinstance(record, StoredRecord) and record.key == key:
                    return record
        return None

    # Lookup

    def _checked(self, offset: int) -> int:
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRangeError(self.name, offset, self.start_offset, self.visible_offset)
        return offset

    def _offset_of_time(self, time_us: int) -> int:
        """The first record with that timestamp or a later one; they are the producers', so any batch may hold it."""
        for placement in self._placements(self.start_offset):
            if placement.max_timestamp_us >= time_us and placement.base_offset < self.visible_offset:
                times_us = batches.timestamps(self._batch(placement))
                for offset, timestamp_us in enumerate(times_us, placement.base_offset):
                    if timestamp_us >= time_us and offset >= self.start_offset:
                        return offset
        return self.visible_offset

    def offset_above(self, lsn: int) -> int:
        """The first offset whose batch has a higher lsn, whether it is visible or not; the next offset if none has."""
        return self._offset_of_lsn(lsn + 1, self.next_offset)

    def _offset_of_lsn(self, lsn: int, end: int) -> int:
        """The first record of the first batch with that lsn or a later one. lsns rise with offsets: halve the range."""
        low, high = self.start_offset, end
        while low < high:
            middle = (low + high) // 2
            placement = next(self._placements(middle), None)
            if placement is None or placement.lsn >= lsn:
                high = middle
            else:
                low = placement.next_offset
        placement = next(self._placements(low), None)
        return max(placement.base_offset, self.start_offset) if placement else low

    def _placements(self, offset: int | None = None, *, reverse: bool = False) -> Iterator[Placement]:
        """Placements in offset order, from the batch that holds ``offset`` or else the next one on."""
        prefix = placement_prefix(self.shard_id)
        start = None
        if offset is not None:
            start = placement_key(self.shard_id, offset)
            before = next(self._store.scan(Family.SEGMENTS, prefix, start=start, reverse=True), None)
            if before is not None and Placement.decode(*before).next_offset > offset:
                start = before[0]
        for key, stored in self._store.scan(Family.SEGMENTS, prefix, start=start, reverse=reverse):
            yield Placement.decode(key, stored)

    def _batches(self, offset: int, end: int, max_bytes: int) -> Iterator[tuple[bytes, int]]:
        """Batches from ``offset`` up to ``end`` and the offset after each; gap batches for what lies between them."""
        size_bytes = 0
        for placement in self._placements(offset):
            if placement.base_offset >= end or (size_bytes and size_bytes + placement.size_bytes > max_bytes):
                return
            if placement.base_offset > offset:
                yield batches.gap_batch(offset, placement.base_offset, placement.lsn, 0), placement.base_offset
            yield self._batch(placement), placement.next_offset
            size_bytes += placement.size_bytes
            offset = placement.next_offset
        if offset < end:
            yield batches.gap_batch(offset, end, self._last_lsn, 0), end

    def _indexed(self, kind: bytes, word: bytes, *, start: int | None = None, reverse: bool = False) -> Iterator[int]:
        """Base offsets of the batches that hold a word."""
        prefix = index_prefix(self.shard_id, kind, word)
        from_key = None if start is None else prefix + NUMBER.pack(start)
        for key, _ in self._store.scan(Family.KEY_INDEX, prefix, start=from_key, reverse=reverse):
            yield NUMBER.unpack_from(key, len(prefix))[0]

    def _batch(self, placement: Placement) -> bytes:
        stored = self._store.get(Family.SEGMENTS, batch_key(self.shard_id, placement.base_offset))
        if stored is None:
            raise CorruptionError(
                f"shard {self.name!r}", placement.base_offset, "the batch is listed but is not in the store"
            )
        return stored

    def _index_words(self, batch: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self.config.index_keys:
            yield from ((b"k", key) for key in sorted(set(batches.keys(batch))) if key)
        if self.config.index_tags:
            yield from ((b"t", tag.encode()) for tag in sorted({tag for tags in batches.tags(batch) for tag in tags}))

    def _require_index(self, kind: bytes) -> None:
        setting, there = (
            ("index_keys", self.config.index_keys) if kind == b"k" else ("index_tags", self.config.index_tags)
        )
        if not there:
            raise IndexMissingError(
                f"shard {self.name!r} has no such index; create it with {setting}=True to read this way"
            )

    def _drop(self, mutations: Mutations, placement: Placement) -> None:
        if self.config.index_keys or self.config.index_tags:
            for kind, word in self._index_words(self._batch(placement)):
                mutations.delete(Family.KEY_INDEX, index_key(self.shard_id, kind, word, placement.base_offset))
        mutations.delete(Family.SEGMENTS, batch_key(self.shard_id, placement.base_offset))
        mutations.delete(Family.SEGMENTS, placement_key(self.shard_id, placement.base_offset))
        self._dropped_bytes = placement.total_bytes
