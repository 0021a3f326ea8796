"""`journal-spark sql`: one query over the journal's records, answered by Spark or by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from command_line.app import JsonOption
from command_line.boundary import CommandError, UsageError
from command_line.output import note, waiting
from spark_export.cli.answer import Answer
from spark_export.cli.failures import explain
from spark_export.cli.place import ALL_TOPICS, Place, ServerOption, TopicsOption
from spark_export.cli.spark_options import DEFAULT, SparkOptions, running_spark
from spark_export.cli.task_progress import task_progress
from spark_export.cli.topic_levels import Replaced, with_levels
from spark_export.options import SourceOptions, parse_options
from spark_export.replanning import replaced_file, with_present_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

RECORDS: Final = "records"
SEALED: Final = "sealed"
_SHOWN_ROWS: Final = 100
_NO_BRACKETS: Final = "INVALID_EXTRACT_BASE_FIELD_TYPE"
_PLACE: Final = re.compile(r"^line (\d+), column (\d+): ")


def sql(
    directory_or_query: str,
    query: str | None = None,
    /,
    *,
    server: ServerOption = None,
    topics: TopicsOption = ALL_TOPICS,
    engine: Literal["spark", "duckdb"] = "spark",
    as_of_version: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    limit: Annotated[int | None, Parameter(name=("--limit", "-n"), validator=Number(gte=0))] = None,
    json: JsonOption = False,
    csv: Annotated[bool, Parameter(negative="")] = False,
    spark: SparkOptions = DEFAULT,
) -> None:
    """Query the journal in SQL: its records are the view `records`.

    Its columns are topic, shard, offset, timestamp, append_time, date, key, value, text, payload, headers and tags.
    `value` is the payload as JSON: `value:temperature::double`. `topic[0]` is the first level of a topic. The view
    `sealed` has only records of sealed segments.

    Args:
        directory_or_query: Data directory or tree of sealed segments; the query if --server has everything.
        query: The query, in Spark's SQL.
        engine: duckdb answers in the time in which Spark starts, on one machine, and needs no Java.
        as_of_version: Query a version of the Delta table over shared files; both views have its records then.
        limit: Show at most this many rows: 100 in a table, all in JSON and CSV by default.
        json: Print one JSON object per row.
        csv: Print CSV with a line of column names.
    """
    if json and csv:
        raise UsageError("--json and --csv are two output formats; give one of them")
    if engine == "duckdb" and spark != DEFAULT:
        raise UsageError("--memory, --cores, --conf and --spark-log are for Spark; leave them out with --engine duckdb")
    path, text = (directory_or_query, query) if query is not None else (None, directory_or_query)
    place = Place.parse(path, server, only=None if path else text, wanted="query")
    views = _views_in(text)
    if SEALED in views and place.path is None:
        raise UsageError(f"the view `{SEALED}` reads files: name the data directory before the query")
    place.require()
    source = place.options(topics)
    if as_of_version is not None:
        source["asOfVersion"] = str(as_of_version)
    options = parse_options(source, "batch")
    most = limit if limit is not None else None if json or csv else _SHOWN_ROWS

    def write(answer: Answer) -> None:
        (answer.write_json if json else answer.write_csv if csv else answer.write_table)()
        if answer.is_cut:
            note("journal-spark", f"only the first {most:,} rows are shown; --limit N shows more")

    if engine == "duckdb":
        write(with_present_files(lambda: _ask_duckdb(options, text, most, with_unsealed=RECORDS in views)))
        return

    def ask(session: SparkSession) -> Answer:
        with _made(session, views, options):
            return _ask(session, text, most)

    with running_spark(spark, makes_archive=True) as session:
        with task_progress(session, "asking"):
            answer = with_present_files(lambda: ask(session))
        # The result is printed before Spark is stopped.
        write(answer)


def _views_in(query: str) -> list[str]:
    """The views that a query uses."""
    return [name for name in (RECORDS, SEALED) if re.search(rf"\b{name}\b", query, re.IGNORECASE)]


def _ask(spark: SparkSession, query: str, most: int | None) -> Answer:
    from pyspark.errors import AnalysisException

    try:
        return _collected(spark.sql(query), most)
    except AnalysisException as error:
        # A query that Spark accepts is never changed.
        replaced = with_levels(query) if error.getCondition() == _NO_BRACKETS else None
        if replaced is None:
            raise
    try:
        return _collected(spark.sql(replaced.text), most)
    except Exception as error:
        message = explain(error)
        if message is None or replaced_file(error) is not None:
            raise
        raise CommandError(_in_original(query, replaced, message)) from error


def _in_original(query: str, replaced: Replaced, message: str) -> str:
    """A message about a changed query, with the place in the query as it was given."""
    found = _PLACE.match(message)
    if found is None:
        return message
    lines = replaced.text.splitlines(keepends=True)
    position = sum(map(len, lines[: int(found[1]) - 1])) + int(found[2]) - 1
    before = query[: replaced.original_position(position)]
    column = len(before) - (before.rfind("\n") + 1) + 1
    return f"line {before.count(chr(10)) + 1}, column {column}: {message[found.end() :]}"


def _collected(frame: DataFrame, most: int | None) -> Answer:
    """The rows of a data frame, with VARIANT as JSON."""
    from pyspark.sql import functions

    names = frame.columns
    variants = frozenset(number for number, field in enumerate(frame.schema) if _has_variant(field.dataType))
    if variants:
        numbered = [f"column_{number}" for number in range(len(names))]
        # Names of columns may repeat.
        frame = frame.toDF(*numbered).select(
            *(
                functions.to_json(name).alias(name) if number in variants else functions.col(name)
                for number, name in enumerate(numbered)
            )
        )
    table = (frame if most is None else frame.limit(most + 1)).toArrow()
    is_cut = most is not None and table.num_rows > most
    if is_cut:
        table = table.slice(0, most)
    return Answer(table.rename_columns(names), is_cut, variants)


def _has_variant(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    match kind:
        case VariantType():
            return True
        case ArrayType():
            return _has_variant(kind.elementType)
        case MapType():
            return _has_variant(kind.valueType)
        case StructType():
            return any(_has_variant(field.dataType) for field in kind.fields)
        case _:
            return False


@contextmanager
def _made(spark: SparkSession, views: Sequence[str], source: SourceOptions) -> Iterator[None]:
    """Create these views for the duration of the context; creating one takes time."""
    try:
        for name in views:
            _frame(spark, source, sealed_only=name == SEALED).createOrReplaceTempView(name)
        yield
    finally:
        for name in views:
            spark.catalog.dropTempView(name)


def _frame(spark: SparkSession, source: SourceOptions, *, sealed_only: bool) -> DataFrame:
    # Imported late: `--help` and other engines need none of their dependencies.
    from spark_export.history import Origin, take_history
    from spark_export.query_columns import with_query_columns
    from spark_export.sealed_table import read_sealed

    if sealed_only or source.version is not None:
        return with_query_columns(read_sealed(spark, source.path, topics=source.topics, version=source.version))
    # Spark's own reader reads sealed segments several times as fast as any data source in Python.
    history = take_history(spark, Origin(source.path, source.server, source.topics, source.topics))
    return with_query_columns(history.read(spark, reads_few_at_once=True))


def _ask_duckdb(source: SourceOptions, query: str, most: int | None, *, with_unsealed: bool) -> Answer:
    from spark_export.duckdb_dialect import translate
    from spark_export.duckdb_records import connect, fetch

    text = translate(query)
    with waiting("reading what is not sealed"):
        connection = connect(source, with_unsealed=with_unsealed)
    with connection:
        table, is_cut, json_columns = fetch(connection, text, most)
    return Answer(table, is_cut, json_columns)
