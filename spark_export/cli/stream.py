"""`journal-spark stream`: add appended records of a journal to files as they come."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.boundary import UsageError
from command_line.output import note, write_json, write_text
from command_line.quantities import parse_duration_us
from shards.quantities import counted
from spark_export.cli.export_options import parts_of
from spark_export.cli.place import ALL_TOPICS, Place, ServerOption, TopicsOption
from spark_export.cli.spark_options import DEFAULT, SparkOptions, running_spark
from spark_export.cli.stopping import asked_to_stop

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_export.stream_export import MicroBatch

_BEGINNINGS: Final = {"version": "startingVersion", "lsn": "startingLsn"}
_LOOK_EVERY_S: Any = 0.25  # PySpark's type hints require whole seconds, but it accepts fractions


def stream(
    directory_or_target: str | None = None,
    target: str | None = None,
    /,
    *,
    server: ServerOption = None,
    topics: TopicsOption = ALL_TOPICS,
    to: Literal["parquet", "csv", "json", "console"] = "parquet",
    checkpoint: str = "",
    available_now: Annotated[bool, Parameter(negative="")] = False,
    interval: str | None = None,
    max_records: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    start: str = "earliest",
    value_as: Literal["text", "binary", "json"] | None = None,
    partition_by: str = "date",
    data_loss: Literal["fail", "skip"] = "fail",
    json: JsonOption = False,
    spark: SparkOptions = DEFAULT,
) -> None:
    """Add appended records to files as they come, each record once; Ctrl-C ends it.

    Run it again to continue: a stream that was stopped or killed misses no record and repeats none.

    Args:
        directory_or_target: Data directory or tree of sealed segments; the target if --server has everything.
        target: Directory of the files, on any file system that Spark writes; none for the console.
        to: Output format; console prints the records.
        checkpoint: Directory that stores how far the stream got; by default _checkpoint in the target.
        available_now: Read the present records, then end.
        interval: Time from one micro-batch to the next, like 10s; by default without a pause.
        max_records: Most records of a micro-batch.
        start: Where a new stream begins: earliest, latest, version=N of the Delta table, lsn=N, or JSON of offsets by
            shard.
        value_as: How keys and values are written; binary for parquet, text for the others by default.
        partition_by: Directories in the target: date, topic, both separated by a comma, or empty.
        data_loss: What to do when records were trimmed before they were read.
        json: Print a JSON object for each micro-batch.
    """
    if available_now and interval is not None:
        raise UsageError("--available-now ends by itself and --interval continues for ever; give one of them")
    if to == "console" and target is not None:
        raise UsageError(f"--to console needs no target, and there is {target!r}")
    is_target = target is None and to != "console" and server is not None
    path, written_to = (None, directory_or_target) if is_target else (directory_or_target, target)
    if to != "console" and written_to is None:
        raise UsageError(f"name the directory for the {to} files after that of the journal, or give --to console")
    interval_s = None if interval is None else parse_duration_us(interval) / 1_000_000
    place = Place.parse(path, server)
    place.require()
    beginning, is_named, value = start.partition("=")
    option = _BEGINNINGS.get(beginning) if is_named else None
    options = place.options(topics) | {
        option or "startingOffsets": value if option else start,
        "failOnDataLoss": "true" if data_loss == "fail" else "false",
    }
    if max_records is not None:
        options["maxRecordsPerTrigger"] = str(max_records)
    from spark_export.options import parse_options
    from spark_export.stream_export import StreamSink
    from spark_export.stream_export import stream as start_stream

    # Wrong options are reported at once, before Spark is started.
    parse_options(options, "stream")
    sink = StreamSink(
        format=to,
        target=written_to or "",
        checkpoint=checkpoint,
        value_as=value_as,
        partition_by=tuple(parts_of(partition_by)),
    )
    with running_spark(spark) as session, asked_to_stop() as stopping:
        query = start_stream(session, options, sink, available_now=available_now, interval_s=interval_s)
        try:
            _follow(query, stopping, as_json=json, quiet=to == "console" and not json)
        finally:
            query.stop()


def _follow(query: StreamingQuery, stopping: threading.Event, *, as_json: bool, quiet: bool) -> None:
    """Report each micro-batch until the query ends or is to be stopped.

    Raises:
        StreamingQueryException: The query failed.
    """
    reported = -1
    while True:
        # Progress is also read after it has ended, so that the last micro-batch is reported.
        ended = stopping.is_set() or query.awaitTermination(_LOOK_EVERY_S) is True
        reported = _report(query, reported, as_json=as_json, quiet=quiet)
        if ended:
            break
    if stopping.is_set():
        note("journal-spark", "stopped; the same command continues from here")


def _report(query: StreamingQuery, reported: int, *, as_json: bool, quiet: bool) -> int:
    """Report the micro-batches after number ``reported``; return the number of the last one."""
    from spark_export.stream_export import MicroBatch

    last = query.lastProgress
    if last is None or last.batchId == reported:
        return reported
    for progress in query.recentProgress:
        if progress.batchId > reported and progress.numInputRows:
            reported = progress.batchId
            batch = MicroBatch.of(progress)
            if as_json:
                write_json(batch)
            elif not quiet:
                write_text(_line(batch))
    return reported


def _line(batch: MicroBatch) -> str:
    seconds = max(batch.duration_ms, 1) / 1000
    rate = batch.records / seconds
    text = f"batch {batch.batch}: {counted(batch.records, 'record')} in {seconds:,.1f} s ({rate:,.0f}/s)"
    if batch.behind is None:
        return text
    return f"{text}, {batch.behind:,} behind" if batch.behind else f"{text}, up to date"
