"""The sealed files that have the records of a snapshot, and which of their rows count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final

import attrs

from shards.errors import CorruptionError, StorageError
from shards.model import SegmentKind
from spark_export.bare_tree import counting_once, of_table
from spark_export.discovery import take_snapshot
from spark_export.errors import FilesReplacedError, UnreadableError
from spark_export.file_access import FileTree, is_local
from spark_export.options import SourceOptions
from spark_export.replanning import replaced_file
from spark_export.sealed_files import SharedName
from spark_export.sealed_scan import OffsetRange, SealedTree, list_tree
from spark_export.sealed_tree import find_files
from spark_export.shared_files import Contents, contents_of
from spark_export.snapshot import SegmentRange, ShardSnapshot
from spark_export.table_versions import VersionFiles, files_are_gone, newest_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_LISTINGS: Final = 5


@attrs.frozen(slots=True)
class ShardRange:
    """The offsets to read of one shard.

    Attributes:
        first_offset: Where to begin.
        sealed_end: Sealed segments are scanned up to here, the data source reads from here on.
        next_offset: Where to end.
        parts: The sealed segments.
    """

    shard: str
    shard_id: int
    first_offset: int
    sealed_end: int
    next_offset: int
    parts: tuple[SegmentRange, ...] = ()


class ListedFiles:
    """The sealed files that were found.

    Args:
        tree: Their listing; None for none.
    """

    def __init__(self, tree: SealedTree | None) -> None:
        self._files = tree.shared if tree else {}

    def has(self, segment: SegmentRange) -> bool:
        """Whether a segment is in one of the files."""
        return segment.place is not None and segment.place.file in self._files

    def leading(self, shard: ShardSnapshot) -> list[SegmentRange]:
        """The segments at the beginning of a shard that are in the files; the others are left to the data source."""
        return list(takewhile(self.has, shard.segments))

    def range_of(
        self, shard: ShardSnapshot, sealed: Sequence[SegmentRange], first: int, sealed_end: int, end: int
    ) -> ShardRange:
        """The range of a shard with these sealed segments, which are in the files."""
        parts = tuple(
            segment.clipped(max(first, segment.base_offset), segment.next_offset)
            for segment in sealed
            if segment.next_offset > first
        )
        return ShardRange(shard.name, shard.shard_id, first, sealed_end, end, parts)


def sealed_files(spark: SparkSession, path: str, options: SourceOptions) -> SealedTree:
    """The sealed files of a data directory or of a tree, and which of their rows count.

    Args:
        spark: Session for listing them.
        path: The data directory or the tree.
        options: The same, for the snapshot, and which shards.

    Raises:
        UnreadableError: The path has nothing to read, its server cannot be reached, or files were replaced again and
            again meanwhile.
    """
    from pyspark.errors import AnalysisException

    tree = list_tree(spark, path, options.version)
    if options.version is not None:
        try:
            return of_table(spark, tree, options.shards)
        except AnalysisException as error:
            missing = replaced_file(error)
            if missing is None:
                raise
            raise files_are_gone(options.version, missing) from error
    found = find_files(path) if is_local(path) else None
    if found is None or not found.directory:
        table = None if found is None else newest_files(FileTree(found.sealed))
        if table is not None:
            _require_there(tree, table)
            tree = attrs.evolve(tree, shared=dict.fromkeys(table.rows), visible=table.visible)
            return of_table(spark, tree, options.shards) if tree.shared else tree
        return counting_once(spark, tree, options.shards) if tree.shared else tree
    if not tree.shared:
        return tree
    for _ in range(_MOST_LISTINGS):
        snapshot = take_snapshot(options, with_segments=True)
        tree = list_tree(spark, path)
        listed = ListedFiles(tree)
        ranges = []
        for shard in snapshot.shards:
            sealed = [segment for segment in shard.segments if segment.kind is SegmentKind.PARQUET]
            if not all(listed.has(segment) for segment in sealed):
                break
            end = shard.next_offset
            ranges.append(listed.range_of(shard, sealed, shard.start_offset, end, end))
        else:
            return chosen_files(tree, ranges)
    raise UnreadableError(
        f"the files in {tree.root} were replaced {_MOST_LISTINGS} times while they were listed; try again, or add "
        "unsealed records, which are read from the server where a file is missing"
    )


def _require_there(tree: SealedTree, table: VersionFiles) -> None:
    """Refuse a tree without files that its table has; files that were added since the listing are looked for.

    Raises:
        UnreadableError: One is missing.
    """
    files = FileTree(tree.root)
    for file in table.rows:
        path = files.shown(file.path)
        if file not in tree.shared and not files.file_system.exists(path):
            raise UnreadableError(
                f"version {table.version} of the Delta table in {tree.root} has {path}, which is not there: if this is "
                "a copy, copy the directories date=... too; otherwise try again"
            )


def chosen_files(tree: SealedTree, ranges: Iterable[ShardRange]) -> SealedTree:
    """The files of a tree that have records of some ranges, and which of their rows count.

    Raises:
        FilesReplacedError: A shared file was replaced since the listing.
        UnreadableError: A shared file cannot be reached.
    """
    parts: dict[SharedName, list[OffsetRange]] = defaultdict(list)
    for one in ranges:
        for part in one.parts:
            assert part.place is not None  # it is in a shared file
            parts[part.place.file].append((one.shard_id, part.base_offset, part.next_offset))
    contents = _contents_of(tree.root, parts) if parts else {}
    shared: dict[SharedName, tuple[OffsetRange, ...] | None] = {}
    for file, rows in parts.items():
        found = contents[file]
        # A file of which all rows count needs no condition.
        counts_whole = found is not None and found.rows <= sum(end - first for _, first, end in rows)
        shared[file] = None if counts_whole else tuple(rows)
    visible = frozenset(file for file, found in contents.items() if found is not None and found.is_visible)
    return attrs.evolve(tree, shared=shared, visible=visible)


def _contents_of(root: str, chosen: Iterable[SharedName]) -> dict[SharedName, Contents | None]:
    """What shared files have; None for one that is damaged: reading it names the damage, others are read."""
    contents: dict[SharedName, Contents | None] = {}
    tree = FileTree(root)
    for file in chosen:
        try:
            contents[file] = contents_of(tree, file)
        except FileNotFoundError as error:
            path = tree.shown(file.path)
            raise FilesReplacedError(f"{path} was replaced by the server just now; try again", path) from error
        except CorruptionError:
            contents[file] = None
        except (StorageError, OSError) as error:
            raise UnreadableError(f"cannot read {tree.shown(file.path)}: {error}") from error
    return contents
