"""A sealed segment, which is a part of a shared Parquet file, for its shard: its range and place, without its content.

It has few attributes, since a shard has many segments, and a node even more. `shards.parquet`, which needs pyarrow,
reads the file; this module does not need it.
"""

from __future__ import annotations

import attrs

from shards.model import SegmentInfo, SegmentKind
from shards.segments.chunks import ChunkList, ChunkPool
from shards.segments.segment import Segment
from shards.segments.segment_paths import shared_path

# A Parquet segment has nothing in memory, and nothing is ever appended to it: all share one empty list.
_NOTHING = ChunkList(0, ChunkPool(0))


@attrs.frozen(slots=True)
class SharedPlace:
    """Where a segment is in a file that has segments of many shards.

    Attributes:
        day: Days since 1970 of the appends in the file.
        file_id: Number of the file.
        first_row: Row of the segment's first record; the others follow.
    """

    day: int
    file_id: int
    first_row: int

    @property
    def file(self) -> tuple[int, int]:
        """The key of the file: its day and its number."""
        return self.day, self.file_id


class ParquetSegment(Segment):
    """A segment that was converted to Parquet; it never changes, but a shorter one may take its place after a trim.

    Its size is its share of the file, so that bounds by bytes count disk space. It has no byte positions: it begins at
    0 and is visible as a whole.

    Args:
        sealed_root: Directory of all Parquet segments, ``<data>/sealed``.
        name: The shard's name.
        shard_id: Id of its shard.
        base_offset: Offset of the first record.
        next_offset: Offset after the last record.
        size_bytes: Its share of the file.
        created_us: When the original log segment was opened.
        newest_append_us: Server time of its newest batch.
        last_lsn: lsn of its newest batch.
        newest_us: Newest record timestamp in it.
        place: Where it is in a file.

    Attributes:
        is_recorded: Whether the views have its record.
    """

    kind = SegmentKind.PARQUET
    __slots__ = ("_sealed_root", "_size_bytes", "is_recorded", "name", "place", "shard_id")

    def __init__(
        self,
        sealed_root: str,
        name: str,
        shard_id: int,
        *,
        base_offset: int,
        next_offset: int,
        size_bytes: int,
        created_us: int,
        newest_append_us: int,
        last_lsn: int,
        newest_us: int,
        place: SharedPlace,
    ) -> None:
        # Without the constructor of the base class, which creates a chunk list for each segment.
        self._sealed_root = sealed_root
        self._size_bytes = size_bytes
        self._index = None
        self.name = name
        self.shard_id = shard_id
        self.place = place
        self.is_recorded = False
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.created_us = created_us
        self.newest_append_us = newest_append_us
        self.last_lsn = last_lsn
        self.newest_us = newest_us
        self.closed = True
        self.start_position = 0
        self.indexed_end = 0
        self.chunks = _NOTHING

    @property
    def path(self) -> str:
        """Its file; computed on demand, since few of a node's segments are ever read."""
        return shared_path(self._sealed_root, self.place.day, self.place.file_id)

    def info(self, visible_offset: int, visible_position: int) -> SegmentInfo:
        """The segment, and where it is in its file."""
        found = super().info(visible_offset, visible_position)
        file = shared_path("", self.place.day, self.place.file_id).removeprefix("/")
        return attrs.evolve(found, file=file, first_row=self.place.first_row)

    def is_in_file_of(self, other: ParquetSegment) -> bool:
        """Whether both are in one shared file."""
        return self.place.file == other.place.file

    def without_trimmed(self, start_offset: int) -> ParquetSegment:
        """The segment without the records below an offset of it, or this one if fewer than half of them go.

        So a shard that is trimmed in small steps changes the record of a segment only a few times, and at most half of
        the records that are counted as live were trimmed.
        """
        trimmed, count = start_offset - self.base_offset, self.next_offset - self.base_offset
        if trimmed * 2 < count:
            return self
        return ParquetSegment(
            self._sealed_root,
            self.name,
            self.shard_id,
            base_offset=start_offset,
            next_offset=self.next_offset,
            size_bytes=self._size_bytes * (count - trimmed) // count,
            created_us=self.created_us,
            newest_append_us=self.newest_append_us,
            last_lsn=self.last_lsn,
            newest_us=self.newest_us,
            place=attrs.evolve(self.place, first_row=self.place.first_row + trimmed),
        )

    @property
    def end(self) -> int:
        """Its size: all of it is visible."""
        return self._size_bytes

    @property
    def size_bytes(self) -> int:
        """Its share of the file."""
        return self._size_bytes


def file_of(segment: Segment) -> tuple[int, int] | None:
    """The key of the shared file in which a segment is; None if it is in none."""
    return segment.place.file if isinstance(segment, ParquetSegment) else None
