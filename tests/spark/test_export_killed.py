"""An export that is killed with SIGKILL leaves its target as before or complete, and the next run makes it equal."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_export.export import ExportOptions, run_export
from tests.spark.exporting_process import kill_export_at
from tests.spark.sealed_trees import SealedTree, values

SHARDS = ("plant/a", "plant/ü")


def rows(spark: SparkSession, target: Path) -> list[tuple[str, int]]:
    return sorted(
        (row.shard, row.offset) for row in spark.read.parquet(str(target)).select("shard", "offset").collect()
    )


def expected(count: int) -> list[tuple[str, int]]:
    return [(shard, offset) for shard in SHARDS for offset in range(count)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("step", "is_complete"),
    [
        pytest.param("writing", False, marks=pytest.mark.long),
        pytest.param("wrote", False, marks=pytest.mark.long),
        ("publishing", False),
        pytest.param("published", True, marks=pytest.mark.long),
    ],
)
def test_a_killed_export_is_made_good_by_the_next(
    spark: SparkSession, tmp_path: Path, step: str, is_complete: bool
) -> None:
    tree, target = SealedTree(tmp_path), tmp_path / "target"
    given = {"path": str(tree.root), "target": str(target), "partition_by": ["topic"]}
    for shard in SHARDS:
        tree.convert(shard, values(400))
    assert run_export(spark, ExportOptions(**given)).records == 800
    for shard in SHARDS:
        tree.convert(shard, values(300, first=400))
    kill_export_at(step, given)
    assert rows(spark, target) == expected(700 if is_complete else 400)
    assert run_export(spark, ExportOptions(**given)).run == (None if is_complete else 2)
    assert rows(spark, target) == expected(700)
    assert not list(target.glob("_writing*"))
    for shard in SHARDS:
        tree.convert(shard, values(1, first=700))
    assert run_export(spark, ExportOptions(**given)).records == 2
    assert rows(spark, target) == expected(701)
    assert not list(target.glob("_writing*"))
