"""Spark reads what the sink `files` writes as one table, whatever values each file has."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from pyspark.sql import SparkSession

from tests.sinks.files.test_column_types import MIXED, MOMENT, mixed_files


def test_files_whose_values_differ_are_one_table(spark: SparkSession, tmp_path: Path) -> None:
    mixed_files(tmp_path)
    (tmp_path / ".queue-1.epoch").write_text("1")
    frame = spark.read.parquet(str(tmp_path))
    assert dict(frame.dtypes) == {"any": "string", "n": "bigint", "at": "timestamp", "raw": "binary"}
    rows = [row.asDict() for row in frame.collect()]
    assert len(rows) == len(MIXED)
    assert sorted(str(row["any"]) for row in rows) == ["1", "None", "one", '{"a":1}']
    assert {row["at"].astimezone(UTC) for row in rows if row["at"] is not None} == {MOMENT}
    assert {bytes(row["raw"]) for row in rows if row["raw"] is not None} == {b"\xff", b"text"}
