"""Following a journal into files: appended records are added to a directory, micro-batch by micro-batch, exactly once.

The checkpoint has how far the stream got, the target's ``_spark_metadata`` has the files that count; Spark maintains
both, and a stream that is killed continues from there. Rows have the form of those of an export
(`spark_export.export`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from spark_export.errors import OptionError
from spark_export.export.file_target import WRITER_OPTIONS
from spark_export.export.options import ExportOptions, PartitionBy, ValueAs
from spark_export.export.rows import DIRECTORY_COLUMNS, add_directories, shaped
from spark_export.options import parse_options
from spark_export.positions import RECORDS_LEFT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

SinkFormat = Literal["parquet", "csv", "json", "console"]
_SHOWN_ROWS: Final = 1_000_000


@attrs.frozen(kw_only=True)
class StreamSink:
    """Target of a stream.

    Attributes:
        format: ``parquet``, ``csv`` or ``json`` files, or ``console`` to print the records.
        target: Directory of the files, on any file system that Spark writes; empty for the console.
        checkpoint: Directory that stores how far the stream got; by default ``_checkpoint`` in the target. Each stream
            needs its own, used only with its target: together they make each record come once.
        value_as: How key and value are written, as in an export; by default bytes in Parquet, text in the others.
        partition_by: Directories in the target: ``date``, ``topic``, both or none.
    """

    format: SinkFormat = "parquet"
    target: str = ""
    checkpoint: str = ""
    value_as: ValueAs | None = None
    partition_by: tuple[PartitionBy, ...] = ("date",)

    def __attrs_post_init__(self) -> None:
        if (self.format == "console") is bool(self.target):
            raise OptionError(
                f"format {self.format!r} does not go with target {self.target!r}: a directory is needed for files, and "
                "none for the console"
            )


@attrs.frozen(slots=True)
class MicroBatch:
    """Result of one micro-batch.

    Attributes:
        batch: Its number.
        records: How many records it read.
        duration_ms: How long it took.
        behind: How many records were left to read when it was planned; None if it was planned before a restart of the
            stream.
    """

    batch: int
    records: int
    duration_ms: int
    behind: int | None

    @classmethod
    def of(cls, progress: StreamingQueryProgress) -> MicroBatch:
        """The result in the progress of a stream from the data source `journal`."""
        source = progress.sources[0]
        latest = json.loads(source.latestOffset or "null")
        behind = None if latest is None else latest.get(RECORDS_LEFT)
        return cls(progress.batchId, progress.numInputRows, progress.batchDuration, behind)


def stream(
    spark: SparkSession,
    source: Mapping[str, str],
    sink: StreamSink,
    *,
    available_now: bool = False,
    interval_s: float | None = None,
) -> StreamingQuery:
    """Start to add the present and all later records of a journal to a directory of files.

    Args:
        spark: The session.
        source: Options of the data source `journal`.
        sink: The target.
        available_now: Read the present records, then end.
        interval_s: Time from one micro-batch to the next, in seconds; by default without a pause.

    Returns:
        The query, which runs until it is stopped, fails, or has read all records with ``available_now``.

    Raises:
        OptionError: The options are not valid.
    """
    wanted = parse_options(source, "stream")
    chosen: dict[str, Any] = {} if sink.value_as is None else {"value_as": sink.value_as}
    looks = ExportOptions(
        target=sink.target or "console",
        # The console shows records in the form of CSV.
        format="csv" if sink.format == "console" else sink.format,
        path=wanted.path,
        server=wanted.server,
        topics=wanted.topics,
        partition_by=sink.partition_by if sink.target else (),
        **chosen,
    )
    frame = spark.readStream.format("journal").options(**source).load()
    writer = add_directories(shaped(frame, looks), looks).writeStream.format(sink.format).outputMode("append")
    if sink.target:
        target = sink.target.rstrip("/")
        writer = writer.options(**WRITER_OPTIONS[sink.format]).option("path", target)
        writer = writer.option("checkpointLocation", sink.checkpoint or f"{target}/_checkpoint")
        if looks.partition_by:
            writer = writer.partitionBy(*(DIRECTORY_COLUMNS[one] for one in looks.partition_by))
    else:
        writer = writer.options(truncate="false", numRows=_SHOWN_ROWS)
        if sink.checkpoint:
            writer = writer.option("checkpointLocation", sink.checkpoint)
    if available_now:
        writer = writer.trigger(availableNow=True)
    elif interval_s is not None:
        writer = writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")
    return writer.start()
