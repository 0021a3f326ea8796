"""Trees of sealed segments as a server leaves them: batches in a log file, sealed by the real converter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from shards.format.batch import encode, stamp
from shards.format.record import Record
from shards.parquet.conversion import ConversionPlan, convert_log
from shards.seams.os_file_system import OsFileSystem
from shards.segments.log_segment import LogHeader
from shards.segments.segment_paths import sealed_path
from shards.topics.names import directory_name

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
        self._files = OsFileSystem()

    def id_of(self, shard: str) -> int:
        """The shard's id; given when it is first asked for."""
        return self._ids.setdefault(shard, len(self._ids) + 1)

    def convert(self, shard: str, records: Sequence[Record], *, shard_id: int | None = None) -> Path:
        """Append records to a shard and convert them as one segment."""
        shard_id = self.id_of(shard) if shard_id is None else shard_id
        base_offset = self._next.get(f"{shard}/{shard_id}", 0)
        next_offset = base_offset + len(records)
        batches = bytearray()
        for first in range(0, len(records), self._batch_size):
            at = len(batches)
            batches += encode(records[first : first + self._batch_size], now_us=NOW_US)
            self._lsn += 1
            stamp(batches, at, base_offset + first, self._lsn, NOW_US + self._lsn)
        header = LogHeader(shard_id, base_offset, NOW_US, shard).encode()
        log = self.root.parent / f"{shard_id}-{base_offset}.log"
        log.write_bytes(header + batches)
        out = Path(sealed_path(str(self.root), shard, shard_id, base_offset, next_offset))
        out.parent.mkdir(parents=True, exist_ok=True)
        plan = ConversionPlan(
            log_path=str(log),
            out_path=str(out),
            name=shard,
            shard_id=shard_id,
            base_offset=base_offset,
            next_offset=next_offset,
            start_position=len(header),
            end_position=len(header) + len(batches),
            created_us=NOW_US,
        )
        convert_log(self._files, plan)
        log.unlink()
        self._next[f"{shard}/{shard_id}"] = next_offset
        return out

    def trim(self, shard: str, start_offset: int) -> None:
        """Say where the shard starts; the files stay."""
        mark = self.root / directory_name(shard) / f"_start-{self.id_of(shard):016x}"
        mark.write_text(json.dumps({"start_offset": start_offset}) + "\n")


def values(count: int, *, first: int = 0, topic: str = "") -> list[Record]:
    """Records that have their number as value, an hour apart."""
    return [
        Record(value=b'{"n": %d}' % n, key=b"k%d" % (n % 3), topic=topic, timestamp_us=NOW_US + n * 3_600_000_000)
        for n in range(first, first + count)
    ]
