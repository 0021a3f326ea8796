"""`journal-spark export`: the command around what `spark_export.export` does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shards.format.record import Record
from spark_export.cli.main import run
from tests.spark.sealed_trees import SealedTree


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    (tmp_path / "data").mkdir()
    tree = SealedTree(tmp_path / "data")
    tree.convert("plant/1", [Record(value=b"20"), Record(value=b"21")])
    tree.convert("plant/2", [Record(value=b"30")])
    return tree


@pytest.fixture
def directory(tree: SealedTree) -> Path:
    return tree.root.parent.parent


def test_each_run_adds_what_is_new(
    spark: SparkSession, tree: SealedTree, directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    export = ["export", str(directory / "data"), str(directory / "out"), "--format", "csv", "--partition-by", "date"]
    assert run(export) == 0
    assert capfd.readouterr() == (f"{directory}/out: run 1 added 3 records of 2 shards\n", "")
    assert run(export) == 0
    assert capfd.readouterr().out == f"{directory}/out: nothing new\n"
    tree.convert("plant/2", [Record(value=b"31"), Record(value=b"32")])
    assert run([*export, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 2
    exported = spark.read.option("header", "true").csv(f"{directory}/out/*/*")
    assert sorted(row.value for row in exported.select("value").collect()) == ["20", "21", "30", "31", "32"]


def test_topics_choose_what_is_exported(
    spark: SparkSession, directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--topics", "plant/2", "--partition-by", "", "--json", "--name", "second"]
    assert run(["export", str(directory / "data"), str(directory / "out"), *arguments]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 1
    assert spark.read.parquet(f"{directory}/out/run=second-00000001").count() == 1


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--property", "user"], 2, "--property 'user' is not NAME=VALUE"),
        (["--format", "jdbc"], 1, "JDBC URL"),
        (["--partition-by", "hour"], 1, "'hour'"),
        (["--topics", "a/#/b"], 1, "a/#/b"),
    ],
)
def test_what_cannot_be_is_one_line(
    directory: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], status: int, told: str
) -> None:
    assert run(["export", str(directory / "data"), str(directory / "out"), *arguments]) == status
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert told in err
