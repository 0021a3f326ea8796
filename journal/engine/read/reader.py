"""Reading shards: by offset, time, lsn, key and tag; from memory without waiting, from files in threads.

Batches are returned as they are stored. Their checksums travel with them and are checked by the client that decodes
them, and by `journal check`: so a flipped bit on the disk is found without costing the server anything. Parquet
segments are decoded by `journal.engine.read.parquet_reader`.

While a read waits for a disk, a segment may be converted: its log file is removed, and a Parquet file has the same
records. A read that finds its file removed looks up the segment again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, takewhile

import trio

from journal.engine.read.parquet_reader import ParquetReader
from journal.engine.read.read_failures import refusals_named
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.wal.disk import LimitedOffLoop, OffLoop, in_thread
from shards.errors import CorruptionError, IndexMissingError, OffsetOutOfRangeError
from shards.format.batch import BatchHeader, gap_batch
from shards.format.batch_header import SMALLEST_BATCH_BYTES
from shards.position import Start
from shards.seams.file_system import FileSystem
from shards.segments.log_segment import LogSegment
from shards.segments.losses import resume_offset
from shards.segments.parquet_segment import ParquetSegment
from shards.segments.read_slices import (
    LostBatchError,
    Place,
    ReadSlice,
    base_offset_at,
    check_stamp,
    find_in_bytes,
    locate_in_memory,
    memory_slice,
)
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from shards.segments.sparse_index import SparseIndex
from shards.views.inverted_index import By

_SEARCH_WINDOW_BYTES = 128 * 1024
_DISK_READERS = 16
_INDEXED_AT_ONCE = 1000
LARGEST_READ_BYTES = 16 << 20


class Reader:
    """Reads published records.

    Reading changes nothing, so a read may be cancelled at any time.

    Args:
        files: The file system.
        table: The shards.
        views: The state folded from the journal.
        largest_batch_bytes: Largest size of a batch in storage and on the wire.
        off_loop: Runs the blocking reads of log files.
    """

    def __init__(
        self,
        files: FileSystem,
        table: ShardTable,
        views: Views,
        largest_batch_bytes: int,
        off_loop: OffLoop = in_thread,
    ) -> None:
        self._files = files
        self._table = table
        self._views = views
        # Disk reads must not use up the threads that other work shares.
        self._off_loop = LimitedOffLoop(off_loop, _DISK_READERS)
        self._parquet = ParquetReader(files, largest_batch_bytes)

    def check_range(self, shard: Shard, offset: int) -> None:
        """Refuse an offset that is outside the shard.

        Raises:
            OffsetOutOfRangeError: The offset was trimmed, or is after the next offset.
        """
        shard.check_usable()
        if not shard.start_offset <= offset <= shard.published_offset:
            raise OffsetOutOfRangeError(shard.name, offset, shard.start_offset, shard.published_offset)

    def read_nowait(self, shard: Shard, offset: int, max_bytes: int, place: Place | None = None) -> ReadSlice | None:
        """Read what is in memory; None if a file has to be read. Empty at the end of the shard.

        Raises:
            OffsetOutOfRangeError: The shard does not have the offset.
        """
        self.check_range(shard, offset)
        segment, found = shard.segment_at(offset)
        if found > offset:
            gap = gap_batch(offset, found, shard.published_lsn, 0)
            return ReadSlice(offset, found, [gap], len(gap), None)
        if segment is None:
            return ReadSlice(offset, offset, [], 0, None)
        if isinstance(segment, ParquetSegment):
            return self._parquet.read_nowait(segment, offset, max_bytes, place)
        if place is not None and place.segment is segment and place.offset == offset:
            position: int | None = place.position
            if not segment.chunks.start <= place.position < segment.end:
                return None
        else:
            position = locate_in_memory(segment, offset, shard.visible_end(segment))
        if position is None:
            return None
        return memory_slice(shard, segment, position, max_bytes)

    async def read(self, shard: Shard, offset: int, max_bytes: int, place: Place | None = None) -> ReadSlice:
        """Whole batches, beginning with the one that holds ``offset``: up to about ``max_bytes``, but at least one.

        A read of a log file may return one index block (64 KiB and a batch) more. Empty at the end of the shard.

        Raises:
            OffsetOutOfRangeError: The shard does not have the offset, or not any more.
            CorruptionError: The file is damaged.
            ShardDamagedError: The shard is stopped because of damage.
            FileUnavailableError: The records are in a file that this server has not fetched yet.
            OverloadedError: The process is short of open files or memory; a later read may succeed.
        """
        max_bytes = min(max_bytes, LARGEST_READ_BYTES)
        while True:
            extent = self.read_nowait(shard, offset, max_bytes, place)
            if extent is not None:
                return extent
            segment, _ = shard.segment_at(offset)
            assert segment is not None  # read_nowait has answered at the end of the shard
            try:
                if isinstance(segment, ParquetSegment):
                    self._check_fetched(shard, segment)
                    return await self._parquet.read(segment, offset, max_bytes, place)
                assert isinstance(segment, LogSegment)  # memory segments were read above
                return await self._read_file(shard, segment, offset, max_bytes, place)
            except FileNotFoundError as error:
                # Trimmed or converted while it was being read: the range check or the next iteration handles that.
                self.check_range(shard, offset)
                _check_dropped(shard, segment, error)
            place = None

    async def _read_file(
        self, shard: Shard, segment: LogSegment, offset: int, max_bytes: int, place: Place | None
    ) -> ReadSlice:
        await self._load_index(segment)
        bound = min(segment.flushed, shard.visible_end(segment))
        if bound == shard.visible_end(segment):
            bound_offset = shard.visible_next_offset(segment)
        else:
            bound_offset = base_offset_at(segment.chunks, bound)
        if place is not None and place.segment is segment and place.offset == offset:
            position = place.position
        else:
            start = segment.index.position_before_offset(offset, segment.start_position)
            _, position = await self._search(shard, segment, start, lambda header: header.next_offset > offset, bound)
        stop = segment.index.last_position_up_to(position + max_bytes, position)
        if not 0 < stop < bound or bound - position <= max_bytes:
            stop, next_offset = bound, bound_offset
        else:
            next_offset = segment.index.offset_at(stop)
        data = await self._pread(segment, position, stop - position)
        if len(data) < stop - position:
            raise CorruptionError(segment.path, position + len(data), f"the file ends here, {stop} bytes were written")
        try:
            check_stamp(data, 0)
        except LostBatchError as error:
            raise CorruptionError(segment.path, position, str(error)) from error
        start_offset = BatchHeader.unpack(data).base_offset
        return ReadSlice(start_offset, next_offset, [data], len(data), Place(segment, stop, next_offset))

    async def _pread(self, segment: LogSegment, position: int, size: int) -> bytes:
        def read() -> bytes:
            with refusals_named(segment.path, position):
                file = self._files.open(segment.path, write=False)
                try:
                    return file.pread(size, position)
                finally:
                    file.close()

        return await self._off_loop(read)

    async def _load_index(self, segment: LogSegment) -> None:
        def read() -> SparseIndex:
            with refusals_named(segment.index_path):
                return segment.read_index(self._files)

        if segment.needs_index:
            index = await self._off_loop(read)
            if segment.needs_index:
                segment.adopt_index(index)

    async def _search(
        self, shard: Shard, segment: Segment, position: int, wanted: Callable[[BatchHeader], bool], end: int
    ) -> tuple[BatchHeader | None, int]:
        """First matching batch of a segment from a position on, and its position; (None, end) if there is none.

        Raises:
            FileNotFoundError: The segment has been dropped since the search began, or its file is missing.
            _DroppedError: It has been dropped; it was in memory.
        """
        while position < end:
            in_memory = segment.chunks.start <= position < segment.end
            if in_memory:
                stop = min(segment.chunks.chunk_end(position), end)
                data: bytes | memoryview = segment.chunks.views(position, stop)[0]
                await trio.lowlevel.checkpoint()
            elif not isinstance(segment, LogSegment) or position >= segment.flushed:
                raise _DroppedError
            else:
                stop = min(segment.flushed, end)
                data = await self._pread(segment, position, min(_SEARCH_WINDOW_BYTES, stop - position))
                if len(data) < SMALLEST_BATCH_BYTES:
                    raise CorruptionError(segment.path, position, f"the file ends here, {stop} bytes were written")
            try:
                at, header = find_in_bytes(data, wanted)
            except LostBatchError as error:
                path = segment.path if isinstance(segment, LogSegment) else f"memory of shard {shard.name!r}"
                raise CorruptionError(path, position + error.place, str(error)) from error
            if header is not None:
                return header, position + at
            position += at
        return None, end

    async def find_offset(self, shard: Shard, start: Start) -> int:
        """Resolve a start position to the first offset to read.

        A time gives the batch with the first record that is not older; the reader skips older records in it. A time in
        the future gives the next offset. An lsn gives the first batch with that lsn or a later one, or the gap before
        it if records with such an lsn may be lost.
        """
        shard.check_usable()
        offset = await self._find_offset(shard, start)
        if start.kind != "lsn":
            return offset
        return resume_offset(shard.losses, shard.segments, shard.start_offset, start.value, offset)

    async def _find_offset(self, shard: Shard, start: Start) -> int:
        if start.kind == "earliest":
            return shard.start_offset
        if start.kind == "latest":
            return shard.published_offset
        if start.kind == "offset":
            self.check_range(shard, start.value)
            return start.value
        by_time = start.kind == "time"
        # Records that are appended during the search are not searched: they come after the resolved offset.
        at, end = shard.start_offset, shard.published_offset
        while at < end:
            # Looked up each time: it may have been trimmed or converted while the one before was searched.
            segment, _ = shard.segment_at(max(at, shard.start_offset))
            if segment is None:
                break
            if (segment.newest_us if by_time else segment.last_lsn) >= start.value:
                try:
                    header = await self._find_in(shard, segment, start.value, by_time=by_time)
                except _DroppedError:
                    shard.check_usable()
                    assert segment not in shard.segments  # its memory is freed after it was removed
                    continue
                except FileNotFoundError as error:
                    shard.check_usable()
                    _check_dropped(shard, segment, error)
                    continue
                if header is not None:
                    return max(header.base_offset, shard.start_offset)
            at = segment.next_offset
        return max(end, shard.start_offset)

    async def _find_in(self, shard: Shard, segment: Segment, value: int, *, by_time: bool) -> BatchHeader | None:
        """First batch of a segment with a record that is not older than the time, or with that lsn or a later one."""
        wanted = _not_older_than(value, shard.start_offset) if by_time else _lsn_from(value, shard.start_offset)
        if isinstance(segment, ParquetSegment):
            self._check_fetched(shard, segment)
            return await self._parquet.find(segment, wanted, value, by_time=by_time)
        if isinstance(segment, LogSegment):
            await self._load_index(segment)
        index = segment.index
        before = index.position_before_time if by_time else index.position_before_lsn
        position = before(value, segment.start_position)
        header, _ = await self._search(shard, segment, position, wanted, shard.visible_end(segment))
        return header

    async def read_indexed(
        self, shard: Shard, by: By, word: bytes, from_offset: int, max_bytes: int, *, latest: bool
    ) -> ReadSlice:
        """Whole batches that hold records with a key or tag; the caller has to select these records in them.

        Args:
            shard: The shard.
            by: "key" or "tag".
            word: The key or the tag in UTF-8.
            from_offset: Only records from here on.
            max_bytes: Return about this many bytes, but at least one batch.
            latest: Return only the batch with the newest such record.

        Raises:
            IndexMissingError: The shard has no such index.
        """
        shard.check_usable()
        if not (shard.config.index_keys if by == "key" else shard.config.index_tags):
            raise IndexMissingError(
                f"shard {shard.name!r} has no index by {by}; create it with "
                f"index_{by}s=true, or read it by offset and filter"
            )
        index = self._views.word_index
        first = max(from_offset, shard.start_offset)
        if latest:
            return await self._read_newest(shard, index.newest_first(shard.shard_id, by, word), first)
        offsets = list(islice(index.offsets(shard.shard_id, by, word, first), _INDEXED_AT_ONCE))
        buffers: list[bytes | bytearray | memoryview] = []
        size, end = 0, -1
        for offset in offsets:
            if offset < end or offset >= shard.published_offset:
                continue
            if size >= max_bytes:
                return ReadSlice(first, offset, buffers, size, None)
            extent = await self.read(shard, offset, 1)
            batch, end = _first_batch(extent)
            if batch is None:
                continue
            buffers.append(batch)
            size += len(batch)
        more = len(offsets) == _INDEXED_AT_ONCE
        return ReadSlice(first, offsets[-1] + 1 if more else shard.published_offset, buffers, size, None)

    async def _read_newest(self, shard: Shard, newest_first: Iterator[int], first: int) -> ReadSlice:
        """The batch of the first of these offsets that still exists; the index may name trimmed records."""
        for offset in takewhile(lambda offset: offset >= first, newest_first):
            if offset < shard.published_offset:
                batch, _ = _first_batch(await self.read(shard, offset, 1))
                if batch is not None:
                    return ReadSlice(first, shard.published_offset, [batch], len(batch), None)
        return ReadSlice(first, shard.published_offset, [], 0, None)

    async def wait_beyond(self, shard: Shard, offset: int, max_wait_s: float) -> None:
        """Return when the shard has a record at this offset, or after ``max_wait_s``."""
        if shard.published_offset > offset or max_wait_s <= 0:
            return
        ready = trio.Event()

        def published(changed: Shard) -> None:
            if changed.published_offset > offset or changed.damage:
                ready.set()

        shard.add_listener(published)
        try:
            with trio.move_on_after(max_wait_s):
                await ready.wait()
        finally:
            shard.remove_listener(published)

    def _check_fetched(self, shard: Shard, segment: ParquetSegment) -> None:
        """Refuse a read of records that are in a file which was not fetched from the log store yet.

        Before each read: a file that was fetched meanwhile is there, so one that a read does not find is missing.

        Raises:
            FileUnavailableError: They are.
        """
        if unfetched := self._views.unfetched:
            concerned = f"offsets {segment.base_offset} to {segment.next_offset - 1} of shard {shard.name!r}"
            unfetched.check(segment.place.file, concerned)


class _DroppedError(Exception):
    """The memory of a segment was freed while it was searched: it was trimmed or converted."""


def _check_dropped(shard: Shard, segment: Segment, error: FileNotFoundError) -> None:
    """Raise a missing file as damage if the shard still has the segment."""
    if segment in shard.segments:
        assert isinstance(segment, LogSegment | ParquetSegment)  # memory segments have no file
        raise CorruptionError(
            segment.path,
            0,
            f"the file is missing; it held offsets {segment.base_offset} to {segment.next_offset - 1} of shard "
            f"{shard.name!r}",
        ) from error


def _first_batch(extent: ReadSlice) -> tuple[bytes | bytearray | memoryview | None, int]:
    if not extent.buffers:
        return None, extent.next_offset
    data = memoryview(extent.buffers[0])
    header = BatchHeader.unpack(data)
    return (None if header.is_gap else data[: header.size_bytes]), header.next_offset


def _not_older_than(timestamp_us: int, start_offset: int) -> Callable[[BatchHeader], bool]:
    # Trimmed batches may remain in a segment that also holds later ones.
    return lambda header: header.max_timestamp_us >= timestamp_us and header.next_offset > start_offset


def _lsn_from(lsn: int, start_offset: int) -> Callable[[BatchHeader], bool]:
    return lambda header: header.lsn >= lsn and header.next_offset > start_offset
