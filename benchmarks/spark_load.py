"""``python -m benchmarks.spark_load DIRECTORY``: Spark over a data directory at rest; one JSON object on stdout.

Both ways of reading, timed after start-up, and compared with each other row for row on random filters.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from spark_export import read_sealed
from spark_export.session import end_session, make_session

RUNS = 3
FILTERS = 8
COLUMNS = "topic, shard, offset, timestamp, append_time, key, value, headers, tags"


def main() -> None:
    path = sys.argv[1]
    spark = make_session("journal benchmark")
    try:
        read_sealed(spark, path).createOrReplaceTempView("sealed")
        source = spark.read.format("journal").option("path", path).option("topics", "history/#")
        source.load().createOrReplaceTempView("source")
        count = _one(spark, "SELECT count(*) FROM sealed")
        figures = {
            "records": count,
            "sealed_records_per_s": _rate(count, lambda: _aggregate(spark, "sealed")),
            "source_records_per_s": _rate(count, lambda: _aggregate(spark, "source")),
            "differences": sum(_differences(spark, condition) for condition in _filters(count)),
        }
    finally:
        end_session(spark)
    print(json.dumps(figures))


def _one(spark: SparkSession, query: str) -> int:
    row = spark.sql(query).first()
    assert row is not None
    return int(row[0])


def _aggregate(spark: SparkSession, view: str) -> None:
    """Count and an aggregate that needs the values' bytes."""
    spark.sql(
        f"SELECT topic, count(*), sum(length(value)), min(timestamp), max(offset) FROM {view} GROUP BY topic"
    ).collect()


def _rate(records: int, run: Callable[[], None]) -> float:
    """Median records per second, after a run that starts what starts once."""
    run()
    seconds = []
    for _ in range(RUNS):
        begun_at = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun_at)
    return records / statistics.median(seconds)


def _filters(count: int) -> list[str]:
    """Random conditions on offset, time and topic, each with some thousands of rows."""
    chance = random.Random(20)
    found = []
    for _ in range(FILTERS):
        first = chance.randrange(count // 4)
        line = chance.randrange(4)
        kind = chance.randrange(3)
        if kind == 0:
            found.append(f"offset >= {first} AND offset < {first + 2000}")
        elif kind == 1:
            since = 1_700_000_000 + first * 200 // 1_000_000 * 4
            found.append(f"timestamp >= timestamp_seconds({since}) AND timestamp < timestamp_seconds({since + 2})")
        else:
            found.append(f"topic = 'history/line{line}/telemetry' AND offset BETWEEN {first} AND {first + 5000}")
    return found


def _differences(spark: SparkSession, condition: str) -> int:
    """Rows that one of the two finds and the other does not; an empty answer compares nothing and counts as one."""
    views = [_rows(spark, view, condition) for view in ("sealed", "source")]
    if views[0].isEmpty():
        return 1
    return views[0].exceptAll(views[1]).count() + views[1].exceptAll(views[0]).count()


def _rows(spark: SparkSession, view: str, condition: str) -> DataFrame:
    return spark.sql(f"SELECT {COLUMNS} FROM {view} WHERE {condition}")


if __name__ == "__main__":
    main()
