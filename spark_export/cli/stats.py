"""`journal-spark stats`: figures about the shards of a journal, or about its sealed files by day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.boundary import UsageError
from command_line.output import waiting, write_lines, write_table
from shards.quantities import counted, format_size
from spark_export.cli.place import ALL_TOPICS, Place, ServerOption, TopicsOption

if TYPE_CHECKING:
    from spark_export.file_statistics import DayStatistics
    from spark_export.snapshot import Snapshot
    from spark_export.statistics import SegmentTotal, ShardStatistics

_COLUMNS = ("shard", "records", "size", "per second", "first appended", "last appended", "gaps", "sealed", "unsealed")
_NUMERIC = ("records", "size", "per second", "gaps")
_DAY_COLUMNS = ("day", "records", "files", "size", "compacted to", "dead")
_NOT_SEALED = "not sealed"


def stats(
    directory: str | None = None,
    /,
    *,
    server: ServerOption = None,
    topics: TopicsOption = ALL_TOPICS,
    by: Literal["shard", "day"] = "shard",
    times: Annotated[
        bool, Parameter(help="Show when the first and the last record were appended, and the rate.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Show each shard, or each day: records, bytes, times, gaps, files, what can be compacted. Needs no Spark.

    Counts and sizes come from file names and the server's catalogue; for the times, a record at each end is read.

    Args:
        directory: Data directory or tree of sealed segments.
        by: shard, or day: sealed files by the UTC day of their first record, and what compaction would save.
        json: Print one JSON object per shard or day.
    """
    from spark_export.discovery import take_snapshot
    from spark_export.options import parse_options

    place = Place.parse(directory, server)
    if by == "day" and place.path is None:
        raise UsageError("--by day is about files: name the data directory")
    place.require()
    with waiting("listing the shards"):
        snapshot = take_snapshot(parse_options(place.options(topics)), with_segments=True)
    if by == "day":
        _show_days(snapshot, json=json)
    else:
        _show_shards(snapshot, times=times, json=json)


def _show_shards(snapshot: Snapshot, *, times: bool, json: bool) -> None:
    from spark_export.statistics import read_times, shard_statistics, with_times

    found = [shard_statistics(shard) for shard in snapshot.shards]
    if times:
        with waiting("reading the ends of the shards"):
            found = with_times(found, read_times(snapshot))
    if json:
        from msgspec import json as msgspec_json

        write_lines(msgspec_json.encode(_members(each)) for each in found)
    else:
        _print_table(found)


def _show_days(snapshot: Snapshot, *, json: bool) -> None:
    from spark_export.file_statistics import day_statistics, total
    from spark_export.history_files import history_files
    from spark_export.statistics import shard_statistics
    from spark_export.statistics import total as total_of_shards

    with waiting("reading the days of the files"):
        days = day_statistics(history_files(snapshot).sealed)
    rest = total_of_shards([shard_statistics(shard) for shard in snapshot.shards], "").unsealed
    if json:
        from msgspec import json as msgspec_json

        unsealed = {"day": None, "records": rest.records, "segments": rest.segments, "size_bytes": rest.size_bytes}
        write_lines([*map(msgspec_json.encode, days), msgspec_json.encode(unsealed)])
        return
    shown = days if len(days) == 1 else [*days, total(days, f"all {len(days):,}")]
    rows = [_day_row(each) for each in shown]
    if rest.segments:
        segments = counted(rest.segments, "segment")
        rows.append([_NOT_SEALED, f"{rest.records:,}", segments, format_size(rest.size_bytes), "", ""])
    write_table(_DAY_COLUMNS, rows, numeric=_DAY_COLUMNS[1:])


def _day_row(each: DayStatistics) -> list[str]:
    return [
        each.day,
        f"{each.records:,}",
        f"{each.files:,}",
        format_size(each.size_bytes),
        f"{each.files_after_compaction:,}" if each.files_after_compaction < each.files else "",
        format_size(each.dead_bytes) if each.dead_bytes else "",
    ]


def _members(each: ShardStatistics) -> dict[str, object]:
    def segments(those: SegmentTotal) -> dict[str, int]:
        return {"segments": those.segments, "records": those.records, "size_bytes": those.size_bytes}

    return {
        "shard": each.shard,
        "start_offset": each.start_offset,
        "next_offset": each.next_offset,
        "records": each.records,
        "size_bytes": each.size_bytes,
        "records_per_second": each.per_second,
        "first_append_time_us": each.first_us,
        "last_append_time_us": each.last_us,
        "gaps": each.gaps,
        "sealed": segments(each.sealed),
        "unsealed": segments(each.unsealed),
    }


def _print_table(found: list[ShardStatistics]) -> None:
    from spark_export.statistics import total

    shown = found if len(found) == 1 else [*found, total(found, f"all {len(found):,}")]
    write_table(_COLUMNS, map(_row, shown), numeric=_NUMERIC)


def _row(each: ShardStatistics) -> list[str]:
    return [
        each.shard,
        f"{each.records:,}",
        format_size(each.size_bytes),
        _rate(each.per_second),
        _time(each.first_us),
        _time(each.last_us),
        f"{each.gaps:,}" if each.gaps else "",
        _segments(each.sealed),
        _segments(each.unsealed),
    ]


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return ""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def _segments(those: SegmentTotal) -> str:
    return f"{those.segments:,} ({format_size(those.size_bytes)})" if those.segments else ""


def _time(time_us: int | None) -> str:
    from datetime import UTC, datetime, timedelta

    if time_us is None:
        return ""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    return moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
