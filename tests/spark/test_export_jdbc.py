"""Exports to real databases: Derby, which comes with Spark, and PostgreSQL where it and its driver are installed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shards.format.record import Record
from spark_export.export import ExportConflictError, ExportError, ExportOptions, ExportProgress, run_export
from spark_export.export.jdbc_target import driver_of
from tests.spark.derby import add_attempts, run_table, statement, tables
from tests.spark.exporting_process import export_apart, kill_export_at
from tests.spark.postgresql import driver_path, empty_database, losing_commits, url_of
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


def test_each_run_adds_what_is_new_to_a_table(spark: SparkSession, tree: SealedTree, url: str) -> None:
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")
    tree.convert(
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
    tree.convert("plant/ü", values(3, first=2))
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
    tree.convert("plant/a", values(30))
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")

    def overtake(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            run_export(spark, options)

    with pytest.raises(ExportConflictError, match=r"run 1 .*table records of jdbc:derby:.*another process"):
        run_export(spark, options, progress=overtake)
    assert rows(spark, url) == [("plant/a", offset) for offset in range(30)]
    assert tables(spark, url) == {"records", "journal_exports"}


def test_what_a_run_that_ended_after_publishing_left_is_removed_by_one_that_finds_no_records(
    spark: SparkSession, tree: SealedTree, url: str
) -> None:
    tree.convert("plant/a", values(3))
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")

    def end(progress: ExportProgress) -> None:
        if progress.step == "published":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_export(spark, options, progress=end)
    assert len(tables(spark, url)) == 3
    assert run_export(spark, options).run is None
    assert tables(spark, url) == {"records", "journal_exports"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", ["publishing", pytest.param("published", marks=pytest.mark.long)])
def test_a_killed_export_is_made_good_by_the_next(
    spark: SparkSession, tree: SealedTree, url: str, tmp_path: Path, step: str
) -> None:
    given = {"path": str(tree.root), "target": url, "format": "jdbc", "table": "records"}
    tree.convert("plant/a", values(40))
    run_export(spark, ExportOptions(**given))
    leave(spark, tmp_path)
    tree.convert("plant/a", values(30, first=40))
    kill_export_at(step, given)
    assert rows(spark, url) == [("plant/a", offset) for offset in range(70 if step == "published" else 40)]
    run_export(spark, ExportOptions(**given))
    assert rows(spark, url) == [("plant/a", offset) for offset in range(70)]
    assert tables(spark, url) == {"records", "journal_exports"}


def test_a_database_that_cannot_be_reached_is_named_without_its_parameters(
    spark: SparkSession, tree: SealedTree
) -> None:
    tree.convert("plant/a", values(1))
    options = ExportOptions(
        path=str(tree.root), target="jdbc:derby:/no/such/place;password=secret", format="jdbc", table="records"
    )
    with pytest.raises(ExportError, match="table records of jdbc:derby:/no/such/place: ") as caught:
        run_export(spark, options)
    assert "secret" not in str(caught.value)


def test_postgresql_takes_what_derby_takes(spark: SparkSession, tree: SealedTree) -> None:
    url = url_of(*empty_database())
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")
    tree.convert("plant/ü", [Record(value=b"a\0b"), *values(30)])

    def overtake(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            run_export(spark, options)

    with pytest.raises(ExportConflictError):
        run_export(spark, options, progress=overtake)
    tree.convert("plant/ü", values(3))
    assert run_export(spark, options).records == 3
    assert len(rows(spark, url)) == 34


# Tasks that are tried again


def test_rows_of_a_task_that_was_tried_again_came_twice(spark: SparkSession, tree: SealedTree, url: str) -> None:
    """Both attempts had committed, for the answer to the first COMMIT was lost."""
    tree.convert("plant/a", values(30))
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")

    def try_again(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            add_attempts(spark, url)

    assert run_export(spark, options, progress=try_again).records == 30
    assert rows(spark, url) == [("plant/a", offset) for offset in range(30)]
    assert tables(spark, url) == {"records", "journal_exports"}


@pytest.mark.parametrize("sql", ["INSERT INTO {0} SELECT * FROM {0}", 'DELETE FROM {0} WHERE "offset" < 7'])
def test_a_run_with_more_or_fewer_rows_than_its_tasks_wrote_was_published(
    spark: SparkSession, tree: SealedTree, url: str, sql: str
) -> None:
    """Nothing compared the counts."""
    tree.convert("plant/a", values(30))
    options = ExportOptions(path=str(tree.root), target=url, format="jdbc", table="records")

    def change(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            statement(spark, url, sql.format(run_table(spark, url)))

    with pytest.raises(ExportError, match=r"run 1 of export 'default' wrote 30 rows .* holds (60|23) of theirs"):
        run_export(spark, options, progress=change)
    assert rows(spark, url) == []
    assert run_export(spark, options).records == 30
    assert rows(spark, url) == [("plant/a", offset) for offset in range(30)]


def test_the_class_of_a_driver_is_known_by_the_url_unless_it_is_given() -> None:
    """With the archive alone, as the documents said, every export failed: "No suitable driver"."""
    assert driver_of("jdbc:postgresql://db/plant") == {"driver": "org.postgresql.Driver"}
    assert driver_of("jdbc:sqlserver://db;encrypt=true") == {"driver": "com.microsoft.sqlserver.jdbc.SQLServerDriver"}
    assert driver_of("jdbc:other://db") == driver_of("nonsense") == {}


def test_a_missing_driver_is_named_with_the_way_out(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("plant/a", values(1))
    options = ExportOptions(
        path=str(tree.root), target="jdbc:mysql://127.0.0.1:1/plant", format="jdbc", table="records"
    )
    with pytest.raises(
        ExportError, match=r"com\.mysql\.cj\.jdbc\.Driver; give Spark the driver's archive \(--conf spark\.jars"
    ):
        run_export(spark, options)


@pytest.mark.timeout(300)
def test_a_task_whose_commit_was_not_answered_wrote_its_rows_twice(spark: SparkSession, tree: SealedTree) -> None:
    """2,000 rows were in the table of a run that reported 1,000."""
    tree.convert("plant/a", values(1_000))
    database, port = empty_database()
    with losing_commits(port, b"INSERT INTO journal_run_") as lossy_port:
        given = {
            "path": str(tree.root),
            "target": url_of(database, lossy_port),
            "format": "jdbc",
            "table": "records",
        }
        result = export_apart(given, cores="2,4", jars=driver_path())
    assert (result.get("run"), result.get("records")) == (1, 1_000), result
    assert rows(spark, url_of(database, port)) == [("plant/a", offset) for offset in range(1_000)]


def test_a_run_that_was_published_was_called_failed_when_the_answer_was_lost(
    spark: SparkSession, tree: SealedTree
) -> None:
    tree.convert("plant/a", values(100))
    database, port = empty_database()
    with losing_commits(port, b"UPDATE journal_exports") as lossy_port:
        options = ExportOptions(
            path=str(tree.root), target=url_of(database, lossy_port), format="jdbc", table="records"
        )
        result = run_export(spark, options)
        assert (result.run, result.records) == (1, 100)
        assert run_export(spark, options).run is None
    assert rows(spark, url_of(database, port)) == [("plant/a", offset) for offset in range(100)]
