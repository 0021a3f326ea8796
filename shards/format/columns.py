"""The body of a record batch before compression: encoding and decoding its Arrow column buffers.

Every buffer begins at a multiple of 8 and is padded to one with zeros. There are no validity buffers. A text or binary
column is ``int32 offsets[n + 1]`` and the data; a list column has the offsets of the lists before its items' buffers.
Offsets begin at 0 and never fall. Decoding checks all of this and raises `BatchError` for anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final

from shards import compiled
from shards.errors import BatchError, InvalidRequestError, LimitExceededError

MAX_TIME_US = 2**63 - 1
_MAX_DATA_BYTES = 2**31 - 1
_ONE_ITEM = struct.Struct("<2i")
_PADDING = tuple(bytes(-size & 7) for size in range(8))

Headers = tuple[tuple[str, bytes], ...]
Tags = tuple[str, ...]


class Column:
    """The columns' bits, in the order of the columns. Plain integers: an enum would take longer than the decoding."""

    TIMESTAMP: Final = 1
    TOPIC: Final = 2
    KEY: Final = 4
    VALUE: Final = 8
    HEADERS: Final = 16
    TAGS: Final = 32
    EXPIRES_AT: Final = 64


ALL_COLUMNS = 127


def pad(size_bytes: int) -> bytes:
    """Return the padding after a buffer of this size."""
    return _PADDING[size_bytes & 7]


def write_times(times_us: Sequence[int]) -> list[bytes]:
    """Return the buffer of an int64 column.

    Raises:
        InvalidRequestError: A time is negative or over `MAX_TIME_US`.
    """
    if min(times_us) < 0 or max(times_us) > MAX_TIME_US:
        raise InvalidRequestError(f"times must be from 0 to {MAX_TIME_US} us, found {min(times_us)} to {max(times_us)}")
    return [struct.pack(f"<{len(times_us)}q", *times_us)]


def write_offsets(sizes: Iterable[int]) -> list[bytes]:
    """Return the offsets buffer of items with these sizes.

    Raises:
        LimitExceededError: Their sum does not fit into an int32.
    """
    offsets = list(accumulate(sizes, initial=0))
    if offsets[-1] > _MAX_DATA_BYTES:
        raise LimitExceededError(f"a column of {offsets[-1]} bytes is over the limit of {_MAX_DATA_BYTES} for a batch")
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    return [packed, pad(len(packed))]


def write_binary(items: Sequence[bytes]) -> list[bytes]:
    """Return the buffers of a binary column."""
    if len(items) == 1 and len(items[0]) <= _MAX_DATA_BYTES:
        # Many clients append one message at a time, so it has a faster path to the same bytes.
        return [_ONE_ITEM.pack(0, len(items[0])), items[0], pad(len(items[0]))]
    if compiled.encode_binary is not None and (encoded := compiled.encode_binary(items)) is not None:
        return [encoded]
    return binary_in_python(items)


def binary_in_python(items: Sequence[bytes]) -> list[bytes]:
    """The form in Python of `write_binary`."""
    data = b"".join(items)
    return [*write_offsets(map(len, items)), data, pad(len(data))]


def write_text(items: Sequence[str]) -> list[bytes]:
    """Return the buffers of a UTF-8 column.

    Raises:
        InvalidRequestError: A text contains a lone surrogate.
    """
    try:
        data = "".join(items).encode()
        sizes = map(len, items) if len(data) == sum(map(len, items)) else map(len, map(str.encode, items))
        return [*write_offsets(sizes), data, pad(len(data))]
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"topics, header names and tags must be UTF-8 text: {error}") from error


def write_headers(items: Sequence[Headers]) -> list[bytes]:
    """Return the buffers of the headers column, a list of (name, value) pairs for each record."""
    pairs = list(chain.from_iterable(items))
    names, values = zip(*pairs, strict=True) if pairs else ((), ())
    return [*write_offsets(map(len, items)), *write_text(names), *write_binary(values)]


def write_tags(items: Sequence[Tags]) -> list[bytes]:
    """Return the buffers of the tags column, a list of texts for each record."""
    return [*write_offsets(map(len, items)), *write_text(list(chain.from_iterable(items)))]


_WRITERS: tuple[tuple[int, Callable[[Any], list[bytes]]], ...] = (
    (Column.TIMESTAMP, write_times),
    (Column.TOPIC, write_text),
    (Column.KEY, write_binary),
    (Column.VALUE, write_binary),
    (Column.HEADERS, write_headers),
    (Column.TAGS, write_tags),
    (Column.EXPIRES_AT, write_times),
)


def write_columns(columns: dict[int, Sequence[Any]]) -> bytes:
    """Return the body with these columns, all of the same length."""
    parts: list[bytes] = []
    for column, write in _WRITERS:
        if column in columns:
            parts += write(columns[column])
    return b"".join(parts)


