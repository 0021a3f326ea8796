"""A snapshot: which records there are to read, shard by shard, and where they lie. Plain values and how they are found.

A range of offsets is what a snapshot promises, not a file: a log segment may be sealed between planning and reading,
and then its records are read from the Parquet file of that range (`spark_export.reading`).

Where the values come from: a running server or a data directory at rest is asked through the storage adapter
(`spark_export.live_shards`), a tree of sealed segments tells by its names (`spark_export.sealed_tree`).
"""

from __future__ import annotations

import attrs

from shards.model import SegmentKind
from spark_export.options import SourceOptions


@attrs.frozen(slots=True)
class Store:
    """Where executors read.

    Attributes:
        sealed: The tree of sealed segments: a directory or a URL; empty if there is none.
        log: Directory of the log segments; empty if there is none.
        server: URL of the server to ask for what is in no file; empty if there is none.
    """

    sealed: str = ""
    log: str = ""
    server: str = ""


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
        restored_offset: Where it ended when its node was restored from a backup the last time; from here on other
            records had these offsets before. None if that never happened, or if it cannot be known here.
    """

    name: str
    shard_id: int
    start_offset: int
    next_offset: int
    segments: tuple[SegmentRange, ...] = ()
    time_offset: int | None = None
    restored_offset: int | None = None


@attrs.frozen(slots=True)
class Snapshot:
    """All shards that a query looks into, sorted by name."""

    store: Store
    shards: tuple[ShardSnapshot, ...]

    @property
    def knows_unsealed(self) -> bool:
        """Whether it tells of what is not sealed too: a tree of sealed segments alone does not."""
        return bool(self.store.server or self.store.log)


def take_snapshot(options: SourceOptions, *, with_segments: bool | None = None) -> Snapshot:
    """Find out what there is to read now. Not to be called inside an event loop.

    Args:
        options: Where, and which shards.
        with_segments: Whether to ask a server for the segments of each shard, which is one question more for each;
            otherwise one stands for all. None: if their files can be reached from here. A data directory at rest and a
            tree of sealed segments tell them anyway.

    Raises:
        UnreadableError: The path holds nothing of ours, or the server cannot be reached.
        StorageError: The data directory cannot be opened: damaged, or written by a newer program.
    """
    from spark_export.live_shards import directory_snapshot, server_snapshot
    from spark_export.sealed_tree import find_files, tree_snapshot

    found = find_files(options.path) if options.path else None
    if options.server:
        sealed, log = (found.sealed, found.log) if found else ("", "")
        return server_snapshot(Store(sealed, log, options.server), options, with_segments=with_segments)
    assert found is not None  # one of the two options is given
    if found.directory:
        return directory_snapshot(Store(found.sealed, found.log), found.directory, options, with_segments=with_segments)
    return tree_snapshot(found.sealed, options)
