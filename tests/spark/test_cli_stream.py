"""`journal-spark stream`: the command around Spark's structured streaming."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from broker_adapter import open_adapter
from spark_export.cli.main import run


def append(data: Path, values: list[bytes]) -> None:
    async def append() -> None:
        async with open_adapter(f"embedded:{data}") as store:
            if not await store.list_shards("plant/1"):
                await store.create_shard("plant/1")
            await store.append("plant/1", values)

    trio.run(append)


def test_it_writes_what_there_is_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = [
        "stream",
        str(tmp_path / "data"),
        str(tmp_path / "out"),
        "--available-now",
        "--json",
        "--value-as",
        "text",
    ]
    append(tmp_path / "data", [b"20", b"21"])
    assert run(stream) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line)["records"] for line in out.splitlines()] == [2]
    assert err == ""
    append(tmp_path / "data", [b"22"])
    assert run(stream) == 0
    assert [json.loads(line)["records"] for line in capfd.readouterr().out.splitlines()] == [1]
    written = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(bytes(row.value) for row in written.select("value").collect()) == [b"20", b"21", b"22"]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--interval", "often"], 2, "'often' is not a duration"),
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
