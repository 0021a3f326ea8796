"""A snapshot: which records there are to read, shard by shard, and where they lie. Plain values.

A range of offsets is what a snapshot promises, not a file: a log segment may be sealed between planning and reading,
and then its records are read from the Parquet file of that range (`spark_export.reading`).

How they are found (`spark_export.discovery`): a running server or a data directory at rest is asked through the storage
adapter (`spark_export.live_shards`), a tree of sealed segments tells by its names (`spark_export.sealed_tree`).
"""

from __future__ import annotations

from typing import Self

import attrs

from shards.history import HistoryGap, common_lsn
from shards.model import SegmentKind
from spark_export.read_history import ReadHistory


@attrs.frozen(slots=True)
class Store:
    """Where executors read.

    Attributes:
        sealed: The tree of sealed segments: a directory or a URL; empty if there is none.
        log: Directory of the log segments; empty if there is none.
        server: URL of the server to ask for what is in no file; empty if there is none.
        restores: Restores from backups that it knew; None if there is none that could know. A server with others has
            other records under the same offsets.
    """

    sealed: str = ""
    log: str = ""
    server: str = ""
    restores: tuple[HistoryGap, ...] | None = None


@attrs.frozen(slots=True)
class SegmentRange:
    """Records that lie together.

    Attributes:
        kind: Where they lay at the time of the snapshot; those in memory are read through the server.
        base_offset: First offset.
        next_offset: Offset after the last one.
        size_bytes: Bytes there.
    """

    kind: SegmentKind
    base_offset: int
    next_offset: int
    size_bytes: int


@attrs.frozen(slots=True)
class ShardSnapshot:
    """One shard.

    Attributes:
        name: Its name.
        shard_id: Its id, which no later shard of that name has.
        start_offset: First offset that is there.
        next_offset: Offset after the last record.
        segments: In offset order, not overlapping; what lies between two of them was lost, or is not in this tree.
        time_offset: First record that is not older than the option `startingTimestamp`; None if that is not given.
        changed_offset: From here on other records had these offsets in the history that the snapshot was compared with;
            None if all are the same, or if it cannot be known here.
    """

    name: str
    shard_id: int
    start_offset: int
    next_offset: int
    segments: tuple[SegmentRange, ...] = ()
    time_offset: int | None = None
    changed_offset: int | None = None

    def record_count_from(self, offset: int) -> int:
        """How many records there are from an offset on; those of a segment that stands for all count all offsets."""
        offset = max(offset, self.start_offset)
        return sum(max(0, one.next_offset - max(one.base_offset, offset)) for one in self.segments)

    def offset_behind(self, offset: int, record_count: int) -> int:
        """The offset behind so many records from an offset on; the shard's end if it has no more."""
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
    """All shards that a query looks into, sorted by name.

    Attributes:
        read: What `ShardSnapshot.changed_offset` compares with; None if nothing was read before.
    """

    store: Store
    shards: tuple[ShardSnapshot, ...]
    read: ReadHistory | None = None

    def compared_with(self, read: ReadHistory) -> Self | None:
        """The snapshot, compared with what was read before; None if the store has to be asked for that."""
        if read == self.read or self.store.restores is None:
            return self
        if read.common_lsns or common_lsn(read.restores, self.store.restores) is not None:
            return None
        return attrs.evolve(
            self, read=read, shards=tuple(attrs.evolve(one, changed_offset=None) for one in self.shards)
        )

    @property
    def knows_unsealed(self) -> bool:
        """Whether it tells of what is not sealed too: a tree of sealed segments alone does not."""
        return bool(self.store.server or self.store.log)
