"""Checks of the bytes of a shared file: statistics, digests, checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shards.format.checksum import crc32c
from shards.parquet.arrow_buffers import column_numbers
from shards.parquet.group_reader import GroupReader
from shards.seams.file_system import File

_READ_BYTES = 1 << 20


def problems_of_statistics(
    reader: GroupReader, index: int, rows: pa.RecordBatch, counted: Sequence[str], compared: Sequence[str]
) -> Iterator[str]:
    """Compare the statistics of a row group, by which readers select row groups, with its rows.

    Args:
        counted: Columns of numbers and times that have statistics.
        compared: Columns of texts and binaries that have statistics.
    """
    group = reader.footer.row_group(index)
    for number in range(group.num_columns):
        chunk = group.column(number)
        name = chunk.path_in_schema
        # pyarrow aborts the process on statistics of another type than the schema's.
        expected, stored = reader.footer.schema.column(number).physical_type, chunk.physical_type
        if stored != expected:
            yield of_group(reader, index, f"column {name} has values of type {stored}, expected {expected}")
            continue
        if name not in (*counted, *compared) or chunk.statistics is None or not chunk.statistics.has_min_max:
            continue
        column = rows.column(name)
        if name in counted:
            numbers = column_numbers(rows.column(name))
            true: tuple[Any, Any] = int(numbers.min()), int(numbers.max())
        else:
            least_and_greatest = pc.min_max(column.cast(pa.binary()))
            true = least_and_greatest["min"].as_py(), least_and_greatest["max"].as_py()
        found = chunk.statistics.min_raw, chunk.statistics.max_raw
        if found != true:
            yield of_group(reader, index, f"statistics of {name}: expected {true}, found {found}")


def problems_of_bytes(reader: GroupReader, file: File, digest: bytes | None) -> Iterator[str]:
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


def of_group(reader: GroupReader, index: int, problem: str) -> str:
    """The message for a problem with a row group."""
    return str(reader.corruption(index, problem))
