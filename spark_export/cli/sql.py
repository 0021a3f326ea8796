"""`journal-spark sql`: one query over the journal's records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.boundary import UsageError
from command_line.output import note, write_lines, write_table
from spark_export.cli.place import ALL_TOPICS, Place, ServerOption, TopicsOption
from spark_export.cli.spark_options import DEFAULT, SparkOptions, running_spark
from spark_export.cli.task_progress import task_progress
from spark_export.options import parse_options
from spark_export.sealed_table import read_sealed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RECORDS: Final = "records"
SEALED: Final = "sealed"
_SHOWN_ROWS: Final = 100
_CHUNK_ROWS: Final = 1000


def sql(
    directory_or_query: str,
    query: str | None = None,
    /,
    *,
    server: ServerOption = None,
    topics: TopicsOption = ALL_TOPICS,
    limit: Annotated[int | None, Parameter(name=("--limit", "-n"), validator=Number(gte=0))] = None,
    json: JsonOption = False,
    csv: Annotated[bool, Parameter(negative="")] = False,
    spark: SparkOptions = DEFAULT,
) -> None:
    """Query the journal in SQL: its records are the view `records`.

    Its columns are topic, shard, offset, timestamp, append_time, key, value, headers and tags. `cast(value as string)`
    converts a value to text, `get_json_object` extracts a part of it. The view `sealed` has only records of sealed
    segments.

    Args:
        directory_or_query: Data directory or tree of sealed segments; the query if --server has everything.
        query: The query, in Spark's SQL.
        limit: Show at most this many rows: 100 in a table, all in JSON and CSV by default.
        json: Print one JSON object per row.
        csv: Print CSV with a line of column names.
    """
    if json and csv:
        raise UsageError("--json and --csv are two output formats; give one of them")
    path, text = (directory_or_query, query) if query is not None else (None, directory_or_query)
    place = Place.parse(path, server, only=None if path else text, wanted="query")
    views = _views_in(text)
    if SEALED in views and place.path is None:
        raise UsageError(f"the view `{SEALED}` reads files: name the data directory before the query")
    place.require()
    most = limit if limit is not None else None if json or csv else _SHOWN_ROWS
    with running_spark(spark, makes_archive=True) as session:
        with task_progress(session, "asking"), _made(session, views, place, topics):
            table, is_cut = _ask(session, text, most)
        # The result is printed before Spark is stopped.
        (_print_json if json else _print_csv if csv else _print_table)(table)
        if is_cut:
            note("journal-spark", f"only the first {most:,} rows are shown; --limit N shows more")


def _views_in(query: str) -> list[str]:
    """The views that a query uses."""
    return [name for name in (RECORDS, SEALED) if re.search(rf"\b{name}\b", query, re.IGNORECASE)]


def _ask(spark: SparkSession, query: str, most: int | None) -> tuple[pa.Table, bool]:
    """The rows of the result, and whether there are more."""
    frame = spark.sql(query)
    if most is None:
        return frame.toArrow(), False
    table = frame.limit(most + 1).toArrow()
    return table.slice(0, most), table.num_rows > most


@contextmanager
def _made(spark: SparkSession, views: Sequence[str], place: Place, topics: str) -> Iterator[None]:
    """Create these views for the duration of the context; creating one takes time."""
    try:
        for name in views:
            _frame(spark, place, topics, sealed_only=name == SEALED).createOrReplaceTempView(name)
        yield
    finally:
        for name in views:
            spark.catalog.dropTempView(name)


def _frame(spark: SparkSession, place: Place, topics: str, *, sealed_only: bool) -> DataFrame:
    source = parse_options(place.options(topics))
    if sealed_only:
        return read_sealed(spark, source.path, topics=source.topics)
    # Imported late: `--help` needs none of its dependencies.
    from spark_export.history import Origin, take_history

    # Spark's own reader reads sealed segments several times as fast as any data source in Python.
    history = take_history(spark, Origin(source.path, source.server, source.topics, source.topics))
    return history.read(spark, reads_few_at_once=True)


def _rows(table: pa.Table) -> Iterator[Sequence[object]]:
    for batch in table.to_batches(max_chunksize=_CHUNK_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _print_table(table: pa.Table) -> None:
    import pyarrow as pa

    from spark_export.cli.cells import table_cell

    numeric = [
        field.name for field in table.schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]
    write_table(table.column_names, ([table_cell(value) for value in row] for row in _rows(table)), numeric=numeric)


def _print_json(table: pa.Table) -> None:
    from spark_export.cli.cells import json_lines

    write_lines(json_lines(table.column_names, _rows(table)))


def _print_csv(table: pa.Table) -> None:
    import csv
    import io

    from spark_export.cli.cells import csv_field

    with io.StringIO(newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows([csv_field(value) for value in row] for row in _rows(table))
        # Not line by line: a field may contain line breaks.
        write_lines([text.getvalue().removesuffix("\n").encode("utf-8", "surrogateescape")])
