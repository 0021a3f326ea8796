"""Reading parts, each from where its records are stored now, as rows: in a task of Spark, or without Spark.

A part is a range of offsets. Between planning and reading its log may have been sealed, and records in a shared file
may have been moved to another one. A file may have been trimmed: then they are lost. Records that are in no file, or
not yet, are read from the server, and so are those that were moved; in a directory without a server they are looked for
in the shared files. Errors name shard, file and offsets, because only their text reaches the user.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa

from shards.errors import OffsetOutOfRangeError, ShardNotFoundError, StorageError
from shards.model import SegmentKind
from shards.parquet.arrow_batches import read_table
from shards.seams.os_file_system import OsFileSystem
from shards.segments.segment_paths import log_path
from spark_export.distinct_ranges import distinct
from spark_export.errors import DataLossError, UnreadableError
from spark_export.file_access import FileTree
from spark_export.planning import Part
from spark_export.segment_files import LogEndsError, clipped, read_log
from spark_export.shared_files import SharedFiles, find_rows
from spark_export.snapshot import Store
from spark_export.wanted_rows import Wanted

if TYPE_CHECKING:
    from spark_export.server_connection import ServerConnection

_ROWS_AT_ONCE: Final = 64 << 10
_BYTES_AT_ONCE: Final = 8 << 20
_MOST_SEARCHES: Final = 3


def read_parts(store: Store, parts: Iterable[Part], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Rows of the parts, in their order.

    Raises:
        DataLossError: Records are gone, and the query makes that an error.
        UnreadableError: A file is damaged, or the server cannot be reached.
    """
    yield from joined(_PartReader(store, wanted).rows(parts), wanted)


def joined(batches: Iterable[pa.RecordBatch], wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer, larger batches: each batch has a fixed cost for its transfer to Java."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting and (rows + batch.num_rows > _ROWS_AT_ONCE or size_bytes + batch.nbytes > _BYTES_AT_ONCE):
            yield _one(waiting, wanted)
            waiting, rows, size_bytes = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if waiting:
        yield _one(waiting, wanted)


def _one(batches: list[pa.RecordBatch], wanted: Wanted) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class _PartReader:
    """Reads parts one after the other.

    Args:
        store: Where the records are.
        wanted: Rows that the query wants.
    """

    def __init__(self, store: Store, wanted: Wanted) -> None:
        self._store = store
        self._connection: ServerConnection | None = None
        self._wanted = wanted
        self._sealed = FileTree(store.sealed) if store.sealed else None
        self._opened = ExitStack()
        self._shared_files: SharedFiles | None = None

    def rows(self, parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
        with self._opened:
            yield from self._rows(parts)

    def _rows(self, parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            try:
                for records in self._records(part):
                    yield self._wanted.rows(records, part.shard)
            except DataLossError as error:
                if self._wanted.options.fail_on_data_loss:
                    raise DataLossError(
                        f"{error}. To pass over what is gone set failOnDataLoss to false, or start at 'earliest'"
                    ) from error
            except (StorageError, OSError, pa.ArrowException) as error:
                raise UnreadableError(f"shard {part.shard!r}, {_range(part)}: {error}") from error

    def _records(self, part: Part) -> Iterator[pa.RecordBatch]:
        if part.segment.place is not None:
            rest = part
            if self._sealed is not None:
                found = yield from self._from_shared(self._shared(self._sealed), part)
                if found is None:
                    return
        else:
            found = part
            if part.segment.kind is SegmentKind.LOG and self._store.log:
                found = yield from self._from_log(part)
            if found is None:
                return
            rest = found
        if self._store.server:
            yield from self._from_server(rest)
        elif self._sealed is not None:
            yield from self._from_any_file(self._sealed, rest)
        else:
            raise _no_file(rest)

    def _shared(self, tree: FileTree) -> SharedFiles:
        if self._shared_files is None:
            columns = [*self._wanted.stored_columns, "topic"]
            self._shared_files = self._opened.enter_context(SharedFiles(tree, columns))
        return self._shared_files

    def _from_log(self, part: Part) -> Generator[pa.RecordBatch, None, Part | None]:
        """Read the records in the log; return the rest of the part, None if nothing is left."""
        path = log_path(self._store.log, part.shard_id, part.segment.base_offset)
        try:
            yield from read_log(OsFileSystem(), path, part.shard_id, part.first_offset, part.next_offset, self._wanted)
        except FileNotFoundError:
            return part
        except LogEndsError as ends:
            if not self._store.server:
                raise ends.error from ends
            # Records that were just appended are in the file a little later than readers get them.
            return attrs.evolve(part, first_offset=ends.offset)
        return None

    def _from_shared(self, files: SharedFiles, part: Part) -> Generator[pa.RecordBatch, None, Part | None]:
        """Read the records in a shared file; return the part if the file is gone: its records are in another one."""
        wanted = self._wanted.conditions
        try:
            yield from files.rows(part.shard_id, part.segment, part.first_offset, part.next_offset, wanted)
        except FileNotFoundError:
            return part
        return None

    def _from_any_file(self, tree: FileTree, part: Part) -> Iterator[pa.RecordBatch]:
        """Read records that are not where they were when the query was planned, in a directory without a server.

        Another process has used the directory since then, and gathered them into a shared file, or rewritten that.
        """
        offset = part.first_offset
        for _ in range(_MOST_SEARCHES):
            for rows in distinct(find_rows(tree, part.shard, part.shard_id)):
                stop = min(rows.next_offset, part.next_offset)
                if offset >= stop:
                    continue
                here = attrs.evolve(part, segment=rows, first_offset=offset, next_offset=stop)
                if rows.base_offset > offset or (yield from self._from_shared(self._shared(tree), here)) is not None:
                    # They are gone, or in a file that was made since the search.
                    break
                offset = stop
            if offset >= part.next_offset:
                return
        raise _no_file(attrs.evolve(part, first_offset=offset))

    def _from_server(self, part: Part) -> Iterator[pa.RecordBatch]:
        offset = part.first_offset
        while offset < part.next_offset:
            try:
                for found in self._server().read(part.shard, part.shard_id, offset, part.next_offset):
                    yield clipped(read_table(found.batches), offset, part.next_offset)
                    offset = found.next_offset
            except (OffsetOutOfRangeError, ShardNotFoundError) as error:
                there = error.start_offset if isinstance(error, OffsetOutOfRangeError) else part.next_offset
                if self._wanted.options.fail_on_data_loss or there <= offset:
                    gone = _range(attrs.evolve(part, first_offset=offset))
                    raise DataLossError(f"shard {part.shard!r}: the records of {gone} are gone: {error}") from error
                offset = there

    def _server(self) -> ServerConnection:
        """The connection to the server of the store, which has one."""
        if self._connection is None:
            # Imported only here: Spark starts four processes for a query, and files need no connection.
            from spark_export.server_connection import ServerConnection

            connection = ServerConnection(self._store.server, self._store.restores)
            self._connection = self._opened.enter_context(connection)
        return self._connection


def _no_file(part: Part) -> DataLossError:
    return DataLossError(
        f"shard {part.shard!r}: the records of {_range(part)} are in no file any more: they were trimmed, or the shard "
        f"was deleted, after the query was planned"
    )


def _range(part: Part) -> str:
    return f"offsets {part.first_offset} up to but not including {part.next_offset}"
