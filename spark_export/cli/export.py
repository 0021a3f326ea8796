"""`journal-spark export`: add new records of a journal to files or to a table of a database."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.output import write_json, write_text
from shards.quantities import counted
from spark_export.cli.export_options import WRITE_DEFAULT, FileForm, WriteOptions
from spark_export.cli.place import ALL_TOPICS, Place, ServerOption, TopicsOption
from spark_export.cli.spark_options import DEFAULT, SparkOptions, running_spark
from spark_export.cli.task_progress import run_display


def export(
    directory_or_target: str,
    target: str | None = None,
    /,
    *,
    server: ServerOption = None,
    topics: TopicsOption = ALL_TOPICS,
    form: Annotated[FileForm | None, Parameter(name="--format")] = None,
    name: str = "default",
    write: WriteOptions = WRITE_DEFAULT,
    data_loss: Literal["fail", "skip"] = "fail",
    json: JsonOption = False,
    spark: SparkOptions = DEFAULT,
) -> None:
    """Add the records since the last run to files or a database; each run is added completely or not at all.

    Run it as often as needed: no record is missing and none is written twice, also after a run that was killed.

    Args:
        directory_or_target: Data directory or tree of sealed segments; the target if --server has everything.
        target: Directory to export to, on any file system that Spark writes, or a JDBC URL.
        form: Format of the files; parquet by default, and jdbc for a JDBC URL.
        name: Runs of one name and target continue after the last one.
        data_loss: What to do when records were trimmed before they were exported, or their shard was deleted.
        json: Print what was done as a JSON object.
    """
    path, to = (directory_or_target, target) if target is not None else (None, directory_or_target)
    place = Place.parse(path, server, only=None if path else to, wanted="target")
    place.require()
    write.connection(to)  # wrong properties are reported at once
    from spark_export.export import run_export
    from spark_export.options import parse_options

    source = parse_options(place.options(topics))
    options = write.export_options(
        to, form, source, name=name, topics=source.topics, fail_on_data_loss=data_loss == "fail"
    )
    with running_spark(spark) as session, run_display() as progress:
        result = run_export(session, options, progress=progress)
    if json:
        write_json(result)
    elif result.run is None:
        write_text(f"{result.target}: nothing new")
    else:
        shards = counted(result.shards, "shard")
        write_text(f"{result.target}: run {result.run} added {counted(result.records, 'record')} of {shards}")
