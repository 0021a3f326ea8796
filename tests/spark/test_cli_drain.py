"""`journal-spark drain`: the command around what `spark_export.export.drain` does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from shards.format.record import Record
from spark_export.cli.main import run
from tests.faults.processes import running
from tests.spark.queues import driven, fill

QUEUE = "to-history"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("store") / "data") as process:
        yield f"127.0.0.1:{process.ports['tcp']}"


def test_each_run_takes_what_waits(
    spark: SparkSession,
    server: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drain = ["drain", "--queue", QUEUE, str(tmp_path / "out"), "--to", "csv", "--partition-by", ""]
    fill(f"journal://{server}", QUEUE, [Record(b"1"), Record(b"2"), Record(b"3", expires_at_us=1)])
    assert run([*drain, "--server", server]) == 0
    told = f"{tmp_path}/out: run 1 added 2 records of {QUEUE}\n"
    gone = f"{QUEUE}: 1 others had expired, were dropped for newer ones, or were lost\n"
    assert capfd.readouterr() == (told + gone, "")
    monkeypatch.setenv("JOURNAL_SERVER", server)
    assert run(drain) == 0
    assert capfd.readouterr().out == f"{tmp_path}/out: no records wait in {QUEUE}\n"
    fill(f"journal://{server}", QUEUE, [Record(b"4")])
    assert run([*drain, "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["run"], result["records"], result["next_offset"]) == (2, 1, 4)
    written = spark.read.option("header", "true").csv(f"{tmp_path}/out/run=to_history-*")
    assert sorted(row.value for row in written.select("value").collect()) == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--queue", "nowhere"], 1, "there is no cache queue 'nowhere'"),
        (["--queue", "a/b"], 1, "queue name 'a/b'"),
        (["--queue", QUEUE, "--wait", "soon"], 2, "'soon'"),
        (["--queue", QUEUE, "--property", "user"], 2, "--property 'user' is not NAME=VALUE"),
        (["--queue", QUEUE, "--to", "jdbc"], 1, "JDBC URL"),
        (["--queue", QUEUE, "--server", "127.0.0.1:1"], 1, "no journal server answers"),
        ([], 2, "--queue"),
    ],
)
def test_what_cannot_be_is_one_line(
    server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], status: int, told: str
) -> None:
    fill(f"journal://{server}", QUEUE, [])
    where = [] if "--server" in arguments else ["--server", server]
    assert run(["drain", str(tmp_path / "out"), *where, *arguments]) == status
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert told in err


def test_without_a_server_it_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_SERVER", raising=False)
    assert run(["drain", "/data", str(tmp_path / "out"), "--queue", QUEUE]) == 2
    assert "--server HOST:PORT" in capfd.readouterr().err


def test_who_does_not_stand_aside_is_named(
    spark: SparkSession, server: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(f"journal://{server}", "busy", [Record(b"1")])
    with driven(f"journal://{server}", "busy", ask=True):
        assert run(["drain", "--queue", "busy", str(tmp_path / "out"), "--server", server, "--wait", "300ms"]) == 1
    assert "is driven by bridge, which did not give way within 0.3 s" in capfd.readouterr().err
