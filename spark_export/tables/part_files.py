"""The Parquet files of a table: one for each UTC day of a batch, written and made durable before the commit names them.

::

    table/
      date=2026-03-01/00000012-5f0c21d3.parquet   number of the batch, and a random number of the attempt
      _delta_log/                                 which of the files count
      _journal/                                   planned batches; see `spark_export.tables.batch_log`
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import attrs
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shards.seams.file_system import File, FileSystem, make_durable_directory
from shards.segments.segment_paths import date_of_day
from spark_export.tables.schema import STATISTICS_OF

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAME: Final = re.compile(r"(\d{8,})-[0-9a-f]+\.parquet")
_PARTITION: Final = re.compile(r"date=\d{4}-\d{2}-\d{2}")
_ROW_GROUP_ROWS: Final = 128 << 10
_ROW_GROUP_BYTES: Final = 32 << 20
_MOST_OPEN: Final = 8
"""Files that are open at the same time: each has a row group in memory."""
_LONGEST_TEXT: Final = 256
_LAST_TEXT: Final = "\U0010ffff"
_WRITER: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 1,
    "write_page_checksum": True,
    "write_page_index": True,
    "version": "2.6",
    "store_schema": False,
}


@attrs.frozen(slots=True)
class PartFile:
    """A file of a table that is complete and durable.

    Attributes:
        path: Its path in the directory of the table.
        size_bytes: Its size.
        rows: Number of its rows.
        statistics: JSON for the Delta log: number of rows, smallest and largest values.
        modified_ms: When it was completed, since 1970.
    """

    path: str
    size_bytes: int
    rows: int
    statistics: str
    modified_ms: int


class PartFiles:
    """The files of one batch. Without `finish` they are removed by `abandon`, or as `leftovers` after a crash.

    Args:
        files: The file system.
        root: Directory of the table.
        number: Number of the batch.
        schema: Arrow schema of the files.
    """

    def __init__(self, files: FileSystem, root: str, number: int, schema: pa.Schema) -> None:
        self._files = files
        self._root = root
        self._number = number
        self._schema = schema
        self._open: dict[int, _OpenPart] = {}
        self._begun: list[str] = []
        self._finished: list[PartFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, each to the file of the day of its ``append_time``.

        Raises:
            OSError: The disk refused.
        """
        times = rows.column("append_time").cast(pa.int64())
        bounds = pc.min_max(times).as_py()
        first, last = bounds["min"] // _DAY_US, bounds["max"] // _DAY_US
        if first == last:
            self._part(first).write(rows)
            return
        days = pc.floor(pc.divide(times.cast(pa.float64()), float(_DAY_US))).cast(pa.int64())
        for day in sorted(pc.unique(days).to_pylist()):
            self._part(day).write(rows.filter(pc.equal(days, day)))

    def finish(self) -> list[PartFile]:
        """Complete all files, and return them when they are durable.

        Raises:
            OSError: The disk refused.
        """
        for day in list(self._open):
            self._finish(day)
        for directory in sorted({part.path.partition("/")[0] for part in self._finished}):
            self._files.sync_directory(f"{self._root}/{directory}")
        return self._finished

    def abandon(self) -> None:
        """Remove all files, which no commit names."""
        for part in self._open.values():
            part.close()
        for path in self._begun:
            with suppress(OSError):
                self._files.remove(f"{self._root}/{path}")

    def _part(self, day: int) -> _OpenPart:
        part = self._open.pop(day, None)
        if part is None:
            if len(self._open) >= _MOST_OPEN:
                self._finish(next(iter(self._open)))
            directory = f"date={date_of_day(day)}"
            make_durable_directory(self._files, f"{self._root}/{directory}")
            path = f"{directory}/{self._number:08}-{secrets.token_hex(4)}.parquet"
            self._begun.append(path)
            part = _OpenPart(self._files.open(f"{self._root}/{path}", create=True), path, self._schema)
        # The one that was used last is the last one to be completed.
        self._open[day] = part
        return part

    def _finish(self, day: int) -> None:
        part = self._open.pop(day)
        try:
            self._finished.append(part.finish())
        finally:
            part.close()


class _OpenPart:
    """One file that is being written."""

    def __init__(self, file: File, path: str, schema: pa.Schema) -> None:
        self._file = file
        self._path = path
        self._schema = schema
        self._sink = _Sink(file)
        self._writer = pq.ParquetWriter(self._sink, schema, **_WRITER)
        self._bounds = _Bounds()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        self._bounds.add(rows)
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= _ROW_GROUP_ROWS or self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> PartFile:
        if self._waiting:
            self._write_group()
        self._writer.close()
        self._file.fsync()
        return PartFile(
            self._path,
            self._sink.position,
            self._rows,
            self._bounds.statistics(self._rows),
            self._file.modified_ns() // 1_000_000,
        )

    def close(self) -> None:
        self._file.close()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=self._waiting_rows)
        self._rows += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


class _Sink:
    """The output of pyarrow, as a file of the file system."""

    closed = False

    def __init__(self, file: File) -> None:
        self._file = file
        self.position = 0

    def write(self, data: bytes) -> int:
        size = len(data)
        self._file.pwritev([bytes(data)], self.position)
        self.position += size
        return size

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Do nothing: `write` has written it."""

    def close(self) -> None:
        """Do nothing: the file is closed by its owner."""


class _Bounds:
    """Smallest and largest values of the columns of which the Delta log has them; none of these is ever null."""

    def __init__(self) -> None:
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        for name in STATISTICS_OF:
            column = rows.column(name)
            found = pc.min_max(column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).as_py()
            before = self._bounds.get(name, (found["min"], found["max"]))
            self._bounds[name] = min(before[0], found["min"]), max(before[1], found["max"])

    def statistics(self, rows: int) -> str:
        smallest, largest = {}, {}
        for name, (least, most) in self._bounds.items():
            if name == "append_time":
                smallest[name], largest[name] = _time(least), _time(most)
            else:
                # Readers may leave out a file of which they miss a bound; a long text has one that is certainly true.
                smallest[name] = "" if isinstance(least, str) and len(least) > _LONGEST_TEXT else least
                largest[name] = _LAST_TEXT if isinstance(most, str) and len(most) > _LONGEST_TEXT else most
        nulls = dict.fromkeys(self._bounds, 0)
        members = {"numRecords": rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
        return msgspec.json.encode(members).decode()


def leftovers(files: FileSystem, root: str, after: int) -> Iterator[str]:
    """Paths, in the directory of a table, of files of batches after a number: a crash has left them.

    Only for a process that holds the lock of the table.
    """
    for path in part_paths(files, root):
        found = _NAME.fullmatch(path.rpartition("/")[2])
        if found is not None and int(found[1]) > after:
            yield path


def part_paths(files: FileSystem, root: str) -> Iterator[str]:
    """Paths of all Parquet files in the partitions of a table, whether they count or not."""
    for directory in files.listdir(root):
        if _PARTITION.fullmatch(directory):
            for name in files.listdir(f"{root}/{directory}"):
                if name.endswith(".parquet"):
                    yield f"{directory}/{name}"


def _time(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
