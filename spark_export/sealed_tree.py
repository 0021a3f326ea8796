"""The content of a path: a data directory, or a tree of sealed segments on any file system of pyarrow.

The columns are read that say whose record a row is: without the views of a data directory only the rows tell that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from shards.topics.topic_filters import is_filter
from spark_export.distinct_ranges import distinct
from spark_export.errors import FilesReplacedError, UnreadableError
from spark_export.file_access import FileTree
from spark_export.options import SourceOptions
from spark_export.sealed_files import SharedName, is_sealed_tree, parse_shared, require_present_form
from spark_export.shared_files import first_not_below, runs_in
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
    names = [name for name in tree.names() if not name.startswith(".")]
    is_directory = tree.is_local and "FORMAT" in names
    if is_directory or _SEALED in names:
        require_present_form(tree.names(_SEALED), tree.shown(_SEALED))
        return Found(tree.where if is_directory else "", tree.shown(_SEALED), tree.shown("log") if is_directory else "")
    require_present_form(names, tree.where)
    if not is_sealed_tree(names):
        raise UnreadableError(
            f"{path} is neither a data directory (it has no FORMAT) nor a tree of sealed segments (it has no "
            f"date=... directories), it has {', '.join(sorted(names)[:3])}: name a server's data directory or its "
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
    if table is not None:
        files = sorted(table.rows)
    else:
        files = sorted(file for path, _ in tree.files() if (file := parse_shared(path)) is not None)
    found = _newest_shards(tree, files, options)
    shards = [_shard(name, *found[name]) for name in sorted(found)]
    if options.starting_us is not None:
        shards = [_beginning(tree, shard, "timestamp", options.starting_us) for shard in shards]
    elif options.starting_lsn is not None:
        shards = [_beginning(tree, shard, "lsn", options.starting_lsn) for shard in shards]
    return Snapshot(Store(sealed=tree.where), tuple(shards))


def _newest_shards(
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


def _shard(name: str, shard_id: int, rows: list[SegmentRange]) -> ShardSnapshot:
    """A shard with each offset once."""
    segments = tuple(distinct(rows))
    return ShardSnapshot(name, shard_id, segments[0].base_offset, segments[-1].next_offset, segments)


def _beginning(tree: FileTree, shard: ShardSnapshot, column: str, value: int) -> ShardSnapshot:
    """A shard with its first record that is not below a value."""
    for segment in shard.segments:
        offset = first_not_below(tree, shard.shard_id, segment, column, value, shard.start_offset)
        if offset is not None:
            return attrs.evolve(shard, found_offset=offset)
    return attrs.evolve(shard, found_offset=shard.next_offset)
