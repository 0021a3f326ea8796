"""Conversion of rows of a sealed segment to stamped record batches, in the form that readers of the shard get.

A run of rows with the same lsn is one batch. Columns with only default values are left out, as an encoder does.
"""

from __future__ import annotations

import struct
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from shards.format.batch import HEADER_SIZE, stamp
from shards.format.batch_header import BODY_CRC_AT, CHECKED, CHECKED_FROM
from shards.format.checksum import crc32c
from shards.format.columns import Column
from shards.parquet.arrow_buffers import Ints, column_numbers, column_offsets, padded, ranges, starts_of

_CRC = struct.Struct("<I")


@attrs.frozen
class EncodedGroup:
    """Adjacent stamped batches.

    Attributes:
        base_offsets: Base offset of each batch.
        positions: Position of each batch in ``data``.
    """

    data: memoryview
    base_offsets: list[int]
    positions: list[int]


class _Times:
    """A column of int64 times to be written."""

    def __init__(self, bit: int, times_us: Ints, present: Any) -> None:
        self.bit = bit
        self.present = present
        self._times_us = times_us

    def sizes(self, starts: Ints, counts: Ints) -> Ints:
        return 8 * counts

    def write(self, out: _Output, at: Ints, starts: Ints, counts: Ints) -> None:
        out.int64[ranges(at >> 3, counts)] = self._times_us[ranges(starts, counts)]


