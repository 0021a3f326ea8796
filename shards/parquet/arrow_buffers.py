"""Buffers of Arrow columns with numpy, without a copy, and index arithmetic for ranges of different lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def starts_of(counts: Ints) -> Ints:
    """Return the start of each range when ranges of these lengths are adjacent."""
    return np.cumsum(counts) - counts


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the numbers from each start on, as many as its count, one range after the other."""
    return np.repeat(starts - starts_of(counts), counts) + np.arange(counts.sum())


def padded(sizes: Ints) -> Ints:
    """Return the sizes rounded up to multiples of 8."""
    return sizes + 7 & -8


def column_numbers(column: Any) -> Ints:
    """Return the numbers of an int64 or time column without nulls."""
    return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)


def column_offsets(column: Any) -> Ints:
    """Return the offsets of a text, binary or list column: one more than its number of items."""
    return _stored_offsets(column).astype(np.int64)


def data_size(column: Any) -> int:
    """Return the size in bytes of all items of a text or binary column."""
    offsets = _stored_offsets(column)
    return int(offsets[-1] - offsets[0])


def _stored_offsets(column: Any) -> npt.NDArray[np.int32]:
    buffer = column.buffers()[1]
    if buffer is None or buffer.size == 0:
        # Arrow allows this for a column without items.
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32, len(column) + 1, column.offset * 4)
