"""Few large files instead of many small ones, and the removal of files that the table has no more.

A table with a batch a minute gets 1,440 files a day. Files of a similar size are merged, so a row is written again
about three times; when a day is over, its small files become one. What is done at once is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from shards.seams.file_system import FileSystem
from spark_export.tables.delta_log import DeltaLog, TableFile, TableState
from spark_export.tables.errors import StoppingError, TableConflictError, TableError
from spark_export.tables.part_files import PartFiles

SIMILAR_FILES: Final = 8
"""So many files of a similar size are merged."""
SMALLEST_TIER_BYTES: Final = 512 << 10
LARGE_BYTES: Final = 32 << 20
"""Files from this size on stay as they are."""
MOST_BYTES: Final = 256 << 20
MOST_FILES: Final = 256
_MOST_REMOVED: Final = 1000
_ROWS_AT_ONCE: Final = 64 << 10
_PART: Final = re.compile(r"date=\d{4}-\d{2}-\d{2}/[^/]+\.parquet")


@attrs.frozen
class Compacted:
    """Files that were merged.

    Attributes:
        table: Name of the table.
        version: Version of the Delta table.
        date: Day of the rows.
        merged_files: Number of files that were merged.
        files: Number of files that have their rows now.
        records: Number of rows.
    """

    table: str
    version: int
    date: str
    merged_files: int
    files: int
    records: int


def due(files: Iterable[TableFile], today: str) -> list[TableFile]:
    """The files to merge next; empty if none are.

    Args:
        files: The files of the table.
        today: The present UTC day, as ``2026-03-01``.
    """
    days: dict[str, list[TableFile]] = {}
    for file in files:
        if file.size_bytes < LARGE_BYTES and _PART.fullmatch(file.path):
            days.setdefault(file.partition, []).append(file)
    for partition, found in sorted(days.items()):
        found.sort(key=lambda file: file.path)
        tiers: dict[int, list[TableFile]] = {}
        for file in found:
            tiers.setdefault(_tier(file.size_bytes), []).append(file)
        for _, similar in sorted(tiers.items()):
            if len(similar) >= SIMILAR_FILES:
                return _bounded(similar)
        if partition < f"date={today}" and len(found) > 1:
            return _bounded(found)
    return []


def _tier(size_bytes: int) -> int:
    """Sizes up to 512 KiB are of tier 0, up to 4 MiB of tier 1, and so on."""
    tier = 0
    while size_bytes > SMALLEST_TIER_BYTES * SIMILAR_FILES**tier:
        tier += 1
    return tier


def _bounded(files: list[TableFile]) -> list[TableFile]:
    """As many of the first files as are merged at once: at least two, since each is smaller than half the bound."""
    chosen: list[TableFile] = []
    size_bytes = 0
    for file in files[:MOST_FILES]:
        size_bytes += file.size_bytes
        if size_bytes > MOST_BYTES:
            break
        chosen.append(file)
    return chosen


class Compaction:
    """Merges the files of one table.

    Args:
        files: The file system.
        root: Directory of the table.
        name: Name of the table.
        log: Its Delta log.
        schema: Arrow schema of its files.
        is_stopping: Asked often; if it returns true, the files stay as they are.
    """

    def __init__(
        self,
        files: FileSystem,
        root: str,
        name: str,
        log: DeltaLog,
        schema: pa.Schema,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._files = files
        self._root = root
        self._name = name
        self._log = log
        self._schema = schema
        self._is_stopping = is_stopping

    def merge(self, state: TableState, sources: list[TableFile]) -> tuple[TableState, Compacted | None]:
        """Merge files of one day; None if another program has removed one of them meanwhile.

        Raises:
            StoppingError: The process is to stop.
            TableError: A file does not have the rows that the table says.
            OSError: The disk refused.
        """
        out = PartFiles(self._files, self._root, state.batch, self._schema)
        try:
            rows = sum(self._copy(each, out) for each in sources)
            parts = out.finish()
            state = self._log.replace(state, sources, parts)
        except TableConflictError:
            out.abandon()
            return state, None
        except BaseException:
            out.abandon()
            raise
        date = sources[0].partition.partition("=")[2]
        return state, Compacted(self._name, state.version, date, len(sources), len(parts), rows)

    def remove_old_files(self) -> int:
        """Remove some of the files that the table has not had for a day; return their number.

        Raises:
            OSError: The disk refused.
        """
        removed = 0
        for path in self._log.removable():
            if _PART.fullmatch(path) and removed < _MOST_REMOVED:
                with suppress(FileNotFoundError):
                    self._files.remove(f"{self._root}/{path}")
                    removed += 1
        return removed

    def _copy(self, source: TableFile, out: PartFiles) -> int:
        path = f"{self._root}/{source.path}"
        rows = 0
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(_ROWS_AT_ONCE):
                    if self._is_stopping():
                        raise StoppingError("merging files was abandoned; it is done later")
                    out.write(self._whole(batch))
                    rows += batch.num_rows
        except pa.ArrowException as error:
            raise TableError(f"table {self._name}: {path} cannot be read: {error}") from error
        if source.rows not in (0, rows):
            raise TableError(f"table {self._name}: {path} has {rows} rows, the Delta log says {source.rows}")
        return rows

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with all columns; those that were declared after the file was written are null."""
        there = set(batch.schema.names)
        arrays = [
            batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
