"""The columns of a query: those of a record, and what people ask of IoT history: JSON, text, the day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS: Final = (
    "topic",
    "shard",
    "offset",
    "timestamp",
    "append_time",
    "date",
    "key",
    "value",
    "text",
    "payload",
    "headers",
    "tags",
)
_DAY_US: Final = 86_400_000_000


def with_query_columns(records: DataFrame) -> DataFrame:
    """The records with the columns of a query.

    ``payload`` has the bytes; ``text`` is null if they are not UTF-8; ``value`` is the payload as VARIANT, null if it
    is not JSON. ``date`` is the UTC day of the append. Spark computes only what a query uses, and filters on the other
    columns are still answered from statistics.

    Args:
        records: Records with the columns of the data source; a column ``date`` is taken as it is.
    """
    from pyspark.sql import functions

    text = functions.expr("try_validate_utf8(cast(value as string))")
    made = {
        "value": functions.try_parse_json(text),
        "text": text,
        "payload": functions.col("value"),
    }
    if "date" not in records.columns:
        made["date"] = functions.expr(_day(records.sparkSession.conf.get("spark.sql.session.timeZone")))
    return records.select(*(made[name].alias(name) if name in made else name for name in COLUMNS))


def _day(zone: str | None) -> str:
    # Spark turns a comparison of a cast into one of the time, which it finds in statistics. The cast is made in the
    # zone of the session; days since the epoch are right in every zone.
    if zone in ("UTC", "Etc/UTC", "Z"):
        return "cast(append_time as date)"
    return f"date_from_unix_date(cast(unix_micros(append_time) div {_DAY_US} as int))"
