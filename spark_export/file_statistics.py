"""Statistics of the sealed files of a history by day: number, rows, size, and what a compaction would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from spark_export.history_files import HistoryFile

COMPACTED_BYTES: Final = 256 << 20
"""The size up to which the files of a day are put together."""


@attrs.frozen(slots=True)
class DayStatistics:
    """The files of one day, or of several.

    Attributes:
        day: UTC day of the append, as 2026-11-22.
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


def day_statistics(files: Iterable[HistoryFile]) -> list[DayStatistics]:
    """Statistics of each day, in order."""
    days: dict[str, list[HistoryFile]] = defaultdict(list)
    for each in files:
        days[each.date].append(each)
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
