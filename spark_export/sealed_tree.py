"""The content of a path: a data directory, or a tree of sealed segments on any file system of pyarrow.

Of segments with files of their own only names, sizes and start marks are read, in one listing; such a file is opened
only if the name of its directory is a hash, or to find the records of a time. Of shared files the columns are read that
say whose record a row is: without the views of a data directory only the rows tell that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

import attrs

from shards.model import SegmentKind
from shards.parquet.reading import SealedReader
from shards.segments.segment_paths import sealed_path
from shards.topics.topic_filters import is_filter
from spark_export import shared_files
from spark_export.distinct_ranges import distinct
from spark_export.errors import FilesReplacedError, UnreadableError
from spark_export.file_access import FileTree
from spark_export.options import SourceOptions
from spark_export.sealed_files import DATE_PREFIX, SealedName, SharedName, counted, parse_file, parse_mark, parse_shared
from spark_export.segment_files import first_not_below
from spark_export.shared_files import runs_in
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot, Store
from spark_export.table_versions import files_are_gone, newest_files, version_files

_SEALED: Final = "sealed"
_MOST_LISTINGS: Final = 3


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
    if names and not any(name.startswith(("shard=", DATE_PREFIX)) for name in names):
        raise UnreadableError(
            f"{path} is neither a data directory (it has no FORMAT) nor a tree of sealed segments (it has no shard=... "
            f"or date=... directories), it has {', '.join(sorted(names)[:3])}: name a server's data directory or its "
            f"'{_SEALED}'"
        )
    return Found("", tree.where, "")


def tree_snapshot(sealed: str, options: SourceOptions) -> Snapshot:
    """Snapshot of a tree of sealed segments.

    A shared file has dead rows too, of shards that were trimmed or deleted, until it is rewritten. A tree does not say
    which these are: all rows count, except those of a shard of which a later one has the name. Where there is a Delta
    table, its newest version says which files count, or the version that the options name.

    Raises:
        FilesReplacedError: Files were replaced again and again while they were read.
        UnreadableError: It cannot be listed, files of a shard overlap, or there is no such version (any more).
        CorruptionError: A file that has to be opened is damaged.
    """
    for _ in range(_MOST_LISTINGS):
        try:
            return _snapshot_of(FileTree(sealed), options)
        except FileNotFoundError as error:
            missing = error
            if options.version is not None:
                raise files_are_gone(options.version, str(error.filename or error)) from error
    path = str(missing.filename or missing)
    raise FilesReplacedError(
        f"{path} was replaced while it was read, and so were others in {_MOST_LISTINGS} attempts; try again, or give "
        "the data directory or the server in place of the files alone",
        path,
    ) from missing


def version_ends(sealed: str, version: int, options: SourceOptions) -> dict[tuple[str, int], int]:
    """By name and id of each wanted shard: the offset after its records in a version of the Delta table.

    Raises:
        UnreadableError: There is no such version, or files of it are gone.
        CorruptionError: A file is damaged.
    """
    tree = FileTree(sealed)
    ends: dict[tuple[str, int], int] = {}
    try:
        for file in version_files(tree, version).rows:
            for run in runs_in(tree, file, options.wants_shard):
                shard = (run.shard, run.shard_id)
                ends[shard] = max(ends.get(shard, 0), run.rows.next_offset)
    except FileNotFoundError as error:
        raise files_are_gone(version, str(error.filename or error)) from error
    return ends


def _snapshot_of(tree: FileTree, options: SourceOptions) -> Snapshot:
    table = version_files(tree, options.version) if options.version is not None else newest_files(tree)
    listed = tree.files() if options.version is None else ()
    found = {shard.name: (shard, trimmed) for shard, trimmed in _with_own_files(tree, listed, options)}
    shared: Iterable[SharedName] = (file for path, _ in listed if (file := parse_shared(path)) is not None)
    if table is not None:
        shared = sorted(table.rows)
    for name, (shard_id, runs) in _in_shared_files(tree, shared, options).items():
        own, trimmed = found.get(name, (None, 0))
        if own is None or own.shard_id < shard_id:
            own, trimmed = ShardSnapshot(name, shard_id, 0, 0), 0
        if own.shard_id == shard_id:
            found[name] = _united(own, runs, trimmed), trimmed
    shards = [found[name][0] for name in sorted(found)]
    if options.starting_us is not None:
        shards = [_beginning(tree, shard, "timestamp", options.starting_us) for shard in shards]
    elif options.starting_lsn is not None:
        shards = [_beginning(tree, shard, "lsn", options.starting_lsn) for shard in shards]
    return Snapshot(Store(sealed=tree.where), tuple(shards))


def _with_own_files(
    tree: FileTree, listed: Iterable[tuple[str, int]], options: SourceOptions
) -> Iterator[tuple[ShardSnapshot, int]]:
    """The shards that have files of their own, with these files, and the offset below which all were trimmed."""
    sizes: dict[tuple[str, str], int] = {}
    names: list[SealedName] = []
    starts: dict[tuple[str, int], int] = {}
    for path, size_bytes in listed:
        if (name := parse_file(path)) is not None:
            names.append(name)
            sizes[name.directory, name.file] = size_bytes
        elif (mark := parse_mark(path)) is not None:
            starts[mark] = _read_start(tree, path)
    for directory, group in groupby(counted(names, starts), key=lambda name: name.directory):
        files = list(group)
        shard = files[0].shard or _stored_name(tree, f"{directory}/{files[0].file}")
        if not options.wants_shard(shard):
            continue
        segments = tuple(
            SegmentRange(SegmentKind.PARQUET, file.base_offset, file.next_offset, sizes[directory, file.file])
            for file in files
        )
        trimmed = starts.get((directory, files[0].shard_id), 0)
        start = max(trimmed, files[0].base_offset)
        yield ShardSnapshot(shard, files[0].shard_id, start, files[-1].next_offset, segments), trimmed


def _in_shared_files(
    tree: FileTree, files: Iterable[SharedName], options: SourceOptions
) -> dict[str, tuple[int, list[SegmentRange]]]:
    """By name: the id of the newest shard, and its rows in shared files, which may overlap."""
    names = None if any(map(is_filter, options.shards)) else options.shards
    found: dict[str, tuple[int, list[SegmentRange]]] = {}
    for file in files:
        for run in runs_in(tree, file, options.wants_shard, names=names):
            shard_id, rows = found.get(run.shard, (-1, []))
            if run.shard_id > shard_id:
                found[run.shard] = (run.shard_id, [run.rows])
            elif run.shard_id == shard_id:
                rows.append(run.rows)
    return found


def _united(shard: ShardSnapshot, rows: list[SegmentRange], trimmed: int) -> ShardSnapshot:
    """A shard with its rows in shared files, each offset once, and none that is known to be trimmed."""
    rows = [one.clipped(max(one.base_offset, trimmed), one.next_offset) for one in rows if one.next_offset > trimmed]
    segments = tuple(distinct(shard.segments, rows))
    return attrs.evolve(
        shard,
        start_offset=max(trimmed, segments[0].base_offset) if segments else 0,
        next_offset=max((one.next_offset for one in segments), default=0),
        segments=segments,
    )


def _beginning(tree: FileTree, shard: ShardSnapshot, column: str, value: int) -> ShardSnapshot:
    """A shard with its first record that is not below a value."""
    for segment in shard.segments:
        if segment.place is not None:
            offset = shared_files.first_not_below(tree, shard.shard_id, segment, column, value, shard.start_offset)
        else:
            path = sealed_path(tree.where, shard.name, shard.shard_id, segment.base_offset, segment.next_offset)
            with SealedReader(tree.file_system, path) as reader:
                offset = first_not_below(reader, column, value, shard.start_offset)
        if offset is not None:
            return attrs.evolve(shard, found_offset=offset)
    return attrs.evolve(shard, found_offset=shard.next_offset)


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
