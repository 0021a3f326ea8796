"""A segment: a contiguous offset range of one shard. The memory segment is here; the log segment extends it.

Positions are bytes from the segment's start, as in the log file; in a memory segment they simply begin at 0. Segments
do not know which batches are committed: the shard limits every read by its published end.
"""

from __future__ import annotations

from shards.model import SegmentInfo, SegmentKind
from shards.segments.chunks import ChunkList, ChunkPool
from shards.segments.sparse_index import INTERVAL_BYTES, SparseIndex


class Segment:
    """The common part of memory and log segments: the bytes in memory, the sparse index and the range.

    Attributes:
        base_offset: Offset of the first record.
        next_offset: Offset after the last record written, committed or not.
        created_us: When the segment was opened.
        newest_append_us: Server time of its newest batch; that of its creation if it is empty.
        last_lsn: lsn of its newest batch, 0 if empty.
        newest_us: Newest record timestamp in it, 0 if empty.
        indexed_end: A batch that begins here or later gets an entry in the sparse index.
        closed: No record will be added any more.
    """

    kind: SegmentKind
    __slots__ = (
        "_index",
        "base_offset",
        "chunks",
        "closed",
        "created_us",
        "indexed_end",
        "last_lsn",
        "newest_append_us",
        "newest_us",
        "next_offset",
        "start_position",
    )

    def __init__(self, base_offset: int, created_us: int, start_position: int, pool: ChunkPool) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.created_us = created_us
        self.newest_append_us = created_us
        self.last_lsn = 0
        self.newest_us = 0
        self.closed = False
        self.start_position = start_position
        self.chunks = ChunkList(start_position, pool)
        # Most segments of a million quiet topics never reach the first interval: no index object until then.
        self._index: SparseIndex | None = None
        self.indexed_end = start_position + INTERVAL_BYTES

    @property
    def end(self) -> int:
        """Position after the last batch written."""
        return self.chunks.end

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return self.chunks.end - self.start_position

    @property
    def index(self) -> SparseIndex:
        """The sparse index, empty for a small segment."""
        return self._index if self._index is not None else SparseIndex()

    def append(self, data: memoryview | bytes, next_offset: int, lsn: int, append_time_us: int, newest_us: int) -> None:
        """Copy one stamped batch to the end."""
        chunks = self.chunks
        if chunks.end >= self.indexed_end:
            self.add_to_index(lsn)
        chunks.append(data)
        self.next_offset = next_offset
        self.last_lsn = lsn
        self.newest_append_us = append_time_us
        self.newest_us = max(self.newest_us, newest_us)

    def add_to_index(self, lsn: int) -> None:
        """Add an index entry for the next batch."""
        if self._index is None:
            self._index = SparseIndex()
        self._index.add(self.next_offset, self.chunks.end, lsn, self.newest_us)
        self.indexed_end = self.chunks.end + INTERVAL_BYTES

    def info(self, visible_offset: int, visible_position: int) -> SegmentInfo:
        """The published part of the segment."""
        return SegmentInfo(
            kind=self.kind,
            base_offset=self.base_offset,
            next_offset=visible_offset,
            size_bytes=visible_position - self.start_position,
            created_us=self.created_us,
            closed=self.closed,
        )


class MemorySegment(Segment):
    """A segment that is only in memory: fastest, lost with the node."""

    kind = SegmentKind.MEMORY
    __slots__ = ()

    def __init__(self, base_offset: int, created_us: int, pool: ChunkPool) -> None:
        super().__init__(base_offset, created_us, 0, pool)
