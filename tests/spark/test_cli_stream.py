"""`journal-spark stream`: what it writes, what it reports, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from spark_export.cli.main import run
from spark_export.stream_export import MicroBatch
from tests.spark.sealed_trees import SealedTree, values

PATIENCE_S = 120


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    tree = SealedTree(tmp_path)
    tree.convert("plant/a", values(4))
    tree.convert("plant/b", values(2))
    return tree


@pytest.mark.slow("runs Spark")
def test_each_run_takes_what_is_there(
    spark: SparkSession, tree: SealedTree, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stream = ["stream", str(tree.root), str(tmp_path / "out"), "--to", "csv", "--partition-by", "topic"]
    assert run([*stream, "--available-now", "--max-records", "5", "--json"]) == 0
    batches = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(batch["batch"], batch["records"], batch["behind"]) for batch in batches] == [(0, 5, 1), (1, 1, 0)]
    tree.convert("plant/b", values(1, first=2))
    assert run([*stream, "--available-now"]) == 0
    told = capfd.readouterr().out
    assert told.startswith("batch 2: 1 record in ")
    assert told.endswith("up to date\n")
    rows = spark.read.option("header", "true").option("escape", '"').csv(str(tmp_path / "out")).collect()
    assert sorted((row.topic_dir, row.value) for row in rows) == [
        *(("plant/a", f'{{"n": {n}}}') for n in range(4)),
        *(("plant/b", f'{{"n": {n}}}') for n in range(3)),
    ]


def test_the_console_shows_the_records(
    spark: SparkSession, tree: SealedTree, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["stream", str(tree.root), "--to", "console", "--topics", "plant/b", "--available-now"]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_all_that_was_reported_in_the_files(
    spark: SparkSession, tree: SealedTree, tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    committed = tmp_path / "checkpoint" / "commits" / "0"
    over = threading.Event()

    def interrupt() -> None:
        for _ in range(PATIENCE_S * 20):
            if committed.exists() or over.wait(0.05):
                break
        os.kill(os.getpid(), number)

    handler = signal.getsignal(number)
    watcher = threading.Thread(target=interrupt)
    watcher.start()
    try:
        target = str(tmp_path / "out")
        assert run(["stream", str(tree.root), target, "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    finally:
        over.set()
        watcher.join()
    assert signal.getsignal(number) is handler
    assert "stopped; the same command continues from here" in capfd.readouterr().err
    assert spark.read.parquet(target).count() == 6


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ([], 2, "name the directory for the parquet files"),
        (["out", "--to", "console"], 2, "--to console needs no target"),
        (["out", "--available-now", "--interval", "1s"], 2, "give one"),
        (["out", "--interval", "soon"], 2, "'soon' is not a duration"),
        (["out", "--start", "tomorrow"], 1, "option 'startingOffsets' is 'tomorrow'"),
        (["out", "--partition-by", "hour"], 1, "'hour'"),
    ],
)
def test_what_cannot_be_is_one_line(
    spark: SparkSession,
    tree: SealedTree,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    told: str,
) -> None:
    assert run(["stream", str(tree.root), *arguments]) == status
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert told in err


def test_a_micro_batch_that_was_planned_before_a_restart_does_not_say_what_is_left() -> None:
    source = {"description": "", "startOffset": "null", "endOffset": '{"version": 1, "shards": {}}', "numInputRows": 2}
    found = StreamingQueryProgress.fromJson(
        {
            "id": str(UUID(int=1)),
            "runId": str(UUID(int=2)),
            "name": None,
            "timestamp": "",
            "batchId": 7,
            "batchDuration": 300,
            "stateOperators": [],
            "numInputRows": 2,
            "sources": [source | {"latestOffset": "null", "inputRowsPerSecond": 1, "processedRowsPerSecond": 1}],
            "sink": {"description": "", "numOutputRows": 2},
            "observedMetrics": {},
        }
    )
    assert MicroBatch.of(found) == MicroBatch(7, 2, 300, None)
