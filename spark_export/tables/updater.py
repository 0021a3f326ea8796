"""Keeping one table up to date: a batch of new records after the other, each in one commit of the table.

A batch is planned, its plan is stored durably, its rows are written to files that are not in the table yet, and one
commit adds the files and counts the batch. After a crash at any moment the commit is there or not, and the next run
does the batch that was planned, or plans the next one: no record is missing, and none is there twice.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

import attrs

from shards.errors import DataDirectoryError
from shards.seams.clock import Clock, SystemClock
from shards.seams.file_system import FileSystem, Lock
from shards.segments.segment_paths import date_of_day
from spark_export.discovery import take_snapshot
from spark_export.options import SourceOptions, parse_options
from spark_export.planning import ShardRange, parts_of
from spark_export.reading import read_parts
from spark_export.server_connection import ServerConnection
from spark_export.shard_watch import ShardWatch
from spark_export.snapshot import Snapshot
from spark_export.stream_planning import (
    changed_shards,
    first_position,
    next_position,
    records_behind,
    stream_ranges,
)
from spark_export.tables.batch_log import BatchLog, PlannedBatch
from spark_export.tables.compaction import Compacted, Compaction, due
from spark_export.tables.declaration import TableDeclaration, compare, in_stored_order
from spark_export.tables.delta_log import DeltaLog, TableState
from spark_export.tables.errors import StoppingError, TableConflictError, TableError
from spark_export.tables.files import TableFileSystem
from spark_export.tables.part_files import PartFile, PartFiles, leftovers
from spark_export.tables.rows import TableRows, record_columns
from spark_export.tables.schema import arrow_schema
from spark_export.wanted_rows import Wanted

_LOGGER: Final = logging.getLogger(__name__)
_DAY_US: Final = 86_400_000_000


@attrs.frozen
class AddedBatch:
    """A batch that is in the table.

    Attributes:
        table: Name of the table.
        batch: Number of the batch.
        version: Version of the Delta table.
        records: Number of rows that it added.
        bad_records: Those of them whose payload had a problem.
        skipped: Offsets whose records had been removed before they were read.
        behind: Records that the shards had after it when it was planned.
        files: Number of files that it added.
        size_bytes: Their size.
        duration_s: How long it took.
    """

    table: str
    batch: int
    version: int
    records: int
    bad_records: int
    skipped: int
    behind: int
    files: int
    size_bytes: int
    duration_s: float


@attrs.frozen
class _Written:
    parts: Sequence[PartFile]
    records: int
    bad_records: int


class TableUpdater:
    """One table that this process keeps up to date, as a context manager; it locks the table.

    Args:
        declaration: The table.
        source: Where the records are: ``path``, ``server`` or both, as options of the data source.
        rebuild: Remove the rows that are there, and begin with the records that are there now.
        is_stopping: Asked often while a batch is read; if it returns true, the batch is abandoned.
        files: The file system.
        clock: The time of commits.

    Raises:
        DeclarationChangedError: The rows that are there were made with another declaration.
        TableConflictError: Another process keeps the table.
        TableError: The directory has something else.
        UnreadableError: The table is damaged, or there is nothing to read.
    """

    def __init__(
        self,
        declaration: TableDeclaration,
        source: dict[str, str],
        *,
        rebuild: bool = False,
        is_stopping: Callable[[], bool] = lambda: False,
        files: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.declaration = declaration
        self._options = _options_of(declaration, source)
        self._rebuild = rebuild
        self._is_stopping = is_stopping
        self._files = files or TableFileSystem()
        self._root = declaration.directory.rstrip("/") or "/"
        self._clock = clock or SystemClock()
        self.log = DeltaLog(self._files, self._root, lambda: self._clock.now_us() // 1000)
        self._batches = BatchLog(self._files, self._root)
        self._watch = ShardWatch(self._options)
        self._lock: Lock | None = None
        self._last: PlannedBatch | None = None
        self._state: TableState | None = None

    @property
    def state(self) -> TableState:
        """The newest version of the table, while it is open."""
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, state: TableState) -> None:
        self._state = state

    def __enter__(self) -> Self:
        self._batches.make()
        try:
            self._lock = self._files.lock(self._batches.directory)
        except DataDirectoryError as error:
            if isinstance(error.__cause__, BlockingIOError):
                raise TableConflictError(
                    f"table {self.declaration.name}: another process keeps {self._root} up to date, only one may"
                ) from error
            raise
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None
        self._lock.release()

    def _open(self) -> None:
        """Find out how far the table is, and bring it into order after a crash."""
        state = self.log.read()
        if state is None:
            state = self.log.create(self.declaration)
        self.log.settle(state)
        self._batches.sync()
        self.state = state
        self._last = self._batches.read(state.batch) if state.batch else None
        if state.batch and self._last is None and not self._rebuild:
            raise TableError(
                f"table {self.declaration.name}: {self._batches.directory} has no plan of batch {state.batch}, so it "
                "is unknown how far the table is: put the directory back, or make the table again from the records "
                f"that are there, with --rebuild {self.declaration.name}"
            )
        for path in leftovers(self._files, self._root, state.batch):
            self._files.remove(f"{self._root}/{path}")
        if self._rebuild:
            self._begin_anew()
        else:
            planned = self._batches.read(state.batch + 1)
            if planned is not None and planned.begins_anew:
                self._commit_anew(planned)
            else:
                self._evolve(state)
        self._batches.tidy(self.state.batch)

    def _evolve(self, state: TableState) -> None:
        """Add columns and topics that were declared since the last run."""
        evolution = compare(self.declaration, state.declaration)
        self.declaration = in_stored_order(self.declaration, state.declaration)
        before = attrs.evolve(
            self.declaration,
            fields={name: of for name, of in self.declaration.fields.items() if name not in evolution.columns},
            types={name: kind for name, kind in self.declaration.types.items() if name not in evolution.columns},
        )
        self.log.require_schema(state, before)
        if evolution:
            self.state = self.log.change_declaration(state, self.declaration)
            added = ", ".join((*evolution.columns, *evolution.topics))
            _LOGGER.info("table %s: added %s", self.declaration.name, added)

    def _begin_anew(self) -> None:
        number = self.state.batch + 1
        planned = self._batches.read(number)
        if planned is None or not planned.begins_anew:
            if planned is not None:
                # It was never committed, and its rows would go now.
                self._batches.withdraw(number)
            start = first_position(take_snapshot(self._options, with_segments=False), self._options)
            planned = PlannedBatch(number, start, start, begins_anew=True)
            self._batches.put(planned)
        self._commit_anew(planned)

    def _commit_anew(self, planned: PlannedBatch) -> None:
        self.state = self.log.begin_anew(self.state, planned.number, self.declaration)
        self._last = planned

    def add_batch(self) -> AddedBatch | None:
        """Add the next batch of records; None if there are no new ones.

        Raises:
            DataLossError: Records are gone that were not read yet, and the declaration makes that an error.
            StoppingError: The process is to stop; the batch is done again by the next run.
            TableConflictError: Another process writes to the table.
            UnreadableError: The journal cannot be read now.
            OSError: The disk refused.
            StorageError: The data directory cannot be opened.
        """
        began_s = time.monotonic()
        number = self.state.batch + 1
        planned = self._batches.read(number)
        behind = 0
        if planned is None:
            found = self._plan(number)
            if found is None:
                return None
            planned, behind = found
            self._batches.put(planned)
        snapshot, ranges, skipped = self._ranges(planned)
        written = self._write(planned, snapshot, ranges)
        self.state = self.log.add_batch(self.state, number, written.parts)
        self._last = planned
        self._batches.tidy(number)
        self.tidy_log()
        return AddedBatch(
            table=self.declaration.name,
            batch=number,
            version=self.state.version,
            records=written.records,
            bad_records=written.bad_records,
            skipped=skipped,
            behind=behind,
            files=len(written.parts),
            size_bytes=sum(part.size_bytes for part in written.parts),
            duration_s=round(time.monotonic() - began_s, 3),
        )

    def merge_files(self) -> Compacted | None:
        """Merge some small files; None if none are due.

        Raises:
            StoppingError: The process is to stop; the files stay as they are.
            TableError: A file is damaged.
            OSError: The disk refused.
        """
        sources = due(self.state.files.values(), self._today())
        if not sources:
            return None
        self.state, merged = self._compaction.merge(self.state, sources)
        self.tidy_log()
        return merged

    def remove_old_files(self) -> int:
        """Remove files that the table has not had for a day; return their number.

        Raises:
            OSError: The disk refused.
        """
        return self._compaction.remove_old_files()

    @property
    def _compaction(self) -> Compaction:
        schema = arrow_schema(self.declaration)
        return Compaction(self._files, self._root, self.declaration.name, self.log, schema, self._is_stopping)

    def _today(self) -> str:
        return date_of_day(self._clock.now_us() // _DAY_US)

    def tidy_log(self) -> None:
        """Make a checkpoint of the Delta log when it is time; a failure is logged, and the next commit tries again."""
        try:
            self.log.tidy(self.state.version)
        except OSError as error:
            _LOGGER.warning("table %s: no checkpoint of the Delta log: %s", self.declaration.name, error)

    def _plan(self, number: int) -> tuple[PlannedBatch, int] | None:
        """The next batch, and how many records are left after it."""
        if self._last is not None:
            start = self._last.end
            seen = self._watch.look(start.read_history)
        else:
            seen = take_snapshot(self._options, with_segments=False)
            start = first_position(seen, self._options)
        end = next_position(start, seen, self._options, self.declaration.max_records)
        if end is start:
            return None
        return PlannedBatch(number, start, end), records_behind(end, seen)

    def _ranges(self, planned: PlannedBatch) -> tuple[Snapshot, list[ShardRange], int]:
        """Where the records of a batch are now, and how many offsets of them are gone."""
        changed = changed_shards(planned.start, planned.end)
        snapshot = self._watch.segments(changed, planned.end.read_history)
        ranges = stream_ranges(planned.start, planned.end, snapshot, self._options)
        got = {one.shard.name: one.next_offset - one.first_offset for one in ranges}
        skipped = 0
        for name in changed:
            to = planned.end.shards[name]
            skipped += to.next_offset - planned.start.first_offset(name, to) - got.get(name, 0)
        return snapshot, ranges, skipped

    def _require_running(self) -> None:
        if self._is_stopping():
            raise StoppingError("the batch was abandoned; the next run does it again")

    def _write(self, planned: PlannedBatch, snapshot: Snapshot, ranges: Sequence[ShardRange]) -> _Written:
        """Write the rows of a batch to files."""
        parts = parts_of(ranges)
        wanted = Wanted.of_columns(record_columns(self.declaration), self._options)
        rows = TableRows(self.declaration, {one.shard.name: one.shard.shard_id for one in ranges})
        out = PartFiles(self._files, self._root, planned.number, arrow_schema(self.declaration))
        records = bad_records = 0
        try:
            for batch in read_parts(snapshot.store, parts, wanted):
                self._require_running()
                made, bad = rows.convert(batch)
                if made.num_rows:
                    out.write(made)
                records += made.num_rows
                bad_records += bad
            written = out.finish()
            if snapshot.store.server:
                # Records may be of two histories if the server was restored in between.
                with ServerConnection(snapshot.store.server, snapshot.store.restores) as connection:
                    connection.require()
        except BaseException:
            out.abandon()
            raise
        return _Written(written, records, bad_records)


def _options_of(declaration: TableDeclaration, source: dict[str, str]) -> SourceOptions:
    return parse_options(
        {
            **source,
            "topics": json.dumps(declaration.topics),
            "shards": json.dumps(declaration.read_shards),
            "startingOffsets": "earliest",
            "failOnDataLoss": str(declaration.fail_on_data_loss).lower(),
        },
        "stream",
    )
