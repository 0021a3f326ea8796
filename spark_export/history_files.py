"""The files and the live rows of a history: what programs other than Spark scan, and what is to be read beside it.

A snapshot has ranges of offsets. Here each range gets the file that holds it, or becomes a part for
`spark_export.reading`. Only the footers of shared files are read, for the number of their rows.
"""

from __future__ import annotations

from collections import defaultdict

import attrs

from shards.segments.segment_paths import date_of_day
from spark_export.file_access import FileTree
from spark_export.planning import Part
from spark_export.sealed_files import SharedName
from spark_export.shared_files import record_count
from spark_export.snapshot import Snapshot


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
        date: UTC day on which its records were appended, as 2026-11-22.
    """

    path: str
    size_bytes: int
    rows: int
    live: tuple[LiveRows, ...]
    date: str

    @property
    def live_rows(self) -> int:
        """Number of live rows."""
        return sum(each.next_offset - each.first_offset for each in self.live)


@attrs.frozen(slots=True)
class HistoryFiles:
    """Where the records of a snapshot are.

    Attributes:
        sealed: Sealed files with live rows.
        rest: The other records: in logs, in memory, or in files that cannot be reached from here.
    """

    sealed: tuple[HistoryFile, ...]
    rest: tuple[Part, ...]


def history_files(snapshot: Snapshot) -> HistoryFiles:
    """Find the file of each range of a snapshot.

    Raises:
        CorruptionError: The footer of a shared file is damaged.
        OSError: A shared file cannot be read; `FileNotFoundError` if it was replaced since the snapshot.
    """
    sealed: list[HistoryFile] = []
    shared: dict[SharedName, list[LiveRows]] = defaultdict(list)
    rest: list[Part] = []
    for shard in snapshot.shards:
        for segment in shard.segments:
            first = max(segment.base_offset, shard.start_offset)
            if first >= segment.next_offset:
                continue
            if segment.place is None or not snapshot.store.sealed:
                rest.append(Part(shard.name, shard.shard_id, segment, first, segment.next_offset))
            else:
                shared[segment.place.file].append(LiveRows(shard.name, shard.shard_id, first, segment.next_offset))
    if shared:
        tree = FileTree(snapshot.store.sealed)
        sealed += [_shared_file(tree, name, shared[name]) for name in sorted(shared)]
    return HistoryFiles(tuple(sealed), tuple(rest))


def _shared_file(tree: FileTree, name: SharedName, live: list[LiveRows]) -> HistoryFile:
    path = tree.shown(name.path)
    file = tree.file_system.open(path, write=False)
    try:
        size_bytes = file.size()
    finally:
        file.close()
    return HistoryFile(path, size_bytes, record_count(tree, name), tuple(live), date_of_day(name.day))