class _Items:
    """A column of texts or binaries to be written; also used for the items of lists."""

    def __init__(self, bit: int, array: pa.Array, starts: Ints, counts: Ints) -> None:
        self.bit = bit
        self._offsets = column_offsets(array)
        data = array.buffers()[-1]
        self._data = memoryview(data).cast("B") if data is not None else memoryview(b"")
        self.present = self._offsets[starts + counts] > self._offsets[starts]

    def sizes(self, starts: Ints, counts: Ints) -> Ints:
        return padded(4 * (counts + 1)) + padded(self._offsets[starts + counts] - self._offsets[starts])

    def write(self, out: _Output, at: Ints, starts: Ints, counts: Ints) -> None:
        begins, ends = self._offsets[starts], self._offsets[starts + counts]
        index = ranges(starts, counts + 1)
        out.int32[ranges(at >> 2, counts + 1)] = self._offsets[index] - np.repeat(begins, counts + 1)
        data, view = self._data, out.view
        to = at + padded(4 * (counts + 1))
        for first, after, begin, end in zip(
            to.tolist(), (to + ends - begins).tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            view[first:after] = data[begin:end]


class _Lists:
    """A column of lists to be written, with the columns of the items."""

    def __init__(self, bit: int, array: pa.Array, starts: Ints, counts: Ints, children: list[pa.Array]) -> None:
        self.bit = bit
        self._offsets = column_offsets(array)
        begins, ends = self._offsets[starts], self._offsets[starts + counts]
        self.present = ends > begins
        self._children = [_Items(0, child, begins, ends - begins) for child in children]

    def sizes(self, starts: Ints, counts: Ints) -> Ints:
        begins = self._offsets[starts]
        item_counts = self._offsets[starts + counts] - begins
        sizes = padded(4 * (counts + 1))
        for child in self._children:
            sizes += child.sizes(begins, item_counts)
        return sizes

    def write(self, out: _Output, at: Ints, starts: Ints, counts: Ints) -> None:
        begins = self._offsets[starts]
        item_counts = self._offsets[starts + counts] - begins
        index = ranges(starts, counts + 1)
        out.int32[ranges(at >> 2, counts + 1)] = self._offsets[index] - np.repeat(begins, counts + 1)
        at = at + padded(4 * (counts + 1))
        for child in self._children:
            child.write(out, at, begins, item_counts)
            at = at + child.sizes(begins, item_counts)


class _Output:
    """The output, as bytes and as numbers."""

    def __init__(self, size_bytes: int) -> None:
        self.buffer = bytearray(size_bytes)
        self.view = memoryview(self.buffer)
        self.int32 = np.frombuffer(self.buffer, "<i4")
        self.int64 = np.frombuffer(self.buffer, "<i8")


def encode_group(rows: pa.RecordBatch) -> EncodedGroup:
    """Return the batches of rows of a sealed segment; the rows must have all columns."""
    if not rows.num_rows:
        return EncodedGroup(memoryview(b""), [], [])
    offsets, lsns, times_us, append_times = (
        column_numbers(rows.column(name)) for name in ("offset", "lsn", "timestamp", "append_time")
    )
    starts = np.concatenate(([0], np.flatnonzero(lsns[1:] != lsns[:-1]) + 1)).astype(np.int64)
    counts = np.diff(starts, append=len(lsns)).astype(np.int64)
    earliest, latest = np.minimum.reduceat(times_us, starts), np.maximum.reduceat(times_us, starts)
    columns = _columns(rows, times_us, earliest != latest, starts, counts)

    present = np.zeros(len(starts), np.int64)
    for column in columns:
        present[column.present] |= column.bit
    # Without any column the size of the body would not bound the number of records.
    present[present == 0] = Column.VALUE
    chosen = [(column, np.flatnonzero(present & column.bit)) for column in columns]
    column_sizes = [column.sizes(starts[some], counts[some]) for column, some in chosen]
    body_sizes = np.zeros(len(starts), np.int64)
    for (_, some), sizes in zip(chosen, column_sizes, strict=True):
        body_sizes[some] += sizes
    positions = starts_of(body_sizes + HEADER_SIZE)

    out = _Output(int((body_sizes + HEADER_SIZE).sum()))
    at = positions + HEADER_SIZE
    for (column, some), sizes in zip(chosen, column_sizes, strict=True):
        if len(some):
            column.write(out, at[some], starts[some], counts[some])
            at[some] += sizes
    base_offsets, position_list = offsets[starts].tolist(), positions.tolist()
    buffer, view = out.buffer, out.view
    for position, size, count, bits, first_us, last_us, base_offset, lsn, append_time_us in zip(
        position_list,
        body_sizes.tolist(),
        counts.tolist(),
        present.tolist(),
        earliest.tolist(),
        latest.tolist(),
        base_offsets,
        lsns[starts].tolist(),
        append_times[starts].tolist(),
        strict=True,
    ):
        checked_from = position + CHECKED_FROM
        CHECKED.pack_into(buffer, checked_from, size, size, count, bits, 0, 0, 0, 0, 0, 0, first_us, last_us)
        checksum = crc32c(view[checked_from : position + HEADER_SIZE + size])
        _CRC.pack_into(buffer, position + BODY_CRC_AT, checksum)
        stamp(buffer, position, base_offset, lsn, append_time_us)
    # No copy: allocating memory takes as long as everything else.
    return EncodedGroup(view.toreadonly(), base_offsets, position_list)


def _columns(
    rows: pa.RecordBatch, times_us: Ints, differ: Any, starts: Ints, counts: Ints
) -> list[_Times | _Items | _Lists]:
    """Return the columns in the order in which a body has them."""
    columns: list[_Times | _Items | _Lists] = [
        _Times(Column.TIMESTAMP, times_us, differ),
        _Items(Column.TOPIC, rows.column("topic"), starts, counts),
        _Items(Column.KEY, rows.column("key"), starts, counts),
        _Items(Column.VALUE, rows.column("value"), starts, counts),
    ]
    headers, tags, expires_at = (rows.column(name) for name in ("headers", "tags", "expires_at"))
    if len(headers.values):
        pairs = headers.values
        columns.append(_Lists(Column.HEADERS, headers, starts, counts, [pairs.field("key"), pairs.field("value")]))
    if len(tags.values):
        columns.append(_Lists(Column.TAGS, tags, starts, counts, [tags.values]))
    if expires_at.null_count < len(expires_at):
        expiries = column_numbers(expires_at.fill_null(0) if expires_at.null_count else expires_at)
        columns.append(_Times(Column.EXPIRES_AT, expiries, np.maximum.reduceat(expiries, starts) > 0))
    return columns
