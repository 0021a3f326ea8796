"""Trees of sealed segments as a server leaves them: batches in log files, sealed by the real writers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shards.format.batch import encode, stamp
from shards.format.record import Record
from shards.parquet.schema import DAY_US
from shards.parquet.shared_file import write_shared_files
from shards.seams.os_file_system import OsFileSystem
from shards.segments.conversion_plan import PartSource, SharedPlan, SourceKind
from shards.segments.log_segment import LogHeader
from shards.segments.segment_paths import shared_path
from spark_export.file_access import FileTree
from spark_export.sealed_files import parse_shared
from spark_export.shared_files import runs_in

NOW_US = 1_772_366_400_000_000
"""2026-03-01T12:00:00Z"""


class SealedTree:
    """A tree that grows.

    Args:
        directory: Holds the directory `sealed` and nothing else that counts.
        batch_size: Records in a batch.
    """

    def __init__(self, directory: Path, *, batch_size: int = 100) -> None:
        self.root = directory / "sealed"
        self._batch_size = batch_size
        self._ids: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._lsn = 0
        self._file_id = 0x5E1F_0000_0000_0000
        self._files = OsFileSystem()

    def id_of(self, shard: str) -> int:
        """The shard's id; given when it is first asked for."""
        return self._ids.setdefault(shard, len(self._ids) + 1)

    def convert(self, shard: str, records: Sequence[Record], *, shard_id: int | None = None, day: int = 0) -> Path:
        """Append records to a shard and make a file of them alone."""
        return self.gather((shard, records), shard_id=shard_id, day=day)

    def gather(
        self,
        *appended: tuple[str, Sequence[Record]],
        shard_id: int | None = None,
        day: int = 0,
        row_group_bytes: int = 1 << 20,
    ) -> Path:
        """Append records to shards and gather them into one shared file.

        Args:
            day: When they are appended: so many days after `NOW_US`.
        """
        sources = [self._log(shard, records, shard_id, day) for shard, records in appended]
        path = self._write(sources, row_group_bytes)
        for source in sources:
            Path(source.log_path).unlink()
        return path

    def rewrite(self, *files: Path, without: Sequence[str] = ()) -> Path:
        """Write the records of shared files of one day into a new file beside them, except those of some shards."""
        tree = FileTree(str(self.root))
        sources = []
        for file in files:
            name = parse_shared(str(file))
            assert name is not None
            for run in runs_in(tree, name, lambda shard: shard not in without):
                assert run.rows.place is not None
                sources.append(
                    PartSource(
                        log_path=str(file),
                        name=run.shard,
                        shard_id=run.shard_id,
                        base_offset=run.rows.base_offset,
                        next_offset=run.rows.next_offset,
                        kind=SourceKind.SHARED,
                        first_row=run.rows.place.first_row,
                    )
                )
        return self._write(sources, 1 << 20)

    def _write(self, sources: Sequence[PartSource], row_group_bytes: int) -> Path:
        self._file_id += 1
        prefix = str(self.root.parent / f"{self._file_id}")
        in_order = sorted(sources, key=lambda one: (one.name.encode(), one.shard_id, one.base_offset))
        plan = SharedPlan(prefix, self._file_id, tuple(in_order))
        (written,) = write_shared_files(self._files, plan, row_group_bytes=row_group_bytes).files
        path = Path(shared_path(str(self.root), written.day, self._file_id))
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(written.path).rename(path)

    def _log(self, shard: str, records: Sequence[Record], shard_id: int | None, day: int = 0) -> PartSource:
        """Append records to a shard, in a log file."""
        shard_id = self.id_of(shard) if shard_id is None else shard_id
        base_offset = self._next.get(f"{shard}/{shard_id}", 0)
        next_offset = base_offset + len(records)
        batches = bytearray()
        for first in range(0, len(records), self._batch_size):
            at = len(batches)
            batches += encode(records[first : first + self._batch_size], now_us=NOW_US)
            self._lsn += 1
            stamp(batches, at, base_offset + first, self._lsn, NOW_US + day * DAY_US + self._lsn)
        header = LogHeader(shard_id, base_offset, NOW_US, shard).encode()
        log = self.root.parent / f"{shard_id}-{base_offset}.log"
        log.write_bytes(header + batches)
        self._next[f"{shard}/{shard_id}"] = next_offset
        return PartSource(
            log_path=str(log),
            name=shard,
            shard_id=shard_id,
            base_offset=base_offset,
            next_offset=next_offset,
            start_position=len(header),
            end_position=len(header) + len(batches),
        )


def values(count: int, *, first: int = 0, topic: str = "") -> list[Record]:
    """Records that have their number as value, an hour apart."""
    return [
        Record(value=b'{"n": %d}' % n, key=b"k%d" % (n % 3), topic=topic, timestamp_us=NOW_US + n * 3_600_000_000)
        for n in range(first, first + count)
    ]
