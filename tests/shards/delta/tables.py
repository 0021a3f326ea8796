"""Shared files in their places, for the tests of the table over them."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from shards.delta.actions import table_path
from shards.format.record import Record
from shards.parquet.shared_file import write_shared_files
from shards.seams.file_system import FileSystem
from shards.segments.conversion_plan import PartSource, SharedPlan, SourceKind
from shards.segments.log_segment import LogHeader
from shards.segments.segment_paths import day_of_date
from tests.shards.batches import NOW_US
from tests.shards.parquet.shared_files import Appended, Log

Key = tuple[int, int]
DAY = day_of_date("2023-11-14")
assert NOW_US // 86_400_000_000 == DAY


def logs_of(
    *names: str, values: Sequence[bytes] = (b"1", b"2"), later_us: int = 50, timestamp_us: int = NOW_US
) -> list[Log]:
    """A log for each name, in the order of a plan."""
    records = [Record(value, key=b"k", tags=("t",), headers=(("h", b"v"),), timestamp_us=NOW_US) for value in values]
    return [
        Log(name, 7 + number, [Appended(records, later_us)], first_lsn=5 + 10 * number)
        for number, name in enumerate(sorted(names))
    ]


class Shelf:
    """A directory of shared files.

    Args:
        files: The file system.
        base: The directory that has ``sealed``, ``sealing`` and ``log``; it is made.
    """

    def __init__(self, files: FileSystem, base: str) -> None:
        self.files = files
        self._base = base
        self.root = f"{base}/sealed"
        for name in ("sealed", "sealing", "log"):
            files.mkdir(f"{base}/{name}")
        files.sync_directory(base)

    def put(self, file_id: int, logs: Sequence[Log]) -> list[Key]:
        """Gather logs into files with this id, one for each day."""
        return self._put(file_id, [self._source(log) for log in logs])

    def rewrite(self, file_id: int, log: Log, keys: Sequence[Key]) -> list[Key]:
        """Rewrite the rows of a log that is alone in some files, each of which has as many of its rows."""
        count = sum(len(batch.records) for batch in log.batches)
        sources = [
            PartSource(
                log_path=f"{self.root}/{table_path(*key)}",
                name=log.name,
                shard_id=log.shard_id,
                base_offset=log.base_offset,
                next_offset=log.base_offset + count,
                kind=SourceKind.SHARED,
            )
            for key in keys
        ]
        return self._put(file_id, sources)

    def _put(self, file_id: int, sources: Sequence[PartSource]) -> list[Key]:
        made = write_shared_files(self.files, SharedPlan(f"{self._base}/sealing/{file_id}", file_id, tuple(sources)))
        for file in made.files:
            place = f"{self.root}/{table_path(file.day, file_id)}"
            directory = place.rpartition("/")[0]
            self.files.mkdir(directory)
            self.files.rename(file.path, place)
            self.files.sync_directory(directory)
        self.files.sync_directory(self.root)
        return [(file.day, file_id) for file in made.files]

    def _source(self, log: Log) -> PartSource:
        header = LogHeader(log.shard_id, log.base_offset, log.first_us, log.name).encode()
        path, batches = f"{self._base}/log/{log.shard_id:x}-{secrets.token_hex(4)}.log", log.encode()
        file = self.files.open(path, create=True)
        file.pwritev([header, batches], 0)
        file.close()
        return PartSource(
            log_path=path,
            name=log.name,
            shard_id=log.shard_id,
            base_offset=log.base_offset,
            next_offset=log.base_offset + sum(len(batch.records) for batch in log.batches),
            start_position=len(header),
            end_position=len(header) + len(batches),
        )
