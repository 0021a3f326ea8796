"""Reading shared files, which have records of many shards: the rows of parts, and what rows there are.

Parts of neighbouring shards are in the same row group. So the last row groups are kept while a task reads its parts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from types import TracebackType
from typing import Final, Self

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shards.errors import CorruptionError
from shards.model import SegmentKind
from shards.parquet.arrow_buffers import column_numbers
from shards.parquet.schema import SHARED_SCHEMA
from shards.parquet.shared_reading import PartGroup, PartOfFile, SharedReader
from shards.topics.topic_filters import matches_all_between
from spark_export.conditions import Condition
from spark_export.errors import UnreadableError
from spark_export.file_access import FileTree
from spark_export.sealed_files import DATE_PREFIX, SharedName, parse_shared
from spark_export.segment_files import GroupStatistics
from spark_export.snapshot import PlaceInFile, SegmentRange

_KEPT_BYTES: Final = 128 << 20
_KEPT_FILES: Final = 64
_MOST_LISTINGS: Final = 5
_PLACES: Final = ("shard_id", "offset")


@attrs.frozen(slots=True)
class Run:
    """Adjacent rows of one shard in a shared file, their offsets without a gap."""

    shard: str
    shard_id: int
    rows: SegmentRange


class SharedFiles:
    """The shared files of a tree, as one reader uses them: the last files and row groups are kept. A context manager.

    Args:
        tree: The directory of all sealed segments.
        columns: The columns that are read besides those that say whose record a row is.
    """

    def __init__(self, tree: FileTree, columns: Sequence[str]) -> None:
        self._tree = tree
        self._columns = (*_PLACES, *(name for name in columns if name not in _PLACES))
        self._readers: OrderedDict[SharedName, SharedReader] = OrderedDict()
        self._groups: OrderedDict[tuple[SharedName, int], pa.RecordBatch] = OrderedDict()
        self._kept_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._readers:
            self._readers.popitem()[1].close()

    def rows(
        self, shard_id: int, segment: SegmentRange, first: int, end: int, conditions: Sequence[Condition]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of offsets from ``first`` up to ``end`` of a segment in a shared file.

        Row groups without a record for which conditions on times may hold are left out.

        Raises:
            FileNotFoundError: The file does not exist (any more): its records are elsewhere now.
            CorruptionError: The file is damaged, or has other rows there.
            OSError: It cannot be read.
        """
        place = segment.place
        assert place is not None  # it is in a shared file
        part = PartOfFile(shard_id, first, end, place.first_row + first - segment.base_offset)
        reader = self._reader(place.file)
        for group in _groups_of(reader, part):
            statistics = GroupStatistics(reader.footer.row_group(group.index), SHARED_SCHEMA)
            if statistics.may_hold(conditions):
                rows = self._group(place.file, reader, group.index)
                yield _checked(reader, part, group, rows)

    def _reader(self, file: SharedName) -> SharedReader:
        reader = self._readers.pop(file, None)
        if reader is None:
            reader = SharedReader(self._tree.file_system, self._tree.shown(file.path))
        self._readers[file] = reader
        if len(self._readers) > _KEPT_FILES:
            self._readers.popitem(last=False)[1].close()
        return reader

    def _group(self, file: SharedName, reader: SharedReader, index: int) -> pa.RecordBatch:
        key = (file, index)
        rows = self._groups.pop(key, None)
        if rows is None:
            rows = reader.table(index, self._columns)
            self._kept_bytes += rows.nbytes
        self._groups[key] = rows
        while self._kept_bytes > _KEPT_BYTES and len(self._groups) > 1:
            self._kept_bytes -= self._groups.popitem(last=False)[1].nbytes
        return rows


def _groups_of(reader: SharedReader, part: PartOfFile) -> list[PartGroup]:
    try:
        return reader.groups_of(part)
    except ValueError as error:
        raise CorruptionError(reader.path, 0, str(error)) from error


