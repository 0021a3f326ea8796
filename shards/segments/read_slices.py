"""Selecting whole batches of a segment for a reader, without a copy while they are in memory.

Pure: it uses segments and given bytes. The engine reads files (in threads).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable

import attrs

from shards.errors import BatchError
from shards.format.batch import HEADER_SIZE, BatchHeader
from shards.format.batch_header import MAGIC as _MAGIC
from shards.format.batch_header import PREFIX_SIZE, SMALLEST_BATCH_BYTES
from shards.format.checksum import crc32c
from shards.segments.chunks import ChunkList, Readable
from shards.segments.segment import Segment
from shards.segments.shard import Shard

_BASE_OFFSET_AT = 8
_BODY_SIZE_AT = 36
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")


@attrs.frozen(slots=True)
class Place:
    """Position of a reader, which saves the next read a search. Only a hint; the offset decides."""

    segment: Segment
    position: int
    offset: int


@attrs.frozen(slots=True)
class ReadSlice:
    """The result of one read.

    Attributes:
        start_offset: Offset of the first returned record; lower than requested if that is inside of a batch.
        next_offset: Offset of the next read.
        buffers: Adjacent whole batches, to be sent unchanged; gap batches are in place of lost records.
        size_bytes: Length of all buffers.
        place: Hint for the next read.
    """

    start_offset: int
    next_offset: int
    buffers: list[Readable]
    size_bytes: int
    place: Place | None


def batch_size(data: Readable, at: int) -> int:
    """Size in bytes of the batch that begins at this position."""
    size: int = _U32.unpack_from(data, at + _BODY_SIZE_AT)[0]
    return (size + HEADER_SIZE + 7) & ~7


def base_offset_at(chunks: ChunkList, position: int) -> int:
    """Base offset of the batch that begins at a position in memory."""
    at = bisect_right(chunks.starts, position) - 1
    offset: int = _U64.unpack_from(chunks.chunks[at], position - chunks.starts[at] + _BASE_OFFSET_AT)[0]
    return offset


def locate_in_memory(segment: Segment, offset: int, end: int) -> int | None:
    """Position of the batch that holds an offset, or None if it is only in the file.

    REQUIRES: the segment holds the offset before position ``end``.
    """
    chunks = segment.chunks
    if not chunks.starts or chunks.starts[0] >= end or base_offset_at(chunks, chunks.starts[0]) > offset:
        return None
    # The last chunk that begins at or below the offset; a chunk that was just added may be empty.
    low, high = 0, len(chunks.starts)
    while high - low > 1:
        middle = (low + high) // 2
        if chunks.starts[middle] < end and base_offset_at(chunks, chunks.starts[middle]) <= offset:
            low = middle
        else:
            high = middle
    position = chunks.starts[low]
    data = chunks.chunks[low]
    start = position
    while True:
        at = position - start
        size = batch_size(data, at)
        following = position + size
        if following >= min(end, chunks.chunk_end(start)):
            return position
        if _U64.unpack_from(data, at + size + _BASE_OFFSET_AT)[0] > offset:
            return position
        position = following


def memory_slice(shard: Shard, segment: Segment, position: int, max_bytes: int) -> ReadSlice:
    """Batches from a position in memory on, up to ``max_bytes`` but at least one."""
    end = shard.visible_end(segment)
    chunks = segment.chunks
    start_offset = base_offset_at(chunks, position)
    stop = position
    while stop < end:
        chunk_end = min(chunks.chunk_end(stop), end)
        if chunk_end - position > max_bytes:
            stop = _cut(chunks, stop, chunk_end, position, max_bytes)
            break
        stop = chunk_end
    next_offset = shard.visible_next_offset(segment) if stop >= end else base_offset_at(chunks, stop)
    buffers: list[Readable] = list(chunks.views(position, stop))
    return ReadSlice(start_offset, next_offset, buffers, stop - position, Place(segment, stop, next_offset))


def _cut(chunks: ChunkList, position: int, chunk_end: int, first: int, max_bytes: int) -> int:
    """End of the slice inside the chunk that contains ``position``: within the limit, but after the first batch."""
    at = bisect_right(chunks.starts, position) - 1
    data, start = chunks.chunks[at], chunks.starts[at]
    while position < chunk_end:
        following = position + batch_size(data, position - start)
        if following - first > max_bytes and position > first:
            return position
        position = following
    return position


class LostBatchError(BatchError):
    """Bytes that should begin with a stamped batch do not.

    Attributes:
        place: Position in the bytes.
    """

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place = place


def check_stamp(data: Readable, at: int) -> None:
    """Check that a stamped batch begins here: its magic, and the checksum of its stamp.

    Raises:
        LostBatchError: No stamped batch begins here.
    """
    if data[at : at + 4] != _MAGIC:
        raise LostBatchError(at, f"expected a record batch with magic {_MAGIC!r}, found {bytes(data[at : at + 4])!r}")
    expected = _U32.unpack_from(data, at + 4)[0]
    found = crc32c(data[at + 8 : at + PREFIX_SIZE])
    if found != expected:
        raise LostBatchError(at, f"checksum of the batch's stamp: expected {expected:#010x}, found {found:#010x}")


def find_in_bytes(data: Readable, wanted: Callable[[BatchHeader], bool]) -> tuple[int, BatchHeader | None]:
    """The first matching batch in bytes that begin at a batch boundary and may end inside of a batch.

    Returns:
        Its position and header; or the position at which to continue, and None.

    Raises:
        LostBatchError: No batch begins at the end of the one before.
    """
    at, size = 0, len(data)
    # The header of a gap batch is decoded together with its body.
    while size - at >= SMALLEST_BATCH_BYTES:
        check_stamp(data, at)
        header = BatchHeader.unpack(data, at)
        if wanted(header):
            return at, header
        at += header.size_bytes
    return at, None
