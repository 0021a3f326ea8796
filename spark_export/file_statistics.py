"""Statistics of the sealed files of a history by day: number, rows, size, and what a compaction would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import attrs

from shards.parquet.reading import SealedReader
from shards.parquet.schema import SCHEMA as STORED
from spark_export.file_access import FileTree
from spark_export.history_files import HistoryFile

COMPACTED_BYTES: Final = 256 << 20
"""The size up to which the files of a day are put together."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.frozen(slots=True)
class DayStatistics:
    """The files of one day, or of several.

    Attributes:
        day: UTC day on which the first record of a file was appended, as 2026-11-22.
        files: Number of files.
        records: Rows that belong to the history.
        size_bytes: Size of the files.
        dead_bytes: The share of that size that belongs to rows which were trimmed or deleted.
        files_after_compaction: Number of files if those of the day were put together, without dead rows.
    """

    day: str
    files: int
    records: int
    size_bytes: int
    dead_bytes: int
    files_after_compaction: int


def day_statistics(sealed: str, files: Iterable[HistoryFile]) -> list[DayStatistics]:
    """Statistics of each day, in order; of a file whose path has no day, the footer is read.

    Args:
        sealed: The tree of the files.
        files: The files.

    Raises:
        UnreadableError: The tree cannot be reached.
        CorruptionError: A footer is damaged.
    """
    tree = FileTree(sealed) if sealed else None
    days: dict[str, list[HistoryFile]] = defaultdict(list)
    for each in files:
        assert tree is not None  # files are of a tree
        days[each.date or _day_in(tree, each.path)].append(each)
    return [_of_day(day, days[day]) for day in sorted(days)]


def total(days: Sequence[DayStatistics], name: str) -> DayStatistics:
    """The sum of several days."""
    return DayStatistics(
        name,
        sum(each.files for each in days),
        sum(each.records for each in days),
        sum(each.size_bytes for each in days),
        sum(each.dead_bytes for each in days),
        sum(each.files_after_compaction for each in days),
    )


def _of_day(day: str, files: Sequence[HistoryFile]) -> DayStatistics:
    size_bytes = sum(each.size_bytes for each in files)
    dead_bytes = sum(each.size_bytes * (each.rows - each.live_rows) // each.rows for each in files if each.rows)
    records = sum(each.live_rows for each in files)
    after = max(1, -(-(size_bytes - dead_bytes) // COMPACTED_BYTES)) if records else 0
    return DayStatistics(day, len(files), records, size_bytes, dead_bytes, min(len(files), after))


def _day_in(tree: FileTree, path: str) -> str:
    with SealedReader(tree.file_system, path) as reader:
        found = reader.footer.row_group(0).column(STORED.get_field_index("append_time")).statistics
    return (_EPOCH + timedelta(microseconds=found.min_raw)).date().isoformat()
