"""Log segments and their indexes as a start and a reader see them, and converting them to Parquet."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from shards.errors import BatchError, CorruptionError, FormatVersionError
from shards.format.batch import iterate
from shards.parquet.shared_file import write_shared_files
from shards.segments.chunks import ChunkPool
from shards.segments.log_segment import MAGIC, LogHeader, LogSegment
from shards.segments.read_slices import LostBatchError, find_in_bytes
from shards.segments.sparse_index import STORED_SIZE, SparseIndex
from tests.fuzz.memory_files import memory_files
from tests.fuzz.target import Target
from tests.fuzz.targets import batches
from tests.shards.batches import NOW_US
from tests.shards.parquet.shared_files import Gathered, as_stored, make_directories, plan_for, write_batches
from tests.shards.parquet.stamped_batches import BASE_OFFSET, decode_all, encode_all, records_of, stamp_all
from tests.simulation.file_system import SimulatedFileSystem

_GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
_PATH = "/log/07/segment.log"
_NAME = "plant/line-\u00fc"


def run_log_segments(data: bytes) -> None:
    """A log file's header is read or refused by CorruptionError or FormatVersionError; one that is read is written
    to the same bytes.

    The index of its batches is made again without another error than CorruptionError, and a search in it without
    another than LostBatchError.
    """
    try:
        header, size = LogHeader.decode(_PATH, data[:2048])
    except (CorruptionError, FormatVersionError):
        return
    assert 0 < size <= 2048
    encoded = header.encode()
    again, again_size = LogHeader.decode(_PATH, encoded)
    assert (again, again_size) == (header, len(encoded))
    segment = LogSegment(_PATH, header, ChunkPool(0))
    segment.restore(
        end=len(data), next_offset=header.base_offset, newest_append_us=0, last_lsn=0, newest_us=0, entries=0
    )
    files = memory_files({_PATH: data})
    try:
        index = segment.rebuild_index(files)
    except CorruptionError:
        index = None
    if index is not None:
        assert all(size <= position < len(data) for position in index.positions)
    try:
        find_in_bytes(memoryview(data)[size:], lambda found: found.lsn > 6)
    except LostBatchError as error:
        assert 0 <= error.place <= len(data)


def _repair_log(data: bytes) -> bytes:
    fixed = bytearray(data.ljust(48, b"\0"))
    fixed[:4] = MAGIC
    fixed[8:10] = b"\1\0"
    (size,) = struct.unpack_from("<H", fixed, 10)
    if not 40 <= size <= len(fixed):
        size = min(len(fixed), 64) & -8
        struct.pack_into("<H", fixed, 10, size)
    struct.pack_into("<I", fixed, 4, crc32c(bytes(fixed[8:size])))
    return bytes(fixed[:size]) + batches.repair(bytes(fixed[size:]))


def _log() -> bytes:
    return stamp_all(encode_all([(records, 0) for records in batches.RECORDS]))


def _log_seeds() -> list[bytes]:
    header = LogHeader(7, 1000, NOW_US, _NAME).encode()
    large = stamp_all(encode_all([(batches.RECORDS[3] * 15, 0)] * 3))
    return [(_GOLDEN / "log_segment.log").read_bytes(), header, header + _log(), header + large]


def run_sparse_index(data: bytes) -> None:
    """An index file gives its entries, or None for the caller to make it again; what is read is written the same."""
    for count in {0, 1, len(data) // STORED_SIZE, len(data) // STORED_SIZE + 1}:
        index = SparseIndex.decode(data, count)
        if index is None:
            continue
        assert len(index) == count
        again = SparseIndex.decode(index.encode(0, count), count)
        assert again is not None
        assert list(again.positions) == list(index.positions)
        index.position_before_offset(50, 0)
        index.position_before_time(50, 0)
        index.position_before_lsn(50, 0)


def _repair_index(data: bytes) -> bytes:
    fixed = bytearray(data)
    for at in range(0, len(fixed) - STORED_SIZE + 1, STORED_SIZE):
        struct.pack_into("<I", fixed, at + 32, crc32c(bytes(fixed[at : at + 32])))
    return bytes(fixed)


def run_conversion(data: bytes) -> None:
    """Stamped batches in a log go into shared files with the same records, or CorruptionError says which cannot.

    The files are ones in which nothing is wrong.
    """
    try:
        walked = [found for _, found in iterate(data)]
    except BatchError:
        return
    if not walked or not BASE_OFFSET < walked[-1].next_offset < 2**63:
        return
    files = SimulatedFileSystem()
    make_directories(files)
    plan = plan_for(write_batches(files, data))
    try:
        made = write_shared_files(files, plan, row_group_bytes=200, buffer_bytes=512)
    except CorruptionError:
        return
    gathered = Gathered(files, plan, made)
    expected = batches.plain(decode_all(data))
    assert batches.plain(decode_all(gathered.batches_of(0))) == expected
    found = []
    for number, file in enumerate(made.files):
        with gathered.open(number) as reader:
            rows = pa.Table.from_batches([reader.table(index) for index in range(file.row_groups)])
        found += records_of(as_stored(rows))
        assert gathered.problems_in_place(number) == []
    assert batches.plain(found) == expected


TARGETS = (
    Target("log_segments", run_log_segments, _log_seeds, _repair_log, (MAGIC,), max_input_bytes=96 << 10),
    Target("sparse_index", run_sparse_index, lambda: [(_GOLDEN / "log_segment.index").read_bytes()], _repair_index),
    Target("conversion", run_conversion, lambda: [_log(), _log()[:200], _log()[:-8]], batches.repair, is_slow=True),
)
