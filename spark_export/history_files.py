"""The files and the live rows of a history: what programs other than Spark scan, and what is to be read beside it.

A snapshot has ranges of offsets. Here each range gets the file that holds it, or becomes a part for
`spark_export.reading`. No file is opened.
"""

from __future__ import annotations

import attrs

from shards.model import SegmentKind
from shards.segments.segment_paths import sealed_path
from spark_export.planning import Part
from spark_export.snapshot import SegmentRange, ShardSnapshot, Snapshot


@attrs.frozen(slots=True)
class LiveRows:
    """Rows of one shard in a sealed file that belong to the history: offsets without a gap.

    Attributes:
        shard: Name of the shard.
        shard_id: Its id.
        first_offset: Offset of the first live row.
        next_offset: Offset after the last live row.
    """

    shard: str
    shard_id: int
    first_offset: int
    next_offset: int


@attrs.frozen(slots=True)
class HistoryFile:
    """A sealed file with live rows.

    Attributes:
        path: The file: a path or a URL.
        size_bytes: Its size.
        rows: Number of rows in it, live or not.
        live: The live ones.
    """

    path: str
    size_bytes: int
    rows: int
    live: tuple[LiveRows, ...]

    @property
    def live_rows(self) -> int:
        """Number of live rows."""
        return sum(each.next_offset - each.first_offset for each in self.live)


@attrs.frozen(slots=True)
class HistoryFiles:
    """Where the records of a snapshot are.

    Attributes:
        sealed: Sealed files with live rows.
        rest: The other records: in logs, in memory, in shared files, or in files that cannot be reached from here.
    """

    sealed: tuple[HistoryFile, ...]
    rest: tuple[Part, ...]


def history_files(snapshot: Snapshot) -> HistoryFiles:
    """Find the file of each range of a snapshot."""
    sealed: list[HistoryFile] = []
    rest: list[Part] = []
    for shard in snapshot.shards:
        for segment in shard.segments:
            first = max(segment.base_offset, shard.start_offset)
            if first >= segment.next_offset:
                continue
            if segment.kind is SegmentKind.PARQUET and segment.place is None and snapshot.store.sealed:
                sealed.append(_file_of(snapshot.store.sealed, shard, segment, first))
            else:
                rest.append(Part(shard.name, shard.shard_id, segment, first, segment.next_offset))
    return HistoryFiles(tuple(sealed), tuple(rest))


def _file_of(sealed: str, shard: ShardSnapshot, segment: SegmentRange, first: int) -> HistoryFile:
    return HistoryFile(
        sealed_path(sealed, shard.name, shard.shard_id, segment.base_offset, segment.next_offset),
        segment.size_bytes,
        segment.next_offset - segment.base_offset,
        (LiveRows(shard.name, shard.shard_id, first, segment.next_offset),),
    )
