"""Conversion of many record batches at once, in wire and log format, to Arrow columns.

The work is done per column over all batches at once, never per record. `shards.parquet.wire_batches` is the reverse.
"""

from __future__ import annotations

from itertools import repeat
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa

from shards.errors import BatchError, LimitExceededError
from shards.format.batch import HEADER_SIZE, MAX_RAW_BYTES, BatchHeader, verify
from shards.format.checksum import Buffer
from shards.format.columns import Column
from shards.format.compression import decompress
from shards.parquet.arrow_buffers import Ints, padded, ranges, starts_of
from shards.parquet.schema import HEADER, HEADERS, RECORD_SCHEMA, TAGS, TIME

_MAX_DATA_BYTES = 2**31 - 1


def read_table(batches: Buffer, *, max_raw_bytes: int = MAX_RAW_BYTES) -> pa.RecordBatch:
    """Return the records of the adjacent stamped batches in ``batches``; gap batches are skipped.

    Args:
        max_raw_bytes: Limit of one batch's body before compression.

    Raises:
        BatchError: As `shards.format.batch.decode`, for any of the batches.
        LimitExceededError: The data of one column exceeds 2 GiB.
    """
    collector = BatchCollector(max_raw_bytes=max_raw_bytes)
    at, end = 0, len(batches)
    while at < end:
        header = verify(batches, at)
        if not header.flags:
            collector.add(batches, at, header)
        at += header.size_bytes
    return collector.finish()


class BatchCollector:
    """Collects verified batches and converts them to one `pyarrow.RecordBatch`.

    Attributes:
        record_count: Records collected.
        body_bytes: Size of the collected bodies before compression.
    """

    def __init__(self, *, max_raw_bytes: int = MAX_RAW_BYTES) -> None:
        self._max_raw_bytes = max_raw_bytes
        self._clear()

    def _clear(self) -> None:
        self.record_count = 0
        self.body_bytes = 0
        self._headers: list[BatchHeader] = []
        # The buffers of the bodies; usually the same one for all of them.
        self._buffers: list[Buffer] = []
        self._starts: list[int] = []

    def add(self, buffer: Buffer, at: int, header: BatchHeader) -> None:
        """Add the batch at ``at``, whose header `verify` returned; not a gap batch.

        The buffer must not be changed until `finish`.

        Raises:
            BatchError: The body cannot be decompressed, or is over the limit.
        """
        start = at + HEADER_SIZE
        if header.codec or header.raw_size > self._max_raw_bytes:
            stored = memoryview(buffer)[start : start + header.body_size]
            buffer = decompress(header.codec, stored, header.raw_size, max_raw_bytes=self._max_raw_bytes)
            start = 0
        self._buffers.append(buffer)
        self._starts.append(start)
        self._headers.append(header)
        self.record_count += header.record_count
        self.body_bytes += header.raw_size

    def finish(self) -> pa.RecordBatch:
        """Return the collected records, and clear the collector.

        Raises:
            BatchError: A batch's columns do not match its header.
            LimitExceededError: The data of one column exceeds 2 GiB.
        """
        headers, buffers, starts = self._headers, self._buffers, self._starts
        self._clear()
        if not headers:
            return pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA)
        fields: Any = BatchHeader(*zip(*headers, strict=True))  # type: ignore[arg-type]
        sizes = np.array(fields.raw_size, np.int64)
        return _read(_bodies(buffers, np.array(starts, np.int64), sizes), fields)


def _bodies(buffers: list[Buffer], starts: Ints, sizes: Ints) -> _Bodies:
    """Return the bodies as parts of one buffer; they are copied only if they are in several ones."""
    first = buffers[0]
    whole = np.frombuffer(first, np.uint8)
    if all(map(is_, buffers, repeat(first))) and whole.ctypes.data % 8 == 0 and not (starts & 7).any():
        return _Bodies(first, starts, starts + sizes)
    if (sizes & 7).any():
        raise BatchError("the size of a body before compression is not a multiple of 8")
    places = zip(buffers, starts.tolist(), (starts + sizes).tolist(), strict=True)
    joined = b"".join([memoryview(buffer)[start:end] for buffer, start, end in places])
    starts = starts_of(sizes)
    return _Bodies(joined, starts, starts + sizes)


