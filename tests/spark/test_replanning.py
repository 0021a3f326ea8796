"""Files that the server replaces between the plan of a query and its reading: the query is planned again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from shards.parquet.shared_reading import SharedReader
from spark_export import duckdb_records, shared_files
from spark_export.cli import sql
from spark_export.cli.main import run
from spark_export.errors import FilesReplacedError
from spark_export.export import ExportOptions, run_export
from spark_export.export import run as export_run
from spark_export.replanning import ATTEMPTS, replaced_file, with_present_files
from tests.spark.sealed_trees import SealedTree, values
from tests.spark.stores import places, planned


class Replacing:
    """A tree whose file is replaced after each of the first plans."""

    def __init__(self, directory: Path, times: int) -> None:
        self.tree = SealedTree(directory)
        self.file = self.tree.gather(("a", values(4)), ("b", values(5)))
        self.left = times
        self.is_writing = False

    def replace(self) -> None:
        if self.left and not self.is_writing:
            self.left -= 1
            self.is_writing = True
            before, self.file = self.file, self.tree.rewrite(self.file)
            before.unlink()
            self.is_writing = False

    def after(self, plan: Callable[..., Any]) -> Callable[..., Any]:
        """The function, after which the file is replaced."""

        def planned(*arguments: Any, **keywords: Any) -> Any:
            result = plan(*arguments, **keywords)
            self.replace()
            return result

        return planned


def test_a_query_is_planned_again_when_a_file_was_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = Replacing(tmp_path, ATTEMPTS - 1)
    monkeypatch.setattr(sql, "_frame", files.after(sql._frame))
    query = "select shard, count(*) as n from records group by shard order by shard"
    assert run(["sql", str(files.tree.root), query, "--csv"]) == 0
    assert capfd.readouterr().out == "shard,n\na,4\nb,5\n"
    assert files.left == 0


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_a_query_whose_files_are_replaced_every_time_says_what_to_do(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    engine: str,
) -> None:
    files = Replacing(tmp_path, ATTEMPTS + 1)
    monkeypatch.setattr(sql, "_frame", files.after(sql._frame))
    monkeypatch.setattr(duckdb_records, "connect", files.after(duckdb_records.connect))
    assert run(["sql", str(files.tree.root), "select topic[0], text from sealed", "--engine", engine]) == 1
    told = capfd.readouterr()
    assert told.out == ""
    assert files.left == 1
    assert f"in {ATTEMPTS} attempts: the server had replaced them; run the query again" in told.err
    assert "`conversion.delta_grace_s`" in told.err


def test_a_query_of_duckdb_is_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = Replacing(tmp_path, ATTEMPTS - 1)
    monkeypatch.setattr(duckdb_records, "connect", files.after(duckdb_records.connect))
    query = "select count(*) as n from sealed"
    assert run(["sql", str(files.tree.root), query, "--engine", "duckdb", "--csv"]) == 0
    assert capfd.readouterr().out == "n\n9\n"


def test_a_missing_file_of_the_query_itself_is_reported_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = Replacing(tmp_path, 0)
    plans: list[DataFrame] = []
    frame = sql._frame
    monkeypatch.setattr(sql, "_frame", lambda *given, **more: plans.append(frame(*given, **more)) or plans[-1])
    query = f"select * from records, parquet.`{tmp_path}/none.parquet`"
    assert run(["sql", str(files.tree.root), query]) == 1
    assert "none.parquet" in capfd.readouterr().err
    assert len(plans) == 1


def test_a_run_of_an_export_is_planned_again_and_adds_each_record_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Replacing(tmp_path, ATTEMPTS - 1)
    monkeypatch.setattr(export_run, "write_aside", _before(files, export_run.write_aside))
    target = tmp_path / "out"
    options = ExportOptions(target=str(target), format="parquet", path=str(files.tree.root))
    result = run_export(spark, options)
    assert (result.run, result.records) == (1, 9)
    rows = spark.read.parquet(str(target)).select("shard", "offset").collect()
    assert sorted((row.shard, row.offset) for row in rows) == [*places("a", range(4)), *places("b", range(5))]
    assert [path.name for path in target.iterdir() if path.name.startswith("_")] == []
    assert run_export(spark, options).run is None


def _before(files: Replacing, write: Callable[..., Any]) -> Callable[..., Any]:
    def writing(*arguments: Any, **keywords: Any) -> Any:
        files.replace()
        return write(*arguments, **keywords)

    return writing


def test_the_plan_of_the_data_source_starts_again_when_a_file_goes_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Replacing(tmp_path, 2)

    class Reader(SharedReader):
        def __init__(self, *arguments: Any) -> None:
            files.replace()
            super().__init__(*arguments)

    monkeypatch.setattr(shared_files, "SharedReader", Reader)
    found = planned({"path": files.tree.root})
    assert sorted(found.places()) == [*places("a", range(4)), *places("b", range(5))]
    files.left = 10
    with pytest.raises(FilesReplacedError, match=r"in 3 attempts; try again, or give the data directory"):
        planned({"path": files.tree.root})


def test_another_error_is_raised_at_once() -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise ValueError("[PATH_NOT_FOUND] Path does not exist: /lake/other.parquet")

    with pytest.raises(ValueError, match=r"other\.parquet"):
        with_present_files(work)
    assert len(calls) == 1
    assert replaced_file(OSError("[Errno 28] No space left")) is None
