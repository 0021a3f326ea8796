"""What is not sealed, if it is little, is read by the driver: no Python processes of Spark's for a short query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_export import driver_rows
from spark_export.errors import UnreadableError
from spark_export.history import Origin, take_history
from spark_export.snapshot import Store
from tests.spark.streams import append


def test_a_short_query_reads_the_same_records_without_a_python_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 24 s for counting 36,000 records, ten were for starting Python processes.

    It takes some seconds, for its other half starts them.
    """
    data = tmp_path / "data"
    append(data, a=[b"1", b"\xff", b""], b=[b"%d" % number for number in range(100)], c=[])
    history = take_history(spark, Origin(str(data)))
    few = history.read(spark, reads_few_at_once=True)
    assert "BatchScan" not in few._jdf.queryExecution().toString()
    monkeypatch.setattr(driver_rows, "MOST_BYTES", 0)
    by_source = history.read(spark, reads_few_at_once=True)
    assert "BatchScan" in by_source._jdf.queryExecution().toString()
    assert few.schema.simpleString() == by_source.schema.simpleString()
    rows = [sorted(frame.collect(), key=lambda row: (row.shard, row.offset)) for frame in (few, by_source)]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 103


def test_what_is_far_larger_than_its_segments_is_left_to_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path / "data", a=[bytes(5_000)] * 20)
    monkeypatch.setattr(driver_rows, "_MOST_ROW_BYTES", 10_000)
    history = take_history(spark, Origin(str(tmp_path / "data")))
    assert driver_rows.driver_rows(spark, history.store, history.rest, history.source_options) is None


def test_no_record_at_all_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "data", a=[b"1"])
    history = take_history(spark, Origin(str(tmp_path / "data"), topics=("b",), shards=("#",)))
    assert history.read(spark, reads_few_at_once=True).collect() == []


def test_a_log_that_is_gone_is_reported_before_the_query_begins(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "data", a=[b"1"])
    history = take_history(spark, Origin(str(tmp_path / "data")))
    [log] = (tmp_path / "data" / "log").rglob("*.log")
    log.write_bytes(log.read_bytes()[:100])
    assert history.store == Store(history.store.sealed, history.store.log, "", ())
    with pytest.raises(UnreadableError, match=r"shard 'a', offsets 0 up to but not including 1"):
        history.read(spark, reads_few_at_once=True)