def _checked(reader: SharedReader, part: PartOfFile, group: PartGroup, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a part in a row group, compared with what the part should have."""
    rows = rows.slice(group.first_row, group.next_offset - group.first_offset)
    ids, offsets = (column_numbers(rows.column(name)) for name in _PLACES)
    if (ids != part.shard_id).any() or (offsets != np.arange(group.first_offset, group.next_offset)).any():
        raise reader.corruption(
            group.index,
            f"expected offsets {group.first_offset} up to {group.next_offset} of the shard with id {part.shard_id}, "
            f"found offset {offsets[0]} of the shard with id {ids[0]} and others",
        )
    return rows


def runs_in(
    tree: FileTree, file: SharedName, wants: Callable[[str], bool], *, names: Sequence[str] | None = None
) -> list[Run]:
    """What rows of which shards are in a shared file, in their order.

    It reads the columns shard, shard_id and offset.

    Args:
        wants: Which shards, by name.
        names: If only these are wanted: row groups that have none of them are not read.

    Raises:
        CorruptionError: The file is damaged.
        OSError: It cannot be read.
    """
    runs: list[Run] = []
    with SharedReader(tree.file_system, tree.shown(file.path)) as reader:
        first_row = 0
        bytes_per_row = reader.metadata.data_bytes / max(1, reader.metadata.record_count)
        for index, entry in enumerate(reader.metadata.row_groups):
            statistics = GroupStatistics(reader.footer.row_group(index), SHARED_SCHEMA)
            if names is None or statistics.may_have("shard", names):
                rows = reader.pages_of(index, ("shard", *_PLACES))
                for run in _runs_of(rows, file, first_row, bytes_per_row):
                    if runs and _follows(runs[-1], run):
                        runs[-1] = _joined(runs[-1], run)
                    elif wants(run.shard):
                        runs.append(run)
            first_row += entry.row_count
    return runs


def _runs_of(rows: pa.RecordBatch, file: SharedName, first_row: int, bytes_per_row: float) -> Iterator[Run]:
    names = rows.column("shard")
    ids, offsets = (column_numbers(rows.column(name)) for name in _PLACES)
    begins = [0, *(np.flatnonzero((np.diff(ids) != 0) | (np.diff(offsets) != 1)) + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        base, count = int(offsets[begin]), end - begin
        place = PlaceInFile(file, first_row + begin)
        segment = SegmentRange(SegmentKind.PARQUET, base, base + count, round(count * bytes_per_row), place)
        yield Run(names[begin].as_py(), int(ids[begin]), segment)


def _follows(first: Run, second: Run) -> bool:
    return (first.shard_id, first.rows.next_offset) == (second.shard_id, second.rows.base_offset) and (
        _end_row(first.rows) == (second.rows.place.first_row if second.rows.place else None)
    )


def _end_row(rows: SegmentRange) -> int:
    assert rows.place is not None  # runs are of shared files
    return rows.place.first_row + rows.next_offset - rows.base_offset


def _joined(first: Run, second: Run) -> Run:
    rows = attrs.evolve(
        first.rows,
        next_offset=second.rows.next_offset,
        size_bytes=first.rows.size_bytes + second.rows.size_bytes,
    )
    return attrs.evolve(first, rows=rows)


def first_not_below(
    tree: FileTree, shard_id: int, segment: SegmentRange, column: str, value: int, start: int
) -> int | None:
    """Offset of the first record from ``start`` on in a segment that is not below a value; None if there is none.

    Args:
        tree: The files.
        shard_id: Id of the shard.
        segment: Rows in a shared file.
        column: ``timestamp`` or ``lsn``.
        value: The value, of a timestamp in microseconds since 1970.
        start: Where to begin.

    Raises:
        CorruptionError: The file is damaged.
        OSError: It cannot be read.
    """
    first = max(start, segment.base_offset)
    if first >= segment.next_offset:
        return None
    conditions = [Condition(column, ">=", value)]
    with SharedFiles(tree, [column]) as files:
        for rows in files.rows(shard_id, segment, first, segment.next_offset, conditions):
            found = pc.index(pc.greater_equal(rows.column(column).cast(pa.int64()), value), True).as_py()
            if found >= 0:
                return int(rows.column("offset")[found].as_py())
    return None


def record_count(tree: FileTree, file: SharedName) -> int:
    """Number of rows of a shared file.

    Raises:
        CorruptionError: The file is damaged.
        OSError: It cannot be read; `FileNotFoundError` if it does not exist (any more).
    """
    with closing(SharedReader(tree.file_system, tree.shown(file.path))) as reader:
        return reader.metadata.record_count


@attrs.frozen(slots=True)
class Contents:
    """What the footer of a shared file tells.

    Attributes:
        rows: Number of rows, live or not.
        is_visible: Whether no shard and no topic has a name that begins with ``$``.
    """

    rows: int
    is_visible: bool


def contents_of(tree: FileTree, file: SharedName) -> Contents:
    """What a shared file has, by its footer.

    Raises:
        CorruptionError: The file is damaged.
        OSError: It cannot be read; `FileNotFoundError` if it does not exist (any more).
    """
    with closing(SharedReader(tree.file_system, tree.shown(file.path))) as reader:
        groups = [
            GroupStatistics(reader.footer.row_group(at), SHARED_SCHEMA) for at in range(reader.footer.num_row_groups)
        ]
        bounds = (group.bounds(column) for group in groups for column in ("shard", "topic"))
        return Contents(reader.metadata.record_count, matches_all_between(bounds))


def find_rows(tree: FileTree, shard: str, shard_id: int) -> list[SegmentRange]:
    """Where the rows of a shard are in the shared files that exist now.

    Raises:
        UnreadableError: The directories cannot be listed.
        CorruptionError: A file is damaged.
        OSError: A file cannot be read.
    """
    for _ in range(_MOST_LISTINGS):
        found: list[SegmentRange] = []
        try:
            for file in shared_names(tree):
                runs = runs_in(tree, file, lambda name: name == shard, names=[shard])
                found += [run.rows for run in runs if run.shard_id == shard_id]
        except FileNotFoundError:
            # Removed since the listing: what it had was trimmed, or is in a file that the listing does not have.
            continue
        return found
    raise UnreadableError(
        f"files in {tree.where} were replaced {_MOST_LISTINGS} times while shard {shard!r} was looked for in them; "
        "give the option 'server' with the address of the server that uses the directory"
    )


def shared_names(tree: FileTree) -> list[SharedName]:
    """The shared files in a tree, by day and number.

    Raises:
        UnreadableError: It cannot be listed.
    """
    directories = [name for name in tree.names() if name.startswith(DATE_PREFIX)]
    found = (parse_shared(f"{directory}/{name}") for directory in directories for name in tree.names(directory))
    return sorted(file for file in found if file is not None)
