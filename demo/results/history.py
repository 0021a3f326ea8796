"""Figures of Spark about the sealed segments, and the expected ones: count, mean and p95 of one metric per topic.

The expected ones are from records read back from the server before conversion: all that were written in file mode.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from demo.telemetry import ROOT, SOURCES

P95 = 0.95

_METRICS = " ".join(f"WHEN '{source.topic}' THEN '{source.metric}'" for source in SOURCES)
QUERY = f"""
SELECT topic, metric, count(*) AS records, avg(number) AS mean, percentile(number, {P95}) AS p95
FROM (SELECT topic, metric, CAST(get_json_object(CAST(value AS STRING), concat('$.', metric)) AS DOUBLE) AS number
      FROM (SELECT topic, value, CASE element_at(split(topic, '/'), -1) {_METRICS} END AS metric
            FROM sealed WHERE topic LIKE '{ROOT}/%'))
GROUP BY topic, metric
ORDER BY topic
"""


@attrs.frozen(slots=True)
class Figures:
    """One topic's metric. ``mean`` and ``p95`` are None when no record has a number for it."""

    topic: str
    metric: str
    records: int
    mean: float | None
    p95: float | None

    def agrees_with(self, other: Figures) -> bool:
        """Whether both are equal; sums of floats may differ in their last digits."""
        same = (self.topic, self.metric, self.records) == (other.topic, other.metric, other.records)
        return same and _close(self.mean, other.mean) and _close(self.p95, other.p95)


@attrs.frozen(slots=True, kw_only=True)
class History:
    """The last part of a run.

    Attributes:
        found: Figures of Spark.
        expected: Figures of the records that were read back.
        sealed_files: Number of Parquet files that were read.
        sealed_bytes: Their size.
        conversion_s: From the request to the last file.
        session_s: The start of Java and Spark.
        query_s: The query without the start.
    """

    found: Sequence[Figures]
    expected: Sequence[Figures]
    sealed_files: int
    sealed_bytes: int
    conversion_s: float
    session_s: float
    query_s: float

    @property
    def broken(self) -> list[str]:
        """Differences between Spark and the server, a line each."""
        found = {figures.topic: figures for figures in self.found}
        expected = {figures.topic: figures for figures in self.expected}
        return [
            f"{topic}: Spark finds {_told(found.get(topic))} in the sealed segments, "
            f"written to files were {_told(expected.get(topic))}"
            for topic in sorted({*found, *expected})
            if topic not in found or topic not in expected or not found[topic].agrees_with(expected[topic])
        ]


def expected_figures(in_files: Mapping[str, Sequence[float | None]]) -> list[Figures]:
    """The expected figures of the sealed segments, from the metric of each record written to files, by topic."""
    return [_figures(topic, numbers) for topic, numbers in sorted(in_files.items()) if numbers]


def _figures(topic: str, numbers: Sequence[float | None]) -> Figures:
    metric = next(source.metric for source in SOURCES if source.topic == topic.rsplit("/", 1)[-1])
    known = sorted(number for number in numbers if number is not None)
    if not known:
        return Figures(topic, metric, len(numbers), None, None)
    return Figures(topic, metric, len(numbers), math.fsum(known) / len(known), _percentile(known))


def _percentile(ordered: Sequence[float]) -> float:
    """The exact percentile as SQL's `percentile` defines it: interpolated linearly between two values."""
    place = P95 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def query_sealed(data: Path) -> tuple[list[Figures], float, float]:
    """Run the query over the sealed segments of a data directory; blocks for seconds.

    Returns:
        The figures, seconds for the start of Spark, seconds for the query.
    """
    from spark_export import read_sealed
    from spark_export.session import end_session, make_session

    begun_at = time.perf_counter()
    spark = make_session("journal demo")
    try:
        started_at = time.perf_counter()
        read_sealed(spark, str(data)).createOrReplaceTempView("sealed")
        rows = spark.sql(QUERY).collect()
        return (
            [Figures(row["topic"], row["metric"], row["records"], row["mean"], row["p95"]) for row in rows],
            started_at - begun_at,
            time.perf_counter() - started_at,
        )
    finally:
        end_session(spark)


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def _told(figures: Figures | None) -> str:
    if figures is None:
        return "nothing"
    return f"{figures.records:,} records, mean {figures.mean}, p95 {figures.p95} of {figures.metric}"
