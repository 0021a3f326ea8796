"""Verifying a whole sealed segment: each part is checked against the others."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from shards.errors import CorruptionError, InvalidNameError
from shards.parquet.arrow_buffers import column_numbers, data_size
from shards.parquet.file_checks import of_group, problems_of_file, problems_of_statistics
from shards.parquet.reading import SealedReader
from shards.parquet.schema import MAGIC
from shards.seams.file_system import FileSystem
from shards.segments.segment_paths import sealed_path
from shards.topics.names import shard_name

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
    return problems_of_file(files, path, SealedReader, _problems_of_content, size_bytes=size_bytes, digest=digest)


def _problems_of_content(reader: SealedReader) -> Iterator[str]:
    yield from _problems_of_name(reader)
    yield from _problems_of_rows(reader)


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
            yield of_group(reader, group.index, f"expected first offset {next_offset}, found {entry.first_offset}")
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
                yield of_group(reader, group.index, f"{what}: expected {expected}, found {found}")
        previous_lsn, previous_time = int(lsns[-1]), int(append_times[-1])
        try:
            yield from problems_of_statistics(reader, group.index, rows, _COUNTED, _COMPARED)
        except (pa.ArrowException, ValueError) as error:
            yield of_group(reader, group.index, f"the statistics cannot be read: {error}")
    for what, expected, found in (
        ("end of the row groups", reader.metadata.data_bytes, position),
        ("next offset", reader.next_offset, next_offset),
        ("bytes of values", reader.metadata.value_bytes, value_bytes),
    ):
        if expected != found:
            yield f"{reader.path}: {what}: expected {expected}, found {found}"
