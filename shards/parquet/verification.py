"""Verifying a whole sealed segment: each part is checked against the others."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shards.errors import CorruptionError, FormatVersionError, InvalidNameError
from shards.format.checksum import crc32c
from shards.parquet.arrow_buffers import column_numbers, data_size
from shards.parquet.reading import SealedReader
from shards.parquet.schema import MAGIC
from shards.seams.file_system import File, FileSystem
from shards.segments.segment_paths import sealed_path
from shards.topics.names import shard_name

_READ_BYTES = 1 << 20
_COUNTED = ("offset", "lsn", "timestamp", "append_time")
_COMPARED = ("topic", "key")


def verify(files: FileSystem, path: str, *, size_bytes: int | None = None, digest: bytes | None = None) -> list[str]:
    """Return the problems of a sealed segment as sentences with path, position, expected and found; empty if intact.

    Args:
        size_bytes: Expected size of the file, if it is known.
        digest: Expected SHA-256 of the file, if it is known.

    Raises:
        OSError: The file cannot be read.
    """
    problems: list[str] = []
    try:
        with SealedReader(files, path) as reader:
            problems += _problems_of_name(reader)
            problems += _problems_of_rows(reader)
            file = files.open(path, write=False)
            try:
                problems += _problems_of_bytes(reader, file, digest)
            finally:
                file.close()
            if size_bytes is not None and reader.end.size_bytes != size_bytes:
                problems.append(f"{path}: expected {size_bytes} bytes, found {reader.end.size_bytes}")
    except (CorruptionError, FormatVersionError) as error:
        problems.append(str(error))
    return problems


def _problems_of_name(reader: SealedReader) -> Iterator[str]:
    """Compare the file's name and directory with its metadata."""
    metadata = reader.metadata
    directory, name = os.path.split(reader.path)
    expected = os.path.basename(
        sealed_path("", metadata.shard, metadata.shard_id, metadata.base_offset, metadata.next_offset)
    )
    if name != expected:
        yield f"{reader.path}: according to its metadata, the file is that of {expected}"
    shard_directory = os.path.basename(directory)
    if shard_directory.startswith("shard="):
        try:
            named = shard_name(shard_directory)
        except InvalidNameError as error:
            yield f"{reader.path}: {error}"
            return
        whole = os.path.basename(os.path.dirname(sealed_path("", metadata.shard, 0, 0, 1)))
        if whole != shard_directory:
            yield (
                f"{reader.path}: expected shard {named or shard_directory!r} by its directory, "
                f"found {metadata.shard!r} in the metadata"
            )


def _problems_of_rows(reader: SealedReader) -> Iterator[str]:
    """Decode every row group and compare its rows with the metadata and the statistics."""
    previous_lsn, previous_time, next_offset, value_bytes = 0, 0, reader.base_offset, 0
    position = len(MAGIC)
    for group in reader.row_groups:
        entry = reader.metadata.row_groups[group.index]
        if entry.start != position:
            yield f"{reader.path} at byte {entry.start}: row group {group.index} begins here, expected byte {position}"
        position = entry.end
        if entry.first_offset != next_offset:
            yield _of_group(reader, group.index, f"expected first offset {next_offset}, found {entry.first_offset}")
        next_offset = entry.next_offset
        value_bytes += entry.value_bytes
        try:
            rows = reader.table(group.index, check_pages=True)
        except CorruptionError as error:
            yield str(error)
            continue
        offsets, lsns, times_us, append_times = (column_numbers(rows.column(name)) for name in _COUNTED)
        for what, expected, found in (
            ("offsets", True, bool((offsets == np.arange(entry.first_offset, entry.next_offset)).all())),
            ("rising lsns", True, bool((np.diff(lsns) >= 0).all()) and int(lsns[0]) > previous_lsn),
            ("rising append times", True, bool((np.diff(append_times, prepend=previous_time) >= 0).all())),
            ("last lsn", entry.last_lsn, int(lsns[-1])),
            ("newest timestamp", entry.newest_us, int(times_us.max())),
            ("bytes of values", entry.value_bytes, data_size(rows.column("value"))),
        ):
            if expected != found:
                yield _of_group(reader, group.index, f"{what}: expected {expected}, found {found}")
        previous_lsn, previous_time = int(lsns[-1]), int(append_times[-1])
        try:
            yield from _problems_of_statistics(reader, group.index, rows)
        except (pa.ArrowException, ValueError) as error:
            yield _of_group(reader, group.index, f"the statistics cannot be read: {error}")
    for what, expected, found in (
        ("end of the row groups", reader.metadata.data_bytes, position),
        ("next offset", reader.next_offset, next_offset),
        ("bytes of values", reader.metadata.value_bytes, value_bytes),
    ):
        if expected != found:
            yield f"{reader.path}: {what}: expected {expected}, found {found}"


def _problems_of_statistics(reader: SealedReader, index: int, rows: pa.RecordBatch) -> Iterator[str]:
    """Compare the statistics of a row group, by which readers select row groups, with its rows."""
    group = reader.footer.row_group(index)
    for number in range(group.num_columns):
        chunk = group.column(number)
        name = chunk.path_in_schema
        # pyarrow aborts the process on statistics of another type than the schema's.
        expected, stored = reader.footer.schema.column(number).physical_type, chunk.physical_type
        if stored != expected:
            yield _of_group(reader, index, f"column {name} has values of type {stored}, expected {expected}")
            continue
        if name not in _COUNTED + _COMPARED or chunk.statistics is None or not chunk.statistics.has_min_max:
            continue
        column = rows.column(name)
        if name in _COUNTED:
            numbers = column_numbers(rows.column(name))
            true: tuple[Any, Any] = int(numbers.min()), int(numbers.max())
        else:
            least_and_greatest = pc.min_max(column.cast(pa.binary()))
            true = least_and_greatest["min"].as_py(), least_and_greatest["max"].as_py()
        found = chunk.statistics.min_raw, chunk.statistics.max_raw
        if found != true:
            yield _of_group(reader, index, f"statistics of {name}: expected {true}, found {found}")


def _problems_of_bytes(reader: SealedReader, file: File, digest: bytes | None) -> Iterator[str]:
    """Hash the file once and compare the digests and the checksum of the page index."""
    metadata, end = reader.metadata, reader.end
    whole = hashlib.sha256()
    _hash(whole, file, 0, metadata.data_bytes)
    found = whole.hexdigest()
    if found != metadata.data_sha256:
        yield (
            f"{reader.path}: SHA-256 of the first {metadata.data_bytes} bytes: "
            f"expected {metadata.data_sha256}, found {found}"
        )
    index = file.pread(end.index_end - metadata.data_bytes, metadata.data_bytes)
    if (crc := crc32c(index)) != end.index_crc:
        yield (
            f"{reader.path} at byte {metadata.data_bytes}: checksum of the page index: "
            f"expected {end.index_crc:#010x}, found {crc:#010x}"
        )
    if digest is not None:
        _hash(whole, file, metadata.data_bytes, end.size_bytes)
        if whole.digest() != digest:
            yield f"{reader.path}: SHA-256 of the file: expected {digest.hex()}, found {whole.hexdigest()}"


def _hash(whole: Any, file: File, start: int, end: int) -> None:
    buffer = bytearray(_READ_BYTES)
    view = memoryview(buffer)
    while start < end and (count := file.readinto(view[: end - start], start)):
        whole.update(view[:count])
        start += count


def _of_group(reader: SealedReader, index: int, problem: str) -> str:
    return str(reader.corruption(index, problem))
