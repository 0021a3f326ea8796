"""Reading Parquet segments: row groups are decoded in threads, and cached for the next read.

The result is the same as that of the log segment before its conversion: stamped batches with the same offsets, lsns and
times. `journal.engine.read.reader` chooses the segment. pyarrow is imported when the first Parquet segment is read, in
the thread that decodes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import attrs
import outcome
import trio

from journal.engine.read.arrow_import import reader_types
from journal.engine.read.read_failures import refusals_named
from journal.engine.read.shared_cache import SharedCache
from shards.errors import CorruptionError, StorageError
from shards.format.batch import BatchHeader, Codec, recompress
from shards.seams.file_system import FileSystem
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.read_slices import Place, ReadSlice, find_in_bytes

if TYPE_CHECKING:
    from shards.parquet.shared_reading import PartGroup, PartReader, SharedReader

GROUPS_BYTES = 48 << 20
"""Size of the cache of decoded row groups, for all segments together."""
ROWS_BYTES = 16 << 20
"""Size of the cache of row groups that several segments share, as columns: each is decoded once for all of them."""
FOOTERS_BYTES = 16 << 20
"""Size of the cache of footers, for all segments together."""

_DECODERS = 4
_BATCH_ENTRY_BYTES = 80
_FOOTER_ENTRY_BYTES = 1000

FileKey: TypeAlias = tuple[int, int]
"""Day and file id of a shared file."""
GroupKey: TypeAlias = tuple[int, int, int, int]
"""Shard id, base offset, id of the file, number of the row group."""
T = TypeVar("T")


@attrs.frozen(slots=True, eq=False)
class _Group:
    """A decoded row group.

    Attributes:
        next_offset: Offset after its last record.
        data: Its batches back to back.
        base_offsets: Base offset of each batch.
        positions: Where each batch begins in ``data``, and the end of the last one.
    """

    next_offset: int
    data: memoryview
    base_offsets: list[int]
    positions: list[int]

    @property
    def cost(self) -> int:
        return len(self.data) + _BATCH_ENTRY_BYTES * len(self.base_offsets)


class ParquetReader:
    """Reads Parquet segments of an engine. Reading changes nothing, so a read may be cancelled at any time.

    Args:
        files: The file system.
        largest_batch_bytes: A batch that is larger than this uncompressed is returned compressed.
    """

    def __init__(self, files: FileSystem, largest_batch_bytes: int) -> None:
        self._files = files
        self._largest_batch_bytes = largest_batch_bytes
        # Decoding takes processor time: more threads than this would only delay the event loop.
        self._limiter = trio.CapacityLimiter(_DECODERS)
        self._opened: SharedCache[FileKey, SharedReader] = SharedCache(FOOTERS_BYTES, _cost_of_footer)
        self._groups: SharedCache[GroupKey, _Group] = SharedCache(GROUPS_BYTES, lambda group: group.cost)
        self._rows: SharedCache[tuple[FileKey, int], Any] = SharedCache(ROWS_BYTES, lambda rows: rows.nbytes)

    def read_nowait(
        self, segment: ParquetSegment, offset: int, max_bytes: int, place: Place | None
    ) -> ReadSlice | None:
        """Read batches of a cached row group; None if it is not cached.

        REQUIRES: the segment holds the offset.
        """
        if place is not None and place.segment is segment and place.offset == offset:
            index = place.position
        else:
            file = self._opened.get_nowait(_file_of(segment))
            if file is None:
                return None
            index = _group_at(_opened(segment, file), offset)
        group = self._groups.get_nowait(_group_key(segment, index))
        return _extent(segment, index, group, offset, max_bytes) if group is not None else None

    async def read(self, segment: ParquetSegment, offset: int, max_bytes: int, place: Place | None) -> ReadSlice:
        """Whole batches of one row group, from the one that holds the offset on: up to ``max_bytes``, at least one.

        For a reader that continues at ``place``, the next row group is decoded at the same time.

        REQUIRES: the segment holds the offset.

        Raises:
            FileNotFoundError: The file was removed.
            CorruptionError: The file is damaged.
        """
        opened = await self._open(segment)
        index = _group_at(opened, offset)
        if place is not None and place.offset == offset and index + 1 < len(opened.row_groups):
            group = await self._group_and_next(segment, opened, index)
        else:
            group = await self._group(segment, opened, index)
        return _extent(segment, index, group, offset, max_bytes)

    async def find(
        self, segment: ParquetSegment, wanted: Callable[[BatchHeader], bool], value: int, *, by_time: bool
    ) -> BatchHeader | None:
        """First matching batch; only row groups whose newest timestamp or last lsn is at least ``value`` are searched.

        Raises:
            FileNotFoundError: The file was removed.
            CorruptionError: The file is damaged.
        """
        opened = await self._open(segment)
        row_groups: Sequence[PartGroup] = opened.row_groups
        for index, row_group in enumerate(row_groups):
            if (row_group.newest_us if by_time else row_group.last_lsn) >= value:
                group = await self._group(segment, opened, index)
                _, header = await self._in_thread(find_in_bytes, group.data, wanted)
                if header is not None:
                    return header
        return None

    async def _open(self, segment: ParquetSegment) -> PartReader:
        file = await self._opened.get(_file_of(segment), partial(self._in_thread, self._read_footer, segment))
        return _opened(segment, file)

    async def _group(self, segment: ParquetSegment, opened: PartReader, index: int) -> _Group:
        key = _group_key(segment, index)
        try:
            return await self._groups.get(key, partial(self._decode, segment, opened, index))
        except (CorruptionError, FileNotFoundError):
            # The file may be repaired or restored before the next read.
            self._opened.forget(_file_of(segment))
            raise

    async def _group_and_next(self, segment: ParquetSegment, opened: PartReader, index: int) -> _Group:
        async def decode_next() -> None:
            # An error in it is raised by the read that needs the row group.
            with suppress(StorageError, OSError):
                await self._group(segment, opened, index + 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(decode_next)
            wanted = await outcome.acapture(self._group, segment, opened, index)
        return wanted.unwrap()

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await trio.to_thread.run_sync(work, *args, limiter=self._limiter)

    def _read_footer(self, segment: ParquetSegment) -> SharedReader:
        types = reader_types(segment.path)
        files = cast("FileSystem", _OpenWhileRead(self._files))
        with _naming(segment, segment.base_offset, segment.next_offset):
            return types.shared(files, segment.path)

    async def _decode(self, segment: ParquetSegment, opened: PartReader, index: int) -> _Group:
        rows = None
        if not opened.has_all_rows(index):
            key = (_file_of(segment), opened.row_groups[index].index)
            rows = await self._rows.get(key, partial(self._in_thread, self._read_rows, segment, opened, index))
        return await self._in_thread(self._encode, segment, opened, index, rows)

    def _read_rows(self, segment: ParquetSegment, opened: PartReader, index: int) -> Any:
        row_group = opened.row_groups[index]
        with _naming(segment, row_group.first_offset, row_group.next_offset):
            return opened.rows(index)

    def _encode(self, segment: ParquetSegment, opened: PartReader, index: int, rows: Any | None) -> _Group:
        row_group = opened.row_groups[index]
        with _naming(segment, row_group.first_offset, row_group.next_offset):
            encoded = opened.batches(index, rows)
        data, positions = encoded.data, [*encoded.positions, len(encoded.data)]
        if any(end - begin > self._largest_batch_bytes for begin, end in pairwise(positions)):
            # A large batch is a row group of its own, so nearly all data in this one belongs to it.
            batches = [recompress(data, position, Codec.ZSTD) for position in encoded.positions]
            data, positions = memoryview(b"".join(batches)), [0, *accumulate(map(len, batches))]
        return _Group(row_group.next_offset, data, encoded.base_offsets, positions)


class _OpenWhileRead:
    """A file that is open only while it is read, in the form of a file system that returns it.

    So many footers can be cached without open files, and a removed file takes no space on the disk.
    """

    def __init__(self, files: FileSystem, path: str = "") -> None:
        self._files = files
        self._path = path

    def open(self, path: str, *, write: bool) -> _OpenWhileRead:
        return _OpenWhileRead(self._files, path)

    def pread(self, size: int, position: int) -> bytes:
        file = self._files.open(self._path, write=False)
        try:
            return file.pread(size, position)
        finally:
            file.close()

    def size(self) -> int:
        file = self._files.open(self._path, write=False)
        try:
            return file.size()
        finally:
            file.close()

    def close(self) -> None:
        """Do nothing: the file is closed after each read."""


@contextmanager
def _naming(segment: ParquetSegment, first_offset: int, next_offset: int) -> Iterator[None]:
    """Add the shard and the affected offsets to the error of a damaged file."""
    try:
        with refusals_named(segment.path):
            yield
    except CorruptionError as error:
        concerned = f"offsets {first_offset} to {next_offset - 1} of shard {segment.name!r} cannot be read"
        raise CorruptionError(error.path, error.position, f"{error.problem}; {concerned}") from error


def _extent(segment: ParquetSegment, index: int, group: _Group, offset: int, max_bytes: int) -> ReadSlice:
    """Select batches of a row group; no copy."""
    positions, base_offsets = group.positions, group.base_offsets
    first = bisect_right(base_offsets, offset) - 1
    start = positions[first]
    # The end of the last batch that fits within the limit, but at least the end of the first one.
    stop = max(bisect_right(positions, start + max_bytes) - 1, first + 1)
    data = group.data[start : positions[stop]]
    is_last = stop == len(base_offsets)
    next_offset = group.next_offset if is_last else base_offsets[stop]
    place = Place(segment, index + 1 if is_last else index, next_offset)
    return ReadSlice(base_offsets[first], next_offset, [data], len(data), place)


def _group_at(opened: PartReader, offset: int) -> int:
    return bisect_right(opened.row_groups, offset, key=lambda group: group.first_offset) - 1


def _file_of(segment: ParquetSegment) -> FileKey:
    # Ids of files are never assigned again, and a Parquet file never changes.
    return segment.place.file


def _group_key(segment: ParquetSegment, index: int) -> GroupKey:
    # The records of a segment are in other row groups when its file was rewritten.
    return segment.shard_id, segment.base_offset, segment.place.file_id, index


def _opened(segment: ParquetSegment, file: SharedReader) -> PartReader:
    """The segment in its file, which is open.

    Raises:
        CorruptionError: The file does not have the rows of the segment.
    """
    types = reader_types(segment.path)
    place = types.place(segment.shard_id, segment.base_offset, segment.next_offset, segment.place.first_row)
    try:
        return types.part(file, place)
    except ValueError as error:
        concerned = f"offsets {segment.base_offset} to {segment.next_offset - 1} of shard {segment.name!r}"
        raise CorruptionError(segment.path, 0, f"{error}; {concerned} cannot be read") from error


def _cost_of_footer(opened: SharedReader) -> int:
    return _FOOTER_ENTRY_BYTES * (1 + len(opened.metadata.row_groups))
