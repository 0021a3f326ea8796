"""A snapshot: the readable records, shard by shard, and where they are stored. Plain values.

A snapshot has ranges of offsets: a log segment may be sealed between planning and reading, and records in shared files
may be moved to others. Then they are read from where they are at that time (`spark_export.reading`).

`spark_export.discovery` takes a snapshot: of a running server or a data directory through the storage adapter
(`spark_export.live_shards`), of a tree of sealed segments by their names (`spark_export.sealed_tree`).
"""

from __future__ import annotations

from typing import Self

import attrs

from shards.history import HistoryGap, common_lsn
from shards.model import SegmentKind
from spark_export.read_history import ReadHistory
from spark_export.sealed_files import SharedName


@attrs.frozen(slots=True)
class Store:
    """Where executors read.

    Attributes:
        sealed: The tree of sealed segments: a directory or a URL; empty if there is none.
        log: Directory of the log segments; empty if there is none.
        server: URL of the server for records that are in no file; empty if there is none.
        restores: Restores from backups that it knew; None if they are unknown. A server with other restores has other
            records under the same offsets.
    """

    sealed: str = ""
    log: str = ""
    server: str = ""
    restores: tuple[HistoryGap, ...] | None = None


@attrs.frozen(slots=True)
class PlaceInFile:
    """Where records are in a file that has records of many shards.

    Attributes:
        file: The file.
        first_row: Row of the first record; the others follow.
    """

    file: SharedName
    first_row: int


@attrs.frozen(slots=True)
class SegmentRange:
    """Records that are stored together.

    Attributes:
        kind: Where they were at the time of the snapshot; those in memory are read through the server.
        base_offset: First offset.
        next_offset: Offset after the last one.
        size_bytes: Their stored size.
        place: Where they are in a shared file; None if they are in a file of their own, or in none.
    """

    kind: SegmentKind
    base_offset: int
    next_offset: int
    size_bytes: int
    place: PlaceInFile | None = None

    def clipped(self, first: int, end: int) -> SegmentRange:
        """The records from offset ``first`` up to ``end``, which are in a shared file."""
        assert self.place is not None  # the name of another file has its whole range
        share = (end - first) / (self.next_offset - self.base_offset)
        place = attrs.evolve(self.place, first_row=self.place.first_row + first - self.base_offset)
        return attrs.evolve(
            self, base_offset=first, next_offset=end, size_bytes=round(self.size_bytes * share), place=place
        )


@attrs.frozen(slots=True)
class ShardSnapshot:
    """One shard.

    Attributes:
        name: Its name.
        shard_id: Its id, which no later shard of that name has.
        start_offset: First offset that is still stored.
        next_offset: Offset after the last record.
        segments: In offset order, not overlapping; records between two of them were lost, or are not in this tree.
        found_offset: First record that one of the options `startingTimestamp`, `startingVersion` and `startingLsn`
            wants; None if none of them is given.
        changed_offset: From here on other records had these offsets in the history that the snapshot was compared with;
            None if all are the same, or if it is unknown.
    """

    name: str
    shard_id: int
    start_offset: int
    next_offset: int
    segments: tuple[SegmentRange, ...] = ()
    found_offset: int | None = None
    changed_offset: int | None = None

    def record_count_from(self, offset: int) -> int:
        """Number of records from an offset on; for a segment that represents several, its number of offsets."""
        offset = max(offset, self.start_offset)
        return sum(max(0, one.next_offset - max(one.base_offset, offset)) for one in self.segments)

    def offset_behind(self, offset: int, record_count: int) -> int:
        """The offset after this many records from an offset on; the shard's end if it has no more."""
        offset = max(offset, self.start_offset)
        if record_count >= self.record_count_from(offset):
            return self.next_offset
        for segment in self.segments:
            first = max(segment.base_offset, offset)
            if first >= segment.next_offset:
                continue
            if not record_count:
                break
            taken = min(record_count, segment.next_offset - first)
            offset, record_count = first + taken, record_count - taken
        return offset


@attrs.frozen(slots=True)
class Snapshot:
    """All shards of a query, sorted by name.

    Attributes:
        read: What `ShardSnapshot.changed_offset` compares with; None if nothing was read before.
    """

    store: Store
    shards: tuple[ShardSnapshot, ...]
    read: ReadHistory | None = None

    def compared_with(self, read: ReadHistory) -> Self | None:
        """The snapshot, compared with what was read before; None if that needs a request to the store."""
        if read == self.read or self.store.restores is None:
            return self
        if read.common_lsns or common_lsn(read.restores, self.store.restores) is not None:
            return None
        return attrs.evolve(
            self, read=read, shards=tuple(attrs.evolve(one, changed_offset=None) for one in self.shards)
        )

    @property
    def knows_unsealed(self) -> bool:
        """Whether it includes unsealed records: a tree of sealed segments does not have them."""
        return bool(self.store.server or self.store.log)
