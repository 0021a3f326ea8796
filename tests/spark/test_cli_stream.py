"""`journal-spark stream`: the command around Spark's structured streaming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_export.cli.main import run
from tests.spark.sealed_tree import write_segment


def test_it_writes_what_there_is_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = ["stream", str(tmp_path / "data"), str(tmp_path / "out"), "--once", "--json", "--value-as", "text"]
    write_segment(tmp_path / "data", "plant/1", 1, 0, [b"20", b"21"])
    assert run(stream) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["records"] for line in out.splitlines()] == [2]
    assert err == ""
    write_segment(tmp_path / "data", "plant/1", 1, 2, [b"22"])
    assert run(stream) == 0
    assert [json.loads(line)["records"] for line in capfd.readouterr().out.splitlines()] == [1]
    written = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.value for row in written.select("value").collect()) == ["20", "21", "22"]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--every", "often"], 2, "'often' is not a duration"),
        (["--max-records", "0"], 2, "--max-records"),
        (["--topics", "a/#/b"], 1, "a/#/b"),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], status: int, told: str
) -> None:
    assert run(["stream", str(tmp_path / "data"), str(tmp_path / "out"), *arguments]) == status
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert told in err
