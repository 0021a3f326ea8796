"""Form of a record in an export: times in UTC, bytes in a form of the format, and the directories of its file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from spark_export.export.options import ExportOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DIRECTORY_COLUMNS: Final = {"date": "date", "topic": "topic_dir"}
"""The column from which Spark makes directories, by value of `partition_by`."""

_DAY_US: Final = 86_400_000_000
_LONGEST_TOPIC_BYTES: Final = 80
"""A topic with at most this many bytes fits into a directory name (255 bytes) even if each byte is escaped."""
_READ_AS_OTHER_TYPE: Final = (
    r"(?i)\A([\s\p{Z}\p{Nd}\-.~]|(__hive_default_partition__|nan|inf|infinity|null|none|true|false|epoch)[\s\p{Z}]*\z)"
)
"""Topics that a reader might parse as a number, a date, a truth value or null when they are names of directories.

Spark, DuckDB, Polars and Arrow guess the type of such a column from all its names. This matches more than each of them
parses: everything that begins with a digit of any script, a minus, a point or a space. A topic that begins with the
mark itself matches too, so that two topics never get the same name.
"""
_TEXT_MARK: Final = "~"


def shaped(frame: DataFrame, options: ExportOptions) -> DataFrame:
    """The records with the columns of an export."""
    from pyspark.sql import functions

    columns = ["topic", "shard", "offset", "timestamp", "append_time"]
    rows = frame
    if options.format == "jdbc":
        rows = without_zones(rows, ("timestamp", "append_time"))
    if options.value_as == "binary":
        if options.format in ("csv", "json"):
            rows = rows.withColumns({column: functions.base64(column) for column in ("key", "value")})
        columns += ["key", "value"]
    else:
        for column in ("key", "value"):
            as_json = options.value_as == "json" and column == "value"
            rows = _with_text(rows, column, options, as_json=as_json)
            columns += [column, f"{column}_encoding"]
    columns += ["headers", "tags"]
    if options.format != "parquet":
        rows = rows.withColumn("headers", _text_headers())
    if options.format in ("csv", "jdbc"):
        rows = rows.withColumns({column: functions.to_json(column) for column in ("headers", "tags")})
    return rows.select(*columns)


def without_zones(rows: DataFrame, columns: Iterable[str]) -> DataFrame:
    """The rows with these times in UTC, without a zone: drivers convert a time with a zone to that of the JVM."""
    from pyspark.sql import functions

    text = "timestampadd(MICROSECOND, unix_micros(`{}`), timestamp_ntz'1970-01-01')"
    return rows.withColumns({column: functions.expr(text.format(column)) for column in columns})


def gathered(rows: DataFrame, options: ExportOptions) -> DataFrame:
    """The rows with the columns that become directories, repartitioned by these so that each has few files."""
    from pyspark.sql import functions

    if not options.fields:
        # Typed rows have them already.
        rows = add_directories(rows, options)
    if options.partition_by:
        columns = (functions.col(DIRECTORY_COLUMNS[one]) for one in options.partition_by)
        rows = rows.hint("rebalance", *columns)
    return rows


def ordered(rows: DataFrame, options: ExportOptions) -> DataFrame:
    """The rows of each file, sorted by shard and offset."""
    return rows.sortWithinPartitions(*(DIRECTORY_COLUMNS[one] for one in options.partition_by), "shard", "offset")


def add_directories(rows: DataFrame, options: ExportOptions) -> DataFrame:
    """The rows with the columns that become directories."""
    from pyspark.sql import functions

    if "date" in options.partition_by:
        # In whole days since the epoch, independent of the session's zone.
        day = functions.expr(f"date_from_unix_date(cast(unix_micros(timestamp) div {_DAY_US} as int))")
        rows = rows.withColumn("date", day)
    if "topic" in options.partition_by:
        rows = rows.withColumn("topic_dir", _directory_of(functions.col("topic")))
    return rows


def _directory_of(topic: Column) -> Column:
    """The topic as the name of a directory that every reader treats as text.

    A topic that is too long for a name is cut and gets a hash; one that might be parsed as a number, a date or null
    gets a mark in front.
    """
    from pyspark.sql import functions

    cut = functions.concat(
        functions.substring(topic, 1, 40), functions.lit("~"), functions.substring(functions.sha2(topic, 256), 1, 32)
    )
    name = functions.when(functions.octet_length(topic) <= _LONGEST_TOPIC_BYTES, topic).otherwise(cut)
    marked = functions.concat(functions.lit(_TEXT_MARK), name)
    return functions.when(topic.rlike(_READ_AS_OTHER_TYPE), marked).otherwise(name)


def _with_text(rows: DataFrame, column: str, options: ExportOptions, *, as_json: bool) -> DataFrame:
    from pyspark.sql import functions

    given = functions.col(column)
    is_text = functions.is_valid_utf8(given.cast("string"))
    if options.format == "jdbc":
        # PostgreSQL, for example, does not allow NUL in texts.
        is_text &= ~given.cast("string").contains("\0")
    text = functions.when(is_text, given.cast("string")).otherwise(functions.base64(given))
    encoding = functions.when(is_text, "utf-8").otherwise("base64")
    if as_json:
        parsed = functions.when(is_text, functions.try_parse_json(given.cast("string")))
        encoding = functions.when(parsed.isNotNull(), "json").otherwise(encoding)
        if options.format == "json":
            text = functions.coalesce(parsed, text.cast("variant"))
    return rows.withColumns({f"{column}_encoding": encoding, column: text})


def _text_headers() -> Column:
    """Headers with their values as text, or as base64 with a note if they are not UTF-8."""
    from pyspark.sql import functions

    is_text = "is_valid_utf8(cast(h.value as string))"
    return functions.expr(
        f"transform(headers, h -> named_struct('key', h.key, "
        f"'value', if({is_text}, cast(h.value as string), base64(h.value)), "
        f"'encoding', if({is_text}, 'utf-8', 'base64')))"
    )
