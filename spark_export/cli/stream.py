"""`journal-spark stream`: what is appended, added to files as it comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.output import write_json, write_text
from command_line.quantities import parse_duration_us
from spark_export.cli.place import ALL_TOPICS, Place, ServerOption, TopicsOption
from spark_export.cli.spark_options import DEFAULT, SparkOptions, running_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_LOOK_EVERY_S = 1


def stream(
    directory_or_target: str,
    target: str | None = None,
    /,
    *,
    server: ServerOption = None,
    topics: TopicsOption = ALL_TOPICS,
    form: Annotated[Literal["parquet", "csv", "json"], Parameter(name="--format")] = "parquet",
    value_as: Literal["text", "binary", "json"] | None = None,
    start: Annotated[Literal["earliest", "latest"], Parameter(name="--from")] = "earliest",
    every: str = "10s",
    once: Annotated[bool, Parameter(negative="")] = False,
    max_records: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    checkpoint: str | None = None,
    json: JsonOption = False,
    spark: SparkOptions = DEFAULT,
) -> None:
    """Add what is appended to files, micro-batch by micro-batch, until interrupted.

    Started again it goes on where it was, also after a kill: Spark reads every record from the files once. Columns are
    those of `export`.

    Args:
        directory_or_target: Data directory or tree of sealed segments; the target if --server has everything.
        target: Directory to write to, on any file system that Spark writes.
        form: Of the files.
        value_as: How keys and values are written; binary for parquet, text for the others by default.
        start: Where to begin the first time.
        every: How often a micro-batch is written.
        once: Write what there is now and end.
        max_records: Bound of one micro-batch.
        checkpoint: Where to remember how far it is; by default `_checkpoint` in the target.
        json: Print a JSON object for each micro-batch.
    """
    path, to = (directory_or_target, target) if target is not None else (None, directory_or_target)
    options = {**Place.parse(path, server).options(topics), "startingOffsets": start}
    if max_records is not None:
        options["maxRecordsPerTrigger"] = str(max_records)
    trigger: dict[str, Any] = {"availableNow": True}
    if not once:
        trigger = {"processingTime": f"{parse_duration_us(every) // 1000} milliseconds"}
    from spark_export.export import ExportOptions
    from spark_export.options import parse_options

    source = parse_options(options, "stream")
    shape: dict[str, Any] = {} if value_as is None else {"value_as": value_as}
    columns = ExportOptions(target=to, format=form, path=source.path, server=source.server, partition_by=(), **shape)
    with running_spark(spark) as session:
        query = _begin(session, options, columns, trigger, checkpoint or f"{to.rstrip('/')}/_checkpoint")
        _follow(query, as_json=json)


def _begin(
    spark: SparkSession, options: dict[str, str], columns: Any, trigger: dict[str, Any], checkpoint: str
) -> StreamingQuery:
    from spark_export.export.rows import shaped

    rows = shaped(spark.readStream.format("journal").options(**options).load(), columns)
    writer = rows.writeStream.format(columns.format).option("checkpointLocation", checkpoint)
    if columns.format == "csv":
        writer = writer.option("header", "true").option("escape", '"')
    return writer.trigger(**trigger).start(columns.target)


def _follow(query: StreamingQuery, *, as_json: bool) -> None:
    """Tell of each micro-batch until the query ends, which a SIGTERM makes it do."""
    told = -1
    try:
        with _termination() as wanted:
            ended = False
            while not ended and not wanted:
                ended = bool(query.awaitTermination(_LOOK_EVERY_S))
                told = _tell(query, told, as_json=as_json)
    finally:
        query.stop()


def _tell(query: StreamingQuery, told: int, *, as_json: bool) -> int:
    """Tell of micro-batches after one; return the last."""
    for progress in query.recentProgress:
        if progress.batchId <= told or not progress.numInputRows:
            continue
        told = progress.batchId
        if as_json:
            write_json(
                {
                    "batch": progress.batchId,
                    "time": progress.timestamp,
                    "records": progress.numInputRows,
                    "records_per_second": progress.processedRowsPerSecond,
                }
            )
        else:
            rate = f"{progress.processedRowsPerSecond:,.0f}/s"
            write_text(
                f"{progress.timestamp}: batch {progress.batchId} added {progress.numInputRows:,} records, {rate}"
            )
    return told


@contextmanager
def _termination() -> Iterator[list[int]]:
    """A list that gets the number of a SIGTERM when one comes."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)
