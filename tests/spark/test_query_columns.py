"""The columns of a query over records: their values, and that Spark skips what a query does not ask for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from shards.format.record import Record
from spark_export import read_sealed
from spark_export.query_columns import COLUMNS, with_query_columns
from tests.spark.sealed_trees import NOW_US, SealedTree
from tests.spark.test_sealed_table import plan_of, scanned


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    return SealedTree(tmp_path)


@pytest.fixture
def elsewhere(spark: SparkSession) -> Iterator[None]:
    """A session in a zone where the day begins earlier than in UTC."""
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def records_of(spark: SparkSession, tree: SealedTree) -> DataFrame:
    return with_query_columns(read_sealed(spark, str(tree.root)))


def pushed(frame: DataFrame, what: str) -> list[str]:
    """What each scan of a plan got of one kind of filters."""
    return [line for line in plan_of(frame).splitlines() if line.startswith(what)]


def test_values_are_json_text_and_bytes(spark: SparkSession, tree: SealedTree) -> None:
    payloads = [b'{"t": 21.5, "unit": "C"}', b"22", b"{broken", b'{"t": "\xff"}', b"", b"null", "grün".encode()]
    tree.convert("plant/1", [Record(value=value) for value in payloads])
    frame = records_of(spark, tree)
    assert tuple(frame.columns) == COLUMNS
    rows = frame.selectExpr(
        "text", "payload", "to_json(value) as json", "try_variant_get(value, '$.t', 'double') as t"
    ).collect()
    assert [bytes(row.payload) for row in rows] == payloads
    assert [row.text for row in rows] == [
        '{"t": 21.5, "unit": "C"}', "22", "{broken", None, "", "null", "grün",
    ]  # fmt: skip
    assert [row.json for row in rows] == ['{"t":21.5,"unit":"C"}', "22", None, None, None, "null", None]
    assert [row.t for row in rows] == [21.5, None, None, None, None, None, None]


def test_the_day_is_that_of_the_append_in_utc(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("plant/1", [Record(value=b"1", timestamp_us=1)])
    assert [row.date for row in records_of(spark, tree).select("date").collect()] == [date(2026, 3, 1)]


def test_the_day_is_the_same_in_a_session_of_another_zone(
    spark: SparkSession, tree: SealedTree, elsewhere: None
) -> None:
    """There it is the second of March."""
    tree.convert("plant/1", [Record(value=b"1")])
    frame = records_of(spark, tree)
    assert frame.where("date = '2026-03-01'").count() == 1
    assert frame.selectExpr("cast(append_time as date)").collect()[0][0] == date(2026, 3, 2)


def test_filters_on_topic_shard_offset_times_and_date_reach_the_files(spark: SparkSession, tree: SealedTree) -> None:
    for name in ("plant/1", "plant/2", "plant/3"):
        tree.convert(name, [Record(value=b"1", timestamp_us=NOW_US)])
    frame = records_of(spark, tree)
    assert any("EqualTo(shard,plant/1)" in line for line in pushed(frame.where("shard = 'plant/1'"), "PushedFilters"))
    assert any("EqualTo(topic,plant/1)" in line for line in pushed(frame.where("topic = 'plant/1'"), "PushedFilters"))
    for condition, found in {
        "offset >= 5": "GreaterThanOrEqual(offset,5)",
        "timestamp < '2026-03-01'": "LessThan(timestamp,2026-03-01",
        "append_time < '2026-03-01'": "LessThan(append_time,2026-03-01",
    }.items():
        lines = pushed(frame.where(condition), "PushedFilters")
        assert lines
        assert all(found in line for line in lines), (condition, lines)
    for condition in ("date >= '2026-03-02'", "date = '2026-03-02'", "date < '2026-03-01'"):
        lines = pushed(frame.where(condition), "PartitionFilters")
        assert lines
        assert all("date" in line for line in lines), (condition, lines)
        assert scanned(spark, frame.where(condition), "numFiles") == 0


def test_row_groups_of_other_days_are_not_read(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("plant/1", [Record(value=b"1")])
    frame = records_of(spark, tree).where("date >= '2026-03-02'").select("payload")
    assert scanned(spark, frame, "numOutputRows") == 0
    assert scanned(spark, records_of(spark, tree).where("date >= '2026-03-01'").select("payload"), "numOutputRows") == 1


def test_json_is_not_parsed_for_a_query_that_does_not_use_it(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("plant/1", [Record(value=b"1")])
    assert "parse_json" not in plan_of(records_of(spark, tree).groupBy("topic").count()).lower()
    used = records_of(spark, tree).selectExpr("timestamp")
    assert used.collect()[0][0] > datetime(2026, 1, 1)  # noqa: DTZ001 - Spark's rows have no zone
