"""`journal-spark drain`: move the records of a cache queue to files or to a table of a database."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.boundary import UsageError
from command_line.output import write_json, write_text
from command_line.quantities import parse_duration_us
from shards.quantities import counted
from spark_export.cli.export_options import WRITE_DEFAULT, FileForm, WriteOptions
from spark_export.cli.place import Place
from spark_export.cli.spark_options import DEFAULT, SparkOptions, running_spark
from spark_export.cli.task_progress import run_display
from spark_export.leased_queue import require_queue
from spark_export.options import parse_options


def drain(
    directory_or_target: str,
    target: str | None = None,
    /,
    *,
    queue: str,
    server: Annotated[
        str | None, Parameter(help="Server with the queue, as HOST:PORT; JOURNAL_SERVER by default.")
    ] = None,
    form: Annotated[FileForm | None, Parameter(name=["--to", "--format"], negative="")] = None,
    name: str | None = None,
    write: WriteOptions = WRITE_DEFAULT,
    wait: str = "60s",
    json: JsonOption = False,
    spark: SparkOptions = DEFAULT,
) -> None:
    """Move the records of a cache queue to files or a database.

    The queue's driver gives way meanwhile, and continues after them. Repeat the command after it was killed: no record
    is missing and none is written twice.

    Args:
        directory_or_target: Data directory of the server, if this machine can access it: its files are read directly
            then; otherwise the target.
        target: Directory to drain to, on any file system that Spark writes, or a JDBC URL.
        queue: Name of the cache queue.
        form: Format of the files; parquet by default, and jdbc for a JDBC URL.
        name: Runs of one name and target are one table; by default the name of the queue.
        wait: How long the queue's driver may take to give way, like 60s.
        json: Print what was done as a JSON object.
    """
    path, to = (directory_or_target, target) if target is not None else (None, directory_or_target)
    # The directory has the records; only the server knows which of them wait in the queue.
    address = server or os.environ.get("JOURNAL_SERVER")
    if not address:
        raise UsageError("name the server with the queue by --server HOST:PORT, or in JOURNAL_SERVER")
    wait_s = parse_duration_us(wait) / 1_000_000
    write.connection(to)  # wrong properties are reported at once
    source = parse_options(Place.parse(path, address, only=None if path else to, wanted="target").options())
    # Before Spark is started, which takes a while.
    require_queue(source.server, queue)
    from spark_export.export import run_drain

    # Names of exports have no hyphen, because it separates the number of a run.
    named = queue.replace("-", "_") if name is None else name
    options = write.export_options(to, form, source, name=named)
    with running_spark(spark) as session, run_display() as progress:
        result = run_drain(session, queue, options, wait_s=wait_s, progress=progress)
    if json:
        write_json(result)
        return
    if result.recovered:
        write_text(
            f"{queue}: {counted(result.recovered, 'record')} left it that an earlier drain had added to {result.target}"
        )
    if result.run is None:
        write_text(f"{result.target}: no records wait in {queue}")
    else:
        write_text(f"{result.target}: run {result.run} added {counted(result.records, 'record')} of {queue}")
    if result.skipped:
        write_text(f"{queue}: {result.skipped:,} others had expired, were dropped for newer ones, or were lost")