def _read(bodies: _Bodies, fields: Any) -> pa.RecordBatch:
    try:
        base_offsets, lsns, append_times, earliest, latest = (
            np.array(numbers, np.int64)
            for numbers in (
                fields.base_offset,
                fields.lsn,
                fields.append_time_us,
                fields.min_timestamp_us,
                fields.max_timestamp_us,
            )
        )
    except OverflowError as error:
        raise BatchError("an offset, lsn or time of a header is over 2^63 - 1") from error
    counts = np.array(fields.record_count, np.int64)
    present = np.array(fields.columns, np.int64)
    total = int(counts.sum())

    columns = _Columns(bodies, counts, present)
    arrays = {
        "offset": _int64(np.repeat(base_offsets - starts_of(counts), counts) + np.arange(total)),
        "lsn": _int64(np.repeat(lsns, counts)),
        "append_time": _int64(np.repeat(append_times, counts), TIME),
        "timestamp": _int64(columns.timestamps(earliest, latest), TIME),
        "topic": columns.variable(Column.TOPIC, pa.string()),
        "key": columns.variable(Column.KEY, pa.binary()),
        "value": columns.variable(Column.VALUE, pa.binary()),
        "headers": columns.headers(),
        "tags": columns.tags(),
        "expires_at": columns.expiries(),
    }
    bodies.require_end()
    return pa.RecordBatch.from_arrays([arrays[name] for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


class _Columns:
    """Decodes the columns of many batches in order; a column that some batches lack is filled with empty values."""

    def __init__(self, bodies: _Bodies, counts: Ints, present: Ints) -> None:
        self._bodies = bodies
        self._counts = counts
        self._present = present
        self._total = int(counts.sum())

    def _rows(self, column: int) -> Ints:
        """Return which batches have the column."""
        return np.flatnonzero(self._present & column)

    def _spread(self, rows: Ints, found: Ints) -> Ints:
        """Return one number for each record of all batches: the found ones, and 0 for batches without the column."""
        if len(rows) == len(self._counts):
            return found
        spread = np.zeros(self._total, np.int64)
        spread[ranges(starts_of(self._counts)[rows], self._counts[rows])] = found
        return spread

    def timestamps(self, earliest: Ints, latest: Ints) -> Ints:
        rows = self._rows(Column.TIMESTAMP)
        times_us = np.repeat(earliest, self._counts)
        alike = earliest.copy()
        if len(rows):
            counts = self._counts[rows]
            found = self._bodies.times(rows, counts)
            if (np.minimum.reduceat(found, starts_of(counts)) != earliest[rows]).any():
                raise BatchError("the earliest timestamp is not that of the header")
            alike[rows] = np.maximum.reduceat(found, starts_of(counts))
            times_us[ranges(starts_of(self._counts)[rows], counts)] = found
        if (alike != latest).any():
            raise BatchError("the latest timestamp is not that of the header")
        return times_us

    def expiries(self) -> pa.Array:
        rows = self._rows(Column.EXPIRES_AT)
        if not len(rows):
            return pa.nulls(self._total, TIME)
        times_us = self._spread(rows, self._bodies.times(rows, self._counts[rows]))
        known = np.packbits(times_us != 0, bitorder="little")
        return pa.Array.from_buffers(TIME, self._total, [pa.py_buffer(known), pa.py_buffer(times_us)])

    def variable(self, column: int, arrow_type: Any) -> pa.Array:
        rows = self._rows(column)
        if not len(rows):
            return _empty_items(arrow_type, self._total)
        lengths, data = self._bodies.items(rows, self._counts[rows])
        return _variable(arrow_type, self._spread(rows, lengths), data)

    def headers(self) -> pa.Array:
        rows = self._rows(Column.HEADERS)
        if not len(rows):
            return _lists(HEADERS, np.zeros(self._total, np.int64), pa.array([], HEADER))
        lengths, pair_counts = self._bodies.lengths(rows, self._counts[rows])
        names = _variable(pa.string(), *self._bodies.items(rows, pair_counts))
        values = _variable(pa.binary(), *self._bodies.items(rows, pair_counts))
        pairs = pa.Array.from_buffers(HEADER, len(names), [None], children=[names, values])
        return _lists(HEADERS, self._spread(rows, lengths), pairs)

    def tags(self) -> pa.Array:
        rows = self._rows(Column.TAGS)
        if not len(rows):
            return _lists(TAGS, np.zeros(self._total, np.int64), pa.array([], pa.string()))
        lengths, word_counts = self._bodies.lengths(rows, self._counts[rows])
        words = _variable(pa.string(), *self._bodies.items(rows, word_counts))
        return _lists(TAGS, self._spread(rows, lengths), words)


class _Bodies:
    """Positions in many bodies that are decoded in parallel; each method reads a buffer from some of them and moves on.

    Args:
        raw: All bodies before compression; it begins at a multiple of 8 in memory, and so does each body.
        starts: Where each body begins.
        ends: Where each body ends.
    """

    def __init__(self, raw: Buffer, starts: Ints, ends: Ints) -> None:
        usable = len(raw) & -8
        self._raw = memoryview(raw)
        self._int32 = np.frombuffer(raw, "<i4", usable // 4)
        self._int64 = np.frombuffer(raw, "<i8", usable // 8)
        self._at = starts
        self._ends = ends

    def _take(self, rows: Ints, sizes: Ints) -> Ints:
        starts = self._at[rows]
        after = starts + padded(sizes)
        if (after > self._ends[rows]).any():
            raise BatchError("a column buffer is cut off")
        self._at[rows] = after
        return starts

    def times(self, rows: Ints, counts: Ints) -> Ints:
        starts = self._take(rows, 8 * counts)
        times_us = self._int64[ranges(starts >> 3, counts)]
        if times_us.min() < 0:
            raise BatchError("a time is negative")
        return times_us

    def lengths(self, rows: Ints, counts: Ints) -> tuple[Ints, Ints]:
        """Read buffers of offsets; return the lengths of the items, and of all items of each body together."""
        starts = self._take(rows, 4 * (counts + 1)) >> 2
        totals = self._int32[starts + counts].astype(np.int64)
        if self._int32[starts].any() or totals.min() < 0:
            raise BatchError("offsets do not begin at 0 or end below it")
        index = ranges(starts, counts)
        begins = self._int32[index].astype(np.int64)
        index += 1
        lengths = self._int32[index] - begins
        if len(lengths) and lengths.min() < 0:
            raise BatchError("offsets fall")
        return lengths, totals

    def items(self, rows: Ints, counts: Ints) -> tuple[Ints, bytes]:
        """Read offsets and data; return the lengths of the items and the data of all bodies."""
        lengths, sizes = self.lengths(rows, counts)
        starts = self._take(rows, sizes)
        raw = self._raw
        ends = (starts + sizes).tolist()
        return lengths, b"".join([raw[start:end] for start, end in zip(starts.tolist(), ends, strict=True)])

    def require_end(self) -> None:
        if (self._at != self._ends).any():
            raise BatchError("bytes are left over after the columns of a body")


def _int64(numbers: Ints, arrow_type: Any = None) -> pa.Array:
    return pa.Array.from_buffers(arrow_type or pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _offsets(lengths: Ints) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MAX_DATA_BYTES:
        raise LimitExceededError(f"a column of {offsets[-1]} bytes is over the limit of {_MAX_DATA_BYTES}: read less")
    return pa.py_buffer(offsets.astype(np.int32))


def _variable(arrow_type: Any, lengths: Ints, data: bytes) -> pa.Array:
    array = pa.Array.from_buffers(arrow_type, len(lengths), [None, _offsets(lengths), pa.py_buffer(data)])
    if arrow_type == pa.string() and not data.isascii():
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BatchError(f"a text is not UTF-8: {error}") from error
    return array


def _empty_items(arrow_type: Any, count: int) -> pa.Array:
    return pa.Array.from_buffers(
        arrow_type, count, [None, pa.py_buffer(np.zeros(count + 1, np.int32)), pa.py_buffer(b"")]
    )


def _lists(arrow_type: Any, lengths: Ints, items: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(arrow_type, len(lengths), [None, _offsets(lengths)], children=[items])
