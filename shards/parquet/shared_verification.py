"""Verifying a whole shared file: order, statistics and metadata against the rows, and the rows against the parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shards.errors import CorruptionError, FormatVersionError
from shards.parquet.arrow_buffers import column_numbers, data_size
from shards.parquet.file_checks import of_group, problems_of_bytes, problems_of_statistics
from shards.parquet.schema import DAY_US, MAGIC
from shards.parquet.shared_reading import PartOfFile, SharedReader
from shards.seams.file_system import FileSystem
from shards.segments.segment_paths import shared_path

_COUNTED = ("shard_id", "offset", "lsn", "timestamp", "append_time")
_COMPARED = ("shard", "topic", "key")
_PLACES = ["shard", "shard_id", "offset", "lsn", "append_time"]


def verify_shared(
    files: FileSystem,
    path: str,
    parts: Sequence[PartOfFile] = (),
    *,
    size_bytes: int | None = None,
    digest: bytes | None = None,
) -> list[str]:
    """Return the problems of a shared file as sentences with path, position, expected and found; empty if intact.

    Args:
        parts: Segments that must be in it.
        size_bytes: Expected size of the file, if it is known.
        digest: Expected SHA-256 of the file, if it is known.

    Raises:
        OSError: The file cannot be read.
    """
    problems: list[str] = []
    try:
        with SharedReader(files, path) as reader:
            problems += _problems_of_name(reader)
            problems += _problems_of_rows(reader)
            for part in parts:
                problems += _problems_of_part(reader, part)
            file = files.open(path, write=False)
            try:
                problems += problems_of_bytes(reader, file, digest)
            finally:
                file.close()
            if size_bytes is not None and reader.end.size_bytes != size_bytes:
                problems.append(f"{path}: expected {size_bytes} bytes, found {reader.end.size_bytes}")
    except (CorruptionError, FormatVersionError) as error:
        problems.append(str(error))
    return problems


def _problems_of_name(reader: SharedReader) -> Iterator[str]:
    """Compare the file's name and directory with its metadata."""
    expected = shared_path("", reader.metadata.day, reader.metadata.file_id)
    if not f"/{reader.path}".endswith(expected):
        yield f"{reader.path}: according to its metadata, the file is {expected[1:]}"


def _problems_of_rows(reader: SharedReader) -> Iterator[str]:
    """Decode every row group and compare its rows with those before, the metadata and the statistics."""
    metadata = reader.metadata
    previous: pa.RecordBatch | None = None
    position, value_bytes = len(MAGIC), 0
    for index, entry in enumerate(metadata.row_groups):
        if entry.start != position:
            yield f"{reader.path} at byte {entry.start}: row group {index} begins here, expected byte {position}"
        position = entry.end
        value_bytes += entry.value_bytes
        try:
            rows = reader.table(index, check_pages=True)
        except CorruptionError as error:
            yield str(error)
            continue
        lsns, times_us, append_times = (
            column_numbers(rows.column(name)) for name in ("lsn", "timestamp", "append_time")
        )
        filled = pc.or_(rows.column("own_topic"), pc.equal(rows.column("topic"), rows.column("shard")))
        for what, expected, found in (
            ("days of the appends", [metadata.day], np.unique(append_times // DAY_US).tolist()),
            ("highest lsn", entry.last_lsn, int(lsns.max())),
            ("newest timestamp", entry.newest_us, int(times_us.max())),
            ("bytes of values", entry.value_bytes, data_size(rows.column("value"))),
            ("topics that are the name of the shard", True, filled.false_count == 0),
        ):
            if expected != found:
                yield of_group(reader, index, f"{what}: expected {expected}, found {found}")
        problem, previous = _problem_of_order(rows, previous)
        if problem:
            yield of_group(reader, index, problem)
        try:
            yield from problems_of_statistics(reader, index, rows, _COUNTED, _COMPARED)
        except (pa.ArrowException, ValueError) as error:
            yield of_group(reader, index, f"the statistics cannot be read: {error}")
    for what, expected, found in (
        ("end of the row groups", metadata.data_bytes, position),
        ("bytes of values", metadata.value_bytes, value_bytes),
    ):
        if expected != found:
            yield f"{reader.path}: {what}: expected {expected}, found {found}"


def _problem_of_order(rows: pa.RecordBatch, previous: pa.RecordBatch | None) -> tuple[str, pa.RecordBatch]:
    """Check the order of the rows; returns the first problem, or nothing, and the last row."""
    last = rows.slice(rows.num_rows - 1)
    placed = [batch.select(_PLACES) for batch in (previous, rows) if batch is not None]
    table = pa.Table.from_batches(placed).combine_chunks()
    names = table.column("shard").cast(pa.binary())
    ids, offsets, lsns, times = (column_numbers(table.column(name).chunk(0)) for name in _PLACES[1:])
    same = np.diff(ids) == 0
    falls = (np.diff(offsets) <= 0) | (np.diff(lsns) < 0) | (np.diff(times) < 0)
    renamed = pc.not_equal(names[1:], names[:-1]).to_numpy(zero_copy_only=False)
    wrong = {int(at) for at in np.flatnonzero(same & (falls | renamed))[:1]}
    for at in np.flatnonzero(~same).tolist():
        if (names[at].as_py(), ids[at]) >= (names[at + 1].as_py(), ids[at + 1]):
            wrong.add(at)
            break
    if not wrong:
        return "", last
    at = min(wrong)
    return (
        f"rows are sorted by shard, shard id and offset, lsns and append times rise with the offset; found offset "
        f"{offsets[at + 1]} (lsn {lsns[at + 1]}) of shard {ids[at + 1]} after offset {offsets[at]} (lsn {lsns[at]}) of "
        f"shard {ids[at]}"
    ), last


def _problems_of_part(reader: SharedReader, part: PartOfFile) -> Iterator[str]:
    """Read the rows of a part in the way of the server."""
    try:
        for group in reader.groups_of(part):
            reader.batches(part, group)
    except (CorruptionError, ValueError) as error:
        yield str(error)
