"""Log segments made of batches, and what becomes of them when they are sealed: for the tests of the Parquet side."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import strategies as st

from shards.format.batch import BatchHeader, decode, encode, iterate, stamp
from shards.format.record import Record, StoredRecord
from shards.parquet.conversion import ConversionPlan, SealedFile, convert_log
from shards.parquet.reading import SealedReader
from shards.seams.file_system import FileSystem
from shards.segments.log_segment import LogHeader
from shards.segments.segment_paths import sealed_path
from tests.shards.batches import NOW_US, codecs, record_lists
from tests.simulation.file_system import SimulatedFileSystem

NAME = "plant/line-\u00fc"
SHARD_ID = 7
BASE_OFFSET = 1000
LOG_PATH = "/log/07/segment.log"

batch_lists = st.lists(st.builds(lambda records, codec: (records, codec), record_lists, codecs), min_size=1, max_size=6)
"""Batches as lists of records, each with a codec."""


def encode_all(batches: Sequence[tuple[list[Record], Any]]) -> list[bytes]:
    """Return the batches unstamped."""
    return [encode(records, now_us=NOW_US, codec=codec) for records, codec in batches]


def stamp_all(batches: Sequence[bytes], *, base_offset: int = BASE_OFFSET, first_lsn: int = 5) -> bytes:
    """Return the batches stamped with rising places, back to back."""
    log = bytearray()
    for number, batch in enumerate(batches):
        at = len(log)
        log += batch
        stamp(log, at, base_offset, first_lsn + 3 * number, NOW_US + 50 * (number // 2))
        base_offset = BatchHeader.unpack(log, at).next_offset
    return bytes(log)


def write_log(files: FileSystem, batches: bytes, *, base_offset: int = BASE_OFFSET) -> ConversionPlan:
    """Write a log file with stamped batches and return the plan to convert it."""
    header = LogHeader(SHARD_ID, base_offset, NOW_US, NAME).encode()
    next_offset = base_offset
    for _, batch in iterate(batches):
        next_offset = batch.next_offset
    out_path = sealed_path("/sealed", NAME, SHARD_ID, base_offset, next_offset)
    for path in (LOG_PATH, out_path):
        files.mkdir(posixpath.dirname(path))
    log = files.open(LOG_PATH, create=True)
    # What is behind the end is none of the segment's.
    log.pwritev([header, batches, b"more"], 0)
    log.fsync()
    log.close()
    for path in ("/log", "/log/07", "/sealed", posixpath.dirname(out_path), "/"):
        files.sync_directory(path)
    return ConversionPlan(
        log_path=LOG_PATH,
        out_path=out_path,
        name=NAME,
        shard_id=SHARD_ID,
        base_offset=base_offset,
        next_offset=next_offset,
        start_position=len(header),
        end_position=len(header) + len(batches),
        created_us=NOW_US,
    )


@attrs.frozen
class Sealed:
    """A sealed segment, its plan and the file system that it is on."""

    files: SimulatedFileSystem
    plan: ConversionPlan
    file: SealedFile

    @property
    def path(self) -> str:
        return self.plan.out_path

    @property
    def content(self) -> bytes:
        file = self.files.open(self.path, write=False)
        return file.pread(file.size(), 0)

    def open(self) -> SealedReader:
        return SealedReader(self.files, self.path)


def convert(batches: bytes, **options: int) -> Sealed:
    """Convert a log of these stamped batches."""
    files = SimulatedFileSystem()
    plan = write_log(files, batches)
    return Sealed(files, plan, convert_log(files, plan, **options))


def decode_all(batches: bytes) -> list[StoredRecord]:
    """Return the records of stamped batches back to back, read one by one."""
    return [record for at, _ in iterate(batches) for record in decode(batches, at)]


def records_of(rows: Any) -> list[StoredRecord]:
    """Return the rows of an Arrow table or record batch as the records that readers of the shard see."""
    import pyarrow as pa

    def times(name: str) -> list[int]:
        return [time_us or 0 for time_us in rows.column(name).cast(pa.int64()).to_pylist()]

    return [
        StoredRecord(
            offset=offset,
            lsn=lsn,
            append_time_us=append_time_us,
            value=value,
            key=key,
            topic=topic,
            timestamp_us=timestamp_us,
            headers=tuple((header["key"], header["value"]) for header in headers),
            tags=tuple(tags),
            expires_at_us=expires_at_us,
        )
        for offset, lsn, append_time_us, value, key, topic, timestamp_us, headers, tags, expires_at_us in zip(
            rows.column("offset").to_pylist(),
            rows.column("lsn").to_pylist(),
            times("append_time"),
            rows.column("value").to_pylist(),
            rows.column("key").to_pylist(),
            rows.column("topic").to_pylist(),
            times("timestamp"),
            rows.column("headers").to_pylist(),
            rows.column("tags").to_pylist(),
            times("expires_at"),
            strict=True,
        )
    ]
