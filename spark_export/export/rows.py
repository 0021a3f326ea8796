"""How a record looks in an export: times in UTC, bytes as the format can hold them, and the directories it goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_export.export.options import ExportOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DIRECTORY_COLUMNS: Final = {"date": "date", "topic": "topic_dir"}
"""By what `partition_by` says: the column that Spark makes directories of."""

_DAY_US: Final = 86_400_000_000
_LONGEST_TOPIC_BYTES: Final = 80
"""A topic of so many bytes fits a directory's name (255 bytes) even if each byte has to be escaped."""
_READ_AS_OTHER_TYPE: Final = (
    r"(?i)\A([\s\p{Z}\p{Nd}\-.~]|(__hive_default_partition__|nan|inf|infinity|null|none|true|false|epoch)[\s\p{Z}]*\z)"
)
"""Topics that some reader takes for a number, a date, a truth value or null when they are the name of a directory.

Spark, DuckDB, Polars and Arrow guess the type of such a column from all its names. This matches more than each of them
takes: whatever begins with a digit of any script, a minus, a point or a space. What begins with the mark itself matches
too, so that two topics never get the same name.
"""
_TEXT_MARK: Final = "~"


def shaped(frame: DataFrame, options: ExportOptions) -> DataFrame:
    """The records as the columns of an export."""
    from pyspark.sql import functions

    columns = ["topic", "shard", "offset", "timestamp", "append_time"]
    rows = frame
    if options.format == "jdbc":
        # Without a zone: a driver would move a time with one to the zone that the JVM happens to be in.
        for column in ("timestamp", "append_time"):
            rows = rows.withColumn(
                column, functions.expr(f"timestampadd(MICROSECOND, unix_micros({column}), timestamp_ntz'1970-01-01')")
            )
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


def gathered(rows: DataFrame, options: ExportOptions) -> DataFrame:
    """The rows with the columns that become directories, and gathered by these so that each gets few files."""
    from pyspark.sql import functions

    rows = add_directories(rows, options)
    if options.partition_by:
        columns = (functions.col(DIRECTORY_COLUMNS[one]) for one in options.partition_by)
        rows = rows.hint("rebalance", *columns)
    return rows


def ordered(rows: DataFrame, options: ExportOptions) -> DataFrame:
    """The rows of each file in the order of shards and offsets."""
    return rows.sortWithinPartitions(*(DIRECTORY_COLUMNS[one] for one in options.partition_by), "shard", "offset")


def add_directories(rows: DataFrame, options: ExportOptions) -> DataFrame:
    """The rows with the columns that become directories."""
    from pyspark.sql import functions

    if "date" in options.partition_by:
        # In whole days since the epoch, whatever zone the session is in.
        day = functions.expr(f"date_from_unix_date(cast(unix_micros(timestamp) div {_DAY_US} as int))")
        rows = rows.withColumn("date", day)
    if "topic" in options.partition_by:
        rows = rows.withColumn("topic_dir", _directory_of(functions.col("topic")))
    return rows


def _directory_of(topic: Column) -> Column:
    """The topic as the name of a directory that every reader takes for text.

    Of a topic that is too long for such a name it is the beginning and a hash; one that would be read as a number, a
    date or null has a mark in front.
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
        # PostgreSQL for one has no texts with a NUL.
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
    """Headers with their values as text: base64, and said so, where they are no UTF-8."""
    from pyspark.sql import functions

    is_text = "is_valid_utf8(cast(h.value as string))"
    return functions.expr(
        f"transform(headers, h -> named_struct('key', h.key, "
        f"'value', if({is_text}, cast(h.value as string), base64(h.value)), "
        f"'encoding', if({is_text}, 'utf-8', 'base64')))"
    )
