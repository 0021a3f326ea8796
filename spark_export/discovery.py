"""Finds the readable shards: of a server, a data directory that is not in use, or a tree of sealed segments."""

from __future__ import annotations

import attrs

from spark_export.options import SourceOptions
from spark_export.read_history import ReadHistory
from spark_export.sealed_tree import Found, find_files, tree_snapshot, version_ends
from spark_export.snapshot import ShardSnapshot, Snapshot, Store


def take_snapshot(
    options: SourceOptions, *, with_segments: bool | None = None, read: ReadHistory | None = None
) -> Snapshot:
    """Find the present shards and their ranges. Not to be called inside an event loop.

    Args:
        options: Where to look, and which shards.
        with_segments: Whether to request the segments of each shard from a server, which takes one more request per
            shard; otherwise one segment represents all if every offset has a record. None: if their files can be
            accessed from here. A data directory that is not in use and a tree of sealed segments always have them.
        read: What was read before, to compute from which offsets on the shards have other records now.

    Raises:
        UnreadableError: The path has no shards, or the server cannot be reached.
        StorageError: The data directory cannot be opened: damaged, or written by a newer program.
    """
    found = find_files(options.path) if options.path else None
    if options.version is not None:
        assert found is not None  # a version is one of the files at a path
        return tree_snapshot(found.sealed, options)
    snapshot = _snapshot(options, found, with_segments, read)
    if options.starting_version is None:
        return snapshot
    assert found is not None  # a version is one of the files at a path
    ends = {} if options.starting_version == 0 else version_ends(found.sealed, options.starting_version - 1, options)
    shards = (_after(shard, ends.get((shard.name, shard.shard_id), 0)) for shard in snapshot.shards)
    return attrs.evolve(snapshot, shards=tuple(shards))


def _after(shard: ShardSnapshot, offset: int) -> ShardSnapshot:
    """A shard of which only the records from an offset on are wanted."""
    return attrs.evolve(shard, found_offset=max(shard.start_offset, offset))


def _snapshot(
    options: SourceOptions, found: Found | None, with_segments: bool | None, read: ReadHistory | None
) -> Snapshot:
    if found is not None and not found.directory and not options.server:
        return tree_snapshot(found.sealed, options)
    # Imported late: a tree of files needs neither a client nor an engine, which take longer than a short query.
    from spark_export.live_shards import directory_snapshot, server_snapshot

    if options.server:
        sealed, log = (found.sealed, found.log) if found else ("", "")
        return server_snapshot(Store(sealed, log, options.server), options, with_segments=with_segments, read=read)
    assert found is not None  # one of the two options is required
    return directory_snapshot(
        Store(found.sealed, found.log), found.directory, options, with_segments=with_segments, read=read
    )
