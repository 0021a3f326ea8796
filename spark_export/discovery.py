"""Finding out what there is to read: from a server, a data directory at rest, or a tree of sealed segments."""

from __future__ import annotations

from spark_export.live_shards import directory_snapshot, server_snapshot
from spark_export.options import SourceOptions
from spark_export.read_history import ReadHistory
from spark_export.sealed_tree import find_files, tree_snapshot
from spark_export.snapshot import Snapshot, Store


def take_snapshot(
    options: SourceOptions, *, with_segments: bool | None = None, read: ReadHistory | None = None
) -> Snapshot:
    """Find out what there is to read now. Not to be called inside an event loop.

    Args:
        options: Where, and which shards.
        with_segments: Whether to ask a server for the segments of each shard, which is one question more for each;
            otherwise one stands for all if every offset has a record. None: if their files can be reached from here. A
            data directory at rest and a tree of sealed segments tell them anyway.
        read: What was read before, to be told from which offsets on the shards have other records now.

    Raises:
        UnreadableError: The path holds nothing of ours, or the server cannot be reached.
        StorageError: The data directory cannot be opened: damaged, or written by a newer program.
    """
    found = find_files(options.path) if options.path else None
    if options.server:
        sealed, log = (found.sealed, found.log) if found else ("", "")
        return server_snapshot(Store(sealed, log, options.server), options, with_segments=with_segments, read=read)
    assert found is not None  # one of the two options is given
    if found.directory:
        return directory_snapshot(
            Store(found.sealed, found.log), found.directory, options, with_segments=with_segments, read=read
        )
    return tree_snapshot(found.sealed, options)
