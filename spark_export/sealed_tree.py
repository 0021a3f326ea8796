"""The content of a path: a data directory, or a tree of sealed segments on any file system of pyarrow.

Of a tree only names, sizes and start marks are read, in one listing; a file is opened only if the name of its directory
is a hash, or to find the records of a time.
"""

from __future__ import annotations

import json
from itertools import groupby
from typing import Final

import attrs

from shards.model import SegmentKind
from shards.parquet.reading import SealedReader
from shards.segments.segment_paths import sealed_path
from spark_export.errors import UnreadableError
from spark_export.file_access import FileTree
from spark_export.options import SourceOptions
from spark_export.sealed_files import SealedName, counted, parse_file, parse_mark
from spark_export.segment_files import first_not_older
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot, Store

_SEALED: Final = "sealed"


@attrs.frozen(slots=True)
class Found:
    """The result of `find_files`.

    Attributes:
        directory: The data directory, on this machine; empty for a tree of sealed segments.
        sealed: The tree of sealed segments.
        log: Directory of the log segments of a data directory.
    """

    directory: str
    sealed: str
    log: str


def find_files(path: str) -> Found:
    """Find out what is at a path.

    Raises:
        UnreadableError: It is neither a data directory nor a tree of sealed segments.
    """
    tree = FileTree(path)
    # The marker file in the directory of sealed segments is hidden; before the first segment it is the only file there.
    names = [name for name in tree.names() if not name.startswith(".")]
    if tree.is_local and "FORMAT" in names:
        return Found(tree.where, tree.shown(_SEALED), tree.shown("log"))
    if _SEALED in names:
        return Found("", tree.shown(_SEALED), "")
    if names and not any(name.startswith("shard=") for name in names):
        raise UnreadableError(
            f"{path} is neither a data directory (it has no FORMAT) nor a tree of sealed segments (it has no shard=... "
            f"directories), it has {', '.join(sorted(names)[:3])}: name a server's data directory or its '{_SEALED}'"
        )
    return Found("", tree.where, "")


def tree_snapshot(sealed: str, options: SourceOptions) -> Snapshot:
    """Snapshot of a tree of sealed segments.

    Raises:
        UnreadableError: It cannot be listed, or files of a shard overlap.
        CorruptionError: A file that has to be opened is damaged.
    """
    tree = FileTree(sealed)
    sizes: dict[tuple[str, str], int] = {}
    names: list[SealedName] = []
    starts: dict[tuple[str, int], int] = {}
    for path, size_bytes in tree.files():
        if (name := parse_file(path)) is not None:
            names.append(name)
            sizes[name.directory, name.file] = size_bytes
        elif (mark := parse_mark(path)) is not None:
            starts[mark] = _read_start(tree, path)
    shards: list[ShardSnapshot] = []
    for directory, group in groupby(counted(names, starts), key=lambda name: name.directory):
        files = list(group)
        shard = files[0].shard or _stored_name(tree, f"{directory}/{files[0].file}")
        if not options.wants_shard(shard):
            continue
        segments = tuple(
            SegmentRange(SegmentKind.PARQUET, file.base_offset, file.next_offset, sizes[directory, file.file])
            for file in files
        )
        start = max(starts.get((directory, files[0].shard_id), 0), files[0].base_offset)
        found = ShardSnapshot(shard, files[0].shard_id, start, files[-1].next_offset, segments)
        shards.append(found if options.starting_us is None else _with_time(tree, found, options.starting_us))
    return Snapshot(Store(sealed=sealed), tuple(sorted(shards, key=lambda shard: shard.name)))


def _with_time(tree: FileTree, shard: ShardSnapshot, time_us: int) -> ShardSnapshot:
    for segment in shard.segments:
        path = sealed_path(tree.where, shard.name, shard.shard_id, segment.base_offset, segment.next_offset)
        with SealedReader(tree.file_system, path) as reader:
            offset = first_not_older(reader, time_us, shard.start_offset)
        if offset is not None:
            return attrs.evolve(shard, time_offset=offset)
    return attrs.evolve(shard, time_offset=shard.next_offset)


def _read_start(tree: FileTree, path: str) -> int:
    try:
        return int(json.loads(tree.read(path))["start_offset"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableError(
            f"cannot read {tree.shown(path)}, which says where a trimmed shard starts: {error}; "
            f'expected {{"start_offset": N}}'
        ) from error


def _stored_name(tree: FileTree, path: str) -> str:
    """The shard's name from a file: the directory name was too long, and is a hash."""
    with SealedReader(tree.file_system, tree.shown(path)) as reader:
        return reader.shard
