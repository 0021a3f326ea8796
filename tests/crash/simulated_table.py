"""The Delta table on a simulated machine, as a program finds it there that reads it without the server.

Looked at between the lives of an engine and at the beginning of each: rows are there once, they are what the server
answers, and what a version of the table had once it was durable stays until the server does not have it any more.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs
import pyarrow.parquet as pq

from journal.engine import Engine
from shards.delta.log_files import LOG, exists
from shards.format.record import StoredRecord
from shards.seams.file_system import FileSystem
from tests.crash.ledger import require
from tests.crash.simulated_workload import read_all
from tests.simulation.delta_log import JsonLog

Place: TypeAlias = tuple[int, int]
"""(shard id, offset)."""
Row: TypeAlias = tuple[str, bytes]
"""(shard, value)."""

_COMMIT = re.compile(r"(\d{20})\.json")
_COLUMNS = ("shard", "shard_id", "offset", "value")


@attrs.define
class SimulatedTable:
    """The table of one machine, and what is known of its durable versions.

    Attributes:
        root: The directory of all Parquet segments.
        durable_version: The newest version that is known to be durable; -1 if none is.
    """

    root: str
    durable_version: int = -1
    _commits: dict[int, bytes] = attrs.Factory(dict)
    _rows: dict[Place, Row] = attrs.Factory(dict)
    _read: dict[bytes, list[tuple[Place, Row]]] = attrs.Factory(dict)

    def look(self, files: FileSystem, *, after_power_loss: bool) -> None:
        """Check the table while no engine runs.

        Args:
            files: The machine's file system.
            after_power_loss: All that is there is durable.
        """
        commits = dict(self._commits_of(files))
        newest = max(commits, default=-1)
        require(newest >= self.durable_version, "a durable version of the Delta table is gone", newest, self)
        for version, content in self._commits.items():
            require(commits.get(version) == content, "a durable version of the Delta table is another", version)
        rows = self.rows(files)
        if after_power_loss or newest == self.durable_version:
            self.durable_version, self._commits = newest, commits
            # Those that are gone were dropped, as the last life has checked or the next one will.
            self._rows |= rows

    def rows(self, files: FileSystem) -> dict[Place, Row]:
        """Return the rows of the newest version; none if there is no table. Each is there once."""
        if not exists(files, self.root):
            return {}
        found: dict[Place, Row] = {}
        for path in sorted(JsonLog(files).read(self.root).files):
            require(files.exists(f"{self.root}/{path}"), "a file is missing that the Delta table names", path)
            for place, row in self._rows_of(_content(files, f"{self.root}/{path}")):
                require(place not in found, "the Delta table has a record twice", path, place, row)
                found[place] = row
        return found

    async def compare(self, rows: Mapping[Place, Row], engine: Engine) -> None:
        """Compare rows with what an engine answers, which has just started.

        A row is what the engine answers, unless the record was trimmed or its shard deleted. A record that was in a
        durable version, and that the engine has, is still there.

        Args:
            rows: All of them, read when nothing had been asked of the engine.
            engine: The open engine.
        """
        shards = map(engine.parts.table.by_name, engine.parts.table.catalogue.matching("#"))
        for shard in list(shards):
            start_offset = shard.start_offset
            values = {
                item.offset: item.value for item in await read_all(engine, shard) if isinstance(item, StoredRecord)
            }
            for (shard_id, offset), row in rows.items():
                if shard_id == shard.shard_id and offset >= max(start_offset, shard.start_offset):
                    answer = shard.name, values.get(offset)
                    require(row == answer, "the Delta table has another record than the server", offset, row, answer)
            for shard_id, offset in self._rows:
                if shard_id == shard.shard_id and offset >= shard.start_offset and offset in values:
                    require((shard_id, offset) in rows, "a record is gone from the Delta table", shard.name, offset)
        self._rows = {place: row for place, row in self._rows.items() if place in rows}

    def _commits_of(self, files: FileSystem) -> Iterator[tuple[int, bytes]]:
        directory = f"{self.root}/{LOG}"
        for name in files.listdir(directory) if files.exists(directory) else ():
            if match := _COMMIT.fullmatch(name):
                yield int(match[1]), _content(files, f"{directory}/{name}")

    def _rows_of(self, content: bytes) -> list[tuple[Place, Row]]:
        if content not in self._read:
            table = pq.ParquetFile(io.BytesIO(content)).read(columns=list(_COLUMNS))
            columns = (table.column(name).to_pylist() for name in _COLUMNS)
            self._read[content] = [
                ((shard_id, offset), (shard, value)) for shard, shard_id, offset, value in zip(*columns, strict=True)
            ]
        return self._read[content]


def _content(files: FileSystem, path: str) -> bytes:
    file = files.open(path, write=False)
    try:
        return bytes(file.pread(file.size(), 0))
    finally:
        file.close()
