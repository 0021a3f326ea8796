"""The columns of a query: those of a record, and what people ask of IoT history: JSON, text, the day."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spark_export.sealed_scan import with_date

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
    dated = records if "date" in records.columns else with_date(records)
    return dated.select(*(made[name].alias(name) if name in made else name for name in COLUMNS))