class _Cursor:
    """A position in a body during decoding; each method reads the buffers there and moves on."""

    __slots__ = ("at", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def _take(self, size_bytes: int) -> int:
        """Move over a buffer and its padding; return its position."""
        start = self.at
        self.at = start + (size_bytes + 7 & -8)
        if self.at > len(self.body):
            raise BatchError(
                f"column buffer at byte {start} of the body is cut off: expected {size_bytes} bytes, "
                f"found {len(self.body) - start}"
            )
        return start

    def times(self, count: int) -> Sequence[int]:
        start = self._take(8 * count)
        times_us = struct.unpack_from(f"<{count}q", self.body, start)
        if count and min(times_us) < 0:
            raise BatchError(f"time column at byte {start} of the body: expected times from 0, found {min(times_us)}")
        return times_us

    def offsets(self, count: int) -> tuple[int, ...]:
        start = self._take(4 * (count + 1))
        offsets = struct.unpack_from(f"<{count + 1}i", self.body, start)
        if offsets[0] != 0:
            raise BatchError(f"offsets at byte {start} of the body: expected the first to be 0, found {offsets[0]}")
        if list(offsets) != sorted(offsets):
            index, (before, after) = next((i, p) for i, p in enumerate(pairwise(offsets), 1) if p[1] < p[0])
            raise BatchError(
                f"offsets at byte {start} of the body: expected number {index} to be at least {before}, found {after}"
            )
        return offsets

    def last_offset(self, count: int) -> int:
        """Move over a buffer of offsets; return the size of its items together."""
        start = self._take(4 * (count + 1))
        (last,) = struct.unpack_from("<i", self.body, start + 4 * count)
        if last < 0:
            raise BatchError(f"offsets at byte {start} of the body: expected the last to be positive, found {last}")
        return int(last)

    def binary(self, count: int) -> list[bytes]:
        offsets = self.offsets(count)
        start = self._take(offsets[-1])
        data = self.body[start : start + offsets[-1]]
        return [data[begin:end] for begin, end in pairwise(offsets)]

    def text(self, count: int) -> list[str]:
        offsets = self.offsets(count)
        start = self._take(offsets[-1])
        data = self.body[start : start + offsets[-1]]
        try:
            if data.isascii():
                text = data.decode("ascii")
                return [text[begin:end] for begin, end in pairwise(offsets)]
            return [data[begin:end].decode() for begin, end in pairwise(offsets)]
        except UnicodeDecodeError as error:
            raise BatchError(f"text column at byte {start} of the body: expected UTF-8, found {error}") from error

    def headers(self, count: int) -> list[Headers]:
        offsets = self.offsets(count)
        pairs = tuple(zip(self.text(offsets[-1]), self.binary(offsets[-1]), strict=True))
        return [pairs[begin:end] for begin, end in pairwise(offsets)]

    def tags(self, count: int) -> list[Tags]:
        offsets = self.offsets(count)
        words = tuple(self.text(offsets[-1]))
        return [words[begin:end] for begin, end in pairwise(offsets)]

    def filled(self, count: int) -> int:
        """How many of the items are not empty, without moving on."""
        start = self.at
        offsets = self.offsets(count)
        self.at = start
        return len(set(offsets)) - 1

    def list_items(self, count: int) -> int:
        """The number of items of all lists together, without moving on."""
        start = self.at
        items = self.last_offset(count)
        self.at = start
        return items

    def skip_times(self, count: int) -> None:
        self._take(8 * count)

    def skip_binary(self, count: int) -> None:
        self._take(self.last_offset(count))

    def skip_headers(self, count: int) -> None:
        pair_count = self.last_offset(count)
        self.skip_binary(pair_count)
        self.skip_binary(pair_count)

    def skip_tags(self, count: int) -> None:
        self.skip_binary(self.last_offset(count))


_Read = Callable[[_Cursor, int], Sequence[Any]]
_Skip = Callable[[_Cursor, int], None]
_READERS: tuple[tuple[int, _Read, _Skip], ...] = (
    (Column.TIMESTAMP, _Cursor.times, _Cursor.skip_times),
    (Column.TOPIC, _Cursor.text, _Cursor.skip_binary),
    (Column.KEY, _Cursor.binary, _Cursor.skip_binary),
    (Column.VALUE, _Cursor.binary, _Cursor.skip_binary),
    (Column.HEADERS, _Cursor.headers, _Cursor.skip_headers),
    (Column.TAGS, _Cursor.tags, _Cursor.skip_tags),
    (Column.EXPIRES_AT, _Cursor.times, _Cursor.skip_times),
)


def count_words(body: bytes, count: int, present: int, wanted: int) -> int:
    """Return how many keys that are not empty, and how many tags, a body has in the wanted columns.

    It takes a small part of the time of `read_columns`.

    Raises:
        BatchError: A buffer does not fit the body, or the offsets of keys fall.
    """
    cursor = _Cursor(body)
    words = 0
    for column, _, skip in _READERS:
        if present & column:
            if wanted & column & Column.KEY:
                words += cursor.filled(count)
            elif wanted & column & Column.TAGS:
                words += cursor.list_items(count)
            skip(cursor, count)
    return words


def count_list_items(body: bytes, count: int, present: int) -> int:
    """Return how many headers and tags a body has, without decoding them.

    Raises:
        BatchError: A buffer does not fit the body.
    """
    cursor = _Cursor(body)
    items = 0
    for column, _, skip in _READERS:
        if present & column:
            if column & (Column.HEADERS | Column.TAGS):
                items += cursor.list_items(count)
            skip(cursor, count)
    return items


def read_columns(body: bytes, count: int, present: int, wanted: int = ALL_COLUMNS) -> dict[int, Sequence[Any]]:
    """Return the wanted ones of the present columns, each with ``count`` items. Others are skipped.

    Raises:
        BatchError: A buffer does not fit the body, offsets fall, a text is not UTF-8, a time is negative, or bytes
            are left over.
    """
    cursor = _Cursor(body)
    found: dict[int, Sequence[Any]] = {}
    for column, read, skip in _READERS:
        if present & column:
            if wanted & column:
                found[column] = read(cursor, count)
            else:
                skip(cursor, count)
    if cursor.at != len(body):
        raise BatchError(f"body is {len(body)} bytes, its columns take {cursor.at}")
    return found
