"""A segment in a log file: a file header, then adjacent batches, exactly as on the wire.

Committed batches stay in memory until many of them are flushed together; the journal keeps them until the file is
synced. Readers get the same bytes from memory and from the file.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable

import attrs
from crc32c import crc32c

from shards.errors import BatchError, CorruptionError, FormatVersionError
from shards.format.batch import BatchHeader
from shards.format.batch_header import SMALLEST_BATCH_BYTES, verify_stamp
from shards.model import SegmentKind
from shards.seams.file_system import File, FileSystem
from shards.segments.chunks import ChunkPool, Readable
from shards.segments.segment import Segment
from shards.segments.sparse_index import INTERVAL_BYTES, STORED_SIZE, SparseIndex

MAGIC = b"JLOG"
VERSION = 1

_HEADER = struct.Struct("<4sIHHIQQQ")
_REBUILD_WINDOW_BYTES = 1 << 20


@attrs.frozen(slots=True)
class LogHeader:
    """The header of a log file: magic, checksum, version, sizes of header and name, shard, base offset, created, name.

    The name is for people: it shows the file's shard even if all metadata is lost.
    """

    shard_id: int
    base_offset: int
    created_us: int
    name: str

    def encode(self) -> bytes:
        """Encode the header, padded to 8; the checksum covers everything after itself."""
        name = self.name.encode()
        size = (_HEADER.size + len(name) + 7) & ~7
        head = _HEADER.pack(MAGIC, 0, VERSION, size, len(name), self.shard_id, self.base_offset, self.created_us)
        whole = (head + name).ljust(size, b"\0")
        return whole[:4] + struct.pack("<I", crc32c(whole[8:])) + whole[8:]

    @classmethod
    def decode(cls, path: str, data: bytes) -> tuple[LogHeader, int]:
        """Decode the header from a file's first bytes (2 KiB are always enough); returns it and its size.

        Raises:
            CorruptionError: It is not a log file, truncated, or damaged.
            FormatVersionError: A newer program wrote it.
        """
        if len(data) < _HEADER.size:
            raise CorruptionError(path, 0, f"a log file has at least {_HEADER.size} bytes, found {len(data)}")
        magic, checksum, version, size, name_size, shard_id, base_offset, created_us = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise CorruptionError(path, 0, f"expected magic {MAGIC!r}, found {magic!r}")
        if version > VERSION:
            raise FormatVersionError(
                f"{path} has log format {version}, this program knows up to {VERSION}; use a newer one"
            )
        found = crc32c(data[8:size])
        if len(data) < size or found != checksum:
            raise CorruptionError(path, 0, f"header checksum: expected {checksum:#010x}, found {found:#010x}")
        # The checksum of no bytes is 0, so zeros in place of size and checksum agree.
        if size < _HEADER.size + name_size:
            smallest = _HEADER.size + name_size
            raise CorruptionError(path, 0, f"header size: expected at least {smallest} bytes, found {size}")
        name = data[_HEADER.size : _HEADER.size + name_size].decode("utf-8", "replace")
        return cls(shard_id, base_offset, created_us, name), size


class LogSegment(Segment):
    """A file segment.

    Attributes:
        path: Its file, which may not exist before the first flush.
        shard_id: Id of its shard.
        name: Name of the shard.
        flushed: Position up to which the batches are in the file; later ones are only in memory.
        flushed_offset: Offset after the last record in the file.
        saved_entries: Number of entries in the index file.
        is_recorded: Whether the views have its record as it will stay.
        seen_since_us: Elapsed time of this process when its age was first looked at; None before that.

    Invariant: ``flushed`` is never beyond the committed end.
    """

    kind = SegmentKind.LOG
    # After a restart ``_index`` has only the entries after the first ``_unloaded`` ones, until `adopt_index`.
    __slots__ = (
        "_unloaded",
        "flushed",
        "flushed_offset",
        "is_recorded",
        "name",
        "path",
        "saved_entries",
        "seen_since_us",
        "shard_id",
    )

    def __init__(self, path: str, header: LogHeader, pool: ChunkPool) -> None:
        self.path = path
        self.shard_id = header.shard_id
        self.name = header.name
        super().__init__(header.base_offset, header.created_us, len(header.encode()), pool)
        self.flushed = self.start_position
        self.flushed_offset = header.base_offset
        self.saved_entries = 0
        self._unloaded = 0
        self.is_recorded = False
        self.seen_since_us: int | None = None

    @property
    def header(self) -> LogHeader:
        """The header before the first batch; created on demand, since a node has a million segments."""
        return LogHeader(self.shard_id, self.base_offset, self.created_us, self.name)

    @property
    def index_path(self) -> str:
        """File with the sparse index next to the log file; does not exist for a small segment."""
        return f"{self.path.removesuffix('.log')}.index"

    def restore(
        self, *, end: int, next_offset: int, newest_append_us: int, last_lsn: int, newest_us: int, entries: int
    ) -> None:
        """Take over the state that the views recorded at the last checkpoint: the file contains this much."""
        self.chunks.end = self.flushed = end
        self.next_offset = self.flushed_offset = next_offset
        self.newest_append_us = newest_append_us
        self.last_lsn = last_lsn
        self.newest_us = newest_us
        self.saved_entries = entries
        if entries:
            self._index = None
            self._unloaded = entries
            # Where the last saved entry is comes with the others: the next batch gets one in any case.
            self.indexed_end = end

    @property
    def needs_index(self) -> bool:
        """Whether the index has to be read and adopted before it can be used; new batches are added to it before."""
        return self._unloaded > 0

    def read_index(self, files: FileSystem) -> SparseIndex:
        """The saved index, or one rebuilt from the log if it is missing or damaged; blocks on the disk.

        Raises:
            CorruptionError: The log is damaged where the rebuild has to read it.
        """
        index = None
        if files.exists(self.index_path):
            with_index = files.open(self.index_path, write=False)
            try:
                index = SparseIndex.decode(with_index.pread(self.saved_entries * STORED_SIZE, 0), self.saved_entries)
            finally:
                with_index.close()
        return index if index is not None else self.rebuild_index(files)

    def adopt_index(self, index: SparseIndex) -> None:
        """Use this index from now on, with the entries of batches that it does not have yet."""
        if self._index is not None:
            index.add_later(self._index)
        self._index = index
        self._unloaded = 0
        last = index.positions[-1] if len(index) else self.start_position
        self.indexed_end = last + INTERVAL_BYTES

    def rebuild_index(self, files: FileSystem) -> SparseIndex:
        """Rebuild the index from the batch headers of the flushed part."""
        index = SparseIndex()
        newest = 0
        indexed_end = self.start_position + INTERVAL_BYTES
        log = files.open(self.path, write=False)
        try:
            position = self.start_position
            window, window_at = b"", 0
            while position < self.flushed:
                if position + SMALLEST_BATCH_BYTES > window_at + len(window):
                    window, window_at = log.pread(_REBUILD_WINDOW_BYTES, position), position
                    if len(window) < SMALLEST_BATCH_BYTES:
                        raise CorruptionError(self.path, position, f"ends here, but {self.flushed} bytes were flushed")
                at = position - window_at
                try:
                    # A damaged header would add wrong entries to the index.
                    verify_stamp(window, at)
                except BatchError as error:
                    raise CorruptionError(self.path, position, str(error)) from error
                header = BatchHeader.unpack(window, at)
                if position >= indexed_end:
                    index.add(header.base_offset, position, header.lsn, newest)
                    indexed_end = position + INTERVAL_BYTES
                newest = max(newest, header.max_timestamp_us)
                position += header.size_bytes
        finally:
            log.close()
        return index

    def plan_flush(self, end: int, next_offset: int) -> FlushPlan:
        """Return what has to be written so that the file contains everything up to a position, and the offset there.

        Called on the event loop; the plan is carried out in a thread.
        """
        buffers: list[Readable] = []
        position = self.flushed
        if self.flushed == self.start_position:
            buffers.append(self.header.encode())
            position = 0
        if end > self.flushed:
            buffers.extend(self.chunks.views(self.flushed, end))
        index = self._index
        entries = self.saved_entries
        index_bytes = b""
        if index is not None and self._unloaded + len(index) > entries:
            # Entries after `end` are of batches that are not committed yet.
            ready = bisect_left(index.positions, end)
            index_bytes = index.encode(entries - self._unloaded, ready)
            entries = max(entries, self._unloaded + ready)
        return FlushPlan(self, end, next_offset, entries, position, buffers, index_bytes)

    def flushed_to(self, plan: FlushPlan) -> None:
        """Note, on the event loop, that the plan was carried out, and free the memory of the written batches."""
        self.flushed = plan.end
        self.flushed_offset = plan.next_offset
        self.saved_entries = plan.entries
        plan.buffers.clear()
        self.chunks.drop_before(plan.end)


@attrs.define(slots=True)
class FlushPlan:
    """Bytes to be written from memory to a log file and its index file."""

    segment: LogSegment
    end: int
    next_offset: int
    entries: int
    position: int
    buffers: list[Readable]
    index_bytes: bytes

    @property
    def is_first(self) -> bool:
        """Whether it writes the file from its beginning, so that existing content is not needed."""
        return self.position == 0

    def write(self, log: File, open_index: Callable[[], File]) -> None:
        """Write the bytes; they are not durable before both files are synced.

        Args:
            log: The log file.
            open_index: Opens or creates the index file; called only if there are index entries to write. The caller
                closes both files.

        Raises:
            OSError: The disk refused; the segment is unchanged.
        """
        if self.buffers:
            log.pwritev(self.buffers, self.position)
        if self.index_bytes:
            open_index().pwritev([self.index_bytes], self.entries * STORED_SIZE - len(self.index_bytes))
