"""`journal-spark stats`: figures about each shard of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.output import waiting, write_lines, write_table
from shards.quantities import format_size
from spark_export.cli.place import ALL_TOPICS, Place, ServerOption, TopicsOption

if TYPE_CHECKING:
    from spark_export.statistics import SegmentTotal, ShardStatistics

_COLUMNS = ("shard", "records", "size", "per second", "first appended", "last appended", "gaps", "sealed", "unsealed")
_NUMERIC = ("records", "size", "per second", "gaps")


def stats(
    directory: str | None = None,
    /,
    *,
    server: ServerOption = None,
    topics: TopicsOption = ALL_TOPICS,
    times: Annotated[
        bool, Parameter(help="Show when the first and the last record were appended, and the rate.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Show each shard: records, bytes, rate, times, gaps, segments. Needs no Spark.

    Counts and sizes come from file names and the server's catalogue; for the times, a record at each end is read.

    Args:
        directory: Data directory or tree of sealed segments.
        json: Print one JSON object per shard.
    """
    from spark_export.discovery import take_snapshot
    from spark_export.options import parse_options
    from spark_export.statistics import read_times, shard_statistics, with_times

    place = Place.parse(directory, server)
    place.require()
    options = parse_options(place.options(topics))
    with waiting("listing the shards"):
        snapshot = take_snapshot(options, with_segments=True)
        found = [shard_statistics(shard) for shard in snapshot.shards]
    if times:
        with waiting("reading the ends of the shards"):
            found = with_times(found, read_times(snapshot))
    if json:
        from msgspec import json as msgspec_json

        write_lines(msgspec_json.encode(_members(each)) for each in found)
    else:
        _print_table(found)


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
