"""``python -m benchmarks.spark_load DIRECTORY``: Spark on a data directory that is not in use; prints a JSON object.

Both ways of reading, measured after start-up, and compared row by row for random filters.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time

from pyspark.sql import DataFrame, SparkSession

from spark_export import read_sealed
from spark_export.session import end_session, make_session

WARM_UP_RUNS = 4
RUNS = 5
COUNTS = "SELECT topic, count(*), min(timestamp), max(offset)"
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
            "sealed_records_per_s": _rate(spark, count, f"{COUNTS} FROM sealed GROUP BY topic"),
            "values_records_per_s": _rate(spark, count, f"{COUNTS}, sum(length(value)) FROM sealed GROUP BY topic"),
            "source_records_per_s": _rate(spark, count, f"{COUNTS}, sum(length(value)) FROM source GROUP BY topic"),
            "differences": sum(_differences(spark, condition) for condition in _filters(count)),
        }
    finally:
        end_session(spark)
    print(json.dumps(figures))


def _one(spark: SparkSession, query: str) -> int:
    row = spark.sql(query).first()
    assert row is not None
    return int(row[0])


def _rate(spark: SparkSession, records: int, query: str) -> float:
    """Median records per second, after runs for initialisation and for Java's compiler."""
    seconds = []
    for _ in range(WARM_UP_RUNS + RUNS):
        begun_at = time.perf_counter()
        spark.sql(query).collect()
        seconds.append(time.perf_counter() - begun_at)
    return records / statistics.median(seconds[WARM_UP_RUNS:])


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
    """Rows that only one of the two returns; an empty result compares nothing and counts as one."""
    views = [_rows(spark, view, condition) for view in ("sealed", "source")]
    if views[0].isEmpty():
        return 1
    return views[0].exceptAll(views[1]).count() + views[1].exceptAll(views[0]).count()


def _rows(spark: SparkSession, view: str, condition: str) -> DataFrame:
    return spark.sql(f"SELECT {COLUMNS} FROM {view} WHERE {condition}")


if __name__ == "__main__":
    main()
