"""`journal-spark tables`: keep declared tables up to date as Delta tables, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.boundary import CommandError, UsageError
from command_line.output import note, write_json, write_text
from shards.quantities import counted, format_size
from spark_export.cli.place import ServerOption
from spark_export.cli.stopping import asked_to_stop

if TYPE_CHECKING:
    from spark_export.tables.compaction import Compacted
    from spark_export.tables.declaration import TableDeclaration
    from spark_export.tables.follower import TableFailure
    from spark_export.tables.updater import AddedBatch

PROGRAM = "journal-spark"


def tables(
    config: str,
    directory: str | None = None,
    /,
    *,
    server: ServerOption = None,
    only: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    once: Annotated[bool, Parameter(negative="")] = False,
    rebuild: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    json: JsonOption = False,
) -> None:
    """Keep declared tables up to date as Delta tables, each record once; Ctrl-C ends it. Needs no Spark.

    Run it again to continue: a run that was stopped or killed misses no record and repeats none.

    Args:
        config: File with the declarations: a [[table]] for each, and the [source] of the records.
        directory: Data directory or tree of sealed segments, in place of the file's [source].
        only: Name of a table to keep; may be given several times. By default all.
        once: Add the records that are there, then end.
        rebuild: Name of a table to make again from the records that are there, for a changed declaration.
        json: Print a JSON object for each batch.
    """
    from spark_export.tables.config_file import load_tables
    from spark_export.tables.follower import TableFollower

    declared = load_tables(config)
    source = dict(declared.source)
    if directory is not None or server is not None:
        given = {"path": directory, "server": server}
        source = {name: value for name, value in given.items() if value is not None}
    source = source or _from_environment(config)
    chosen = _chosen(declared.tables, only, rebuild)
    with asked_to_stop() as stopping:
        follower = TableFollower(
            chosen,
            source,
            write_json_report if json else write_report,
            once=once,
            rebuild=rebuild,
            stopping=stopping,
        )
        failed = follower.run()
    if stopping.is_set():
        note(PROGRAM, "stopped; the same command continues from here")
    if failed:
        raise CommandError(f"not up to date: {', '.join(failed)}; the reasons are above")


def _from_environment(config: str) -> dict[str, str]:
    import os

    if address := os.environ.get("JOURNAL_SERVER"):
        return {"server": address}
    raise UsageError(
        f"{config} has no [source]; add one with directory or server, or name a data directory behind the file, or a "
        "server with --server HOST:PORT"
    )


def _chosen(
    declared: tuple[TableDeclaration, ...], only: tuple[str, ...], rebuild: tuple[str, ...]
) -> list[TableDeclaration]:
    names = [table.name for table in declared]
    for option, given in (("--only", only), ("--rebuild", rebuild)):
        if unknown := [name for name in given if name not in names]:
            raise UsageError(f"{option} names {', '.join(unknown)}; declared are {', '.join(names)}")
    if only and (others := [name for name in rebuild if name not in only]):
        raise UsageError(f"--rebuild names {', '.join(others)}, which --only leaves out")
    return [table for table in declared if not only or table.name in only]


def write_json_report(report: AddedBatch | Compacted | TableFailure) -> None:
    """Write a report as a line of JSON."""
    import attrs

    kinds = {"AddedBatch": "batch", "Compacted": "merged", "TableFailure": "failure"}
    write_json({"event": kinds[type(report).__name__], **attrs.asdict(report)})


def write_report(report: AddedBatch | Compacted | TableFailure) -> None:
    """Write a report for people; failures go to stderr."""
    from spark_export.tables.compaction import Compacted
    from spark_export.tables.updater import AddedBatch

    if isinstance(report, AddedBatch):
        write_text(_batch_line(report))
    elif isinstance(report, Compacted):
        into = counted(report.files, "file")
        write_text(f"{report.table}: {report.merged_files} files of {report.date} merged into {into}")
    else:
        again = "" if report.is_final else "; it is tried again"
        note(PROGRAM, f"{report.table}: {report.error}{again}")


def _batch_line(added: AddedBatch) -> str:
    seconds = max(added.duration_s, 0.001)
    records, rate = counted(added.records, "record"), f"{added.records / seconds:,.0f}/s"
    text = f"{added.table}: batch {added.batch} added {records} ({format_size(added.size_bytes)})"
    parts = [f"{text} in {seconds:,.1f} s ({rate})"]
    if added.bad_records:
        parts.append(f"{added.bad_records:,} with a problem")
    if added.skipped:
        parts.append(f"{added.skipped:,} removed before they were read")
    parts.append(f"{added.behind:,} behind" if added.behind else "up to date")
    return ", ".join(parts)
