"""Exports to real databases: Derby, which comes with Spark, and PostgreSQL where it and its driver are installed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shards.record import Record
from spark_export.export import ExportConflictError, ExportError, ExportOptions, ExportProgress, run_export
from tests.spark.exporting_process import kill_export_at
from tests.spark.sealed_trees import NOW_US, SealedTree, values


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    return SealedTree(tmp_path)


@pytest.fixture
def url(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A Derby database; left by this process's Java at the end, for only one may have it open."""
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    yield f"jdbc:derby:{tmp_path}/database;create=true"
    leave(spark, tmp_path)


def leave(spark: SparkSession, directory: Path) -> None:
    # Derby says with an exception that it did.
    with pytest.raises(Exception, match="08006"):
        spark._jvm.java.sql.DriverManager.getConnection(f"jdbc:derby:{directory}/database;shutdown=true")


def rows(spark: SparkSession, url: str, table: str = "records") -> list[tuple[str, int]]:
    frame = spark.read.format("jdbc").options(url=url, dbtable=table).load()
    return sorted((row.shard, row.offset) for row in frame.select("shard", "offset").collect())


def tables(spark: SparkSession, url: str) -> set[str]:
    query = "select tablename from sys.systables where tabletype = 'T'"
    return {row[0].lower() for row in spark.read.format("jdbc").options(url=url, query=query).load().collect()}


def test_each_run_adds_what_is_new_to_a_table(spark: SparkSession, tree: SealedTree, url: str) -> None:
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")
    tree.seal(
        "plant/ü",
        [
            Record(value="größe\0".encode(), key=b"k", timestamp_us=NOW_US + 123_456, tags=("a",)),
            Record(value="größe".encode(), headers=(("h", b"\xff"),), timestamp_us=NOW_US),
        ],
    )
    result = run_export(spark, options)
    assert (result.run, result.records) == (1, 2)
    assert "create=true" not in result.target
    assert run_export(spark, options).run is None
    tree.seal("plant/ü", values(3, first=2))
    assert run_export(spark, options).records == 3
    assert rows(spark, url) == [("plant/ü", offset) for offset in range(5)]
    frame = spark.read.format("jdbc").options(url=url, dbtable="records", preferTimestampNTZ=True).load()
    first, second = sorted(frame.collect(), key=lambda row: row.offset)[:2]
    assert str(first.timestamp) == "2026-03-01 12:00:00.123456"
    assert (first.value, first.value_encoding, first.key) == ("Z3LDtsOfZQA=", "base64", "k")
    assert (second.value, second.value_encoding) == ("größe", "utf-8")
    assert json.loads(second.headers) == [{"key": "h", "value": "/w==", "encoding": "base64"}]
    assert json.loads(first.tags) == ["a"]
    assert tables(spark, url) == {"records", "journal_exports"}


def test_of_two_runs_at_a_time_one_is_added(spark: SparkSession, tree: SealedTree, url: str) -> None:
    tree.seal("plant/a", values(30))
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")

    def overtake(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            run_export(spark, options)

    with pytest.raises(ExportConflictError, match=r"run 1 .*table records of jdbc:derby:.*another process"):
        run_export(spark, options, progress=overtake)
    assert rows(spark, url) == [("plant/a", offset) for offset in range(30)]
    assert tables(spark, url) == {"records", "journal_exports"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", ["publishing", pytest.param("published", marks=pytest.mark.long)])
def test_a_killed_export_is_made_good_by_the_next(
    spark: SparkSession, tree: SealedTree, url: str, tmp_path: Path, step: str
) -> None:
    given = {"path": str(tree.root), "target": url, "format": "jdbc", "table": "records"}
    tree.seal("plant/a", values(40))
    run_export(spark, ExportOptions(**given))
    leave(spark, tmp_path)
    tree.seal("plant/a", values(30, first=40))
    kill_export_at(step, given)
    assert rows(spark, url) == [("plant/a", offset) for offset in range(70 if step == "published" else 40)]
    run_export(spark, ExportOptions(**given))
    assert rows(spark, url) == [("plant/a", offset) for offset in range(70)]
    assert tables(spark, url) == {"records", "journal_exports"}


def test_a_database_that_cannot_be_reached_is_named_without_its_parameters(
    spark: SparkSession, tree: SealedTree
) -> None:
    tree.seal("plant/a", values(1))
    options = ExportOptions(
        path=str(tree.root), target="jdbc:derby:/no/such/place;password=secret", format="jdbc", table="records"
    )
    with pytest.raises(ExportError, match="table records of jdbc:derby:/no/such/place: ") as caught:
        run_export(spark, options)
    assert "secret" not in str(caught.value)


@pytest.mark.skipif("JOURNAL_TEST_POSTGRES" not in os.environ, reason="JOURNAL_TEST_POSTGRES holds no JDBC URL")
def test_postgresql_takes_what_derby_takes(spark: SparkSession, tree: SealedTree) -> None:
    url = os.environ["JOURNAL_TEST_POSTGRES"]
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records", name=f"test_{os.getpid()}")
    tree.seal("plant/ü", [Record(value=b"a\0b"), *values(30)])

    def overtake(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            run_export(spark, options)

    with pytest.raises(ExportConflictError):
        run_export(spark, options, progress=overtake)
    tree.seal("plant/ü", values(3))
    assert run_export(spark, options).records == 3
    assert len(rows(spark, url)) == 34
