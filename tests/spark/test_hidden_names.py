"""The filter `#` does not match names that begin with ``$``; a file without such names is read without a condition."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_export import read_sealed
from tests.spark.history_player import Append, Gather, Player
from tests.spark.sealed_trees import SealedTree, values
from tests.spark.test_any_history import some
from tests.spark.test_sealed_table import plan_of
from tests.spark.test_table_versions import commit


@pytest.mark.slow("runs queries in Spark")
def test_hidden_topics_are_left_out_of_each_file(spark: SparkSession, tmp_path: Path) -> None:
    tree = SealedTree(tmp_path)
    files = [tree.gather(("plant/a", values(3)), ("plant/b", values(4, topic="plant/own")))]
    commit(tree, 1, *files)
    assert "StartsWith" not in plan_of(read_sealed(spark, str(tree.root)))
    files += [
        tree.gather(("plant/a", values(2, first=3)), ("plant/c", values(5, topic="$hidden/x"))),
        tree.gather(("$shard", values(6))),
    ]
    commit(tree, 2, *files)
    frame = read_sealed(spark, str(tree.root))
    assert "StartsWith" in plan_of(frame)
    assert "Union" in plan_of(frame)
    assert "Union" not in plan_of(read_sealed(spark, str(tree.root), topics="plant/#")), "one scan of all files"
    assert {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()} == {
        "plant/a": 5,
        "plant/own": 4,
    }
    assert read_sealed(spark, str(tree.root), topics=["#", "$hidden/#", "$shard"]).count() == 20


@pytest.mark.slow("gathers in a store")
def test_a_data_directory_without_hidden_names_is_scanned_without_conditions(
    spark: SparkSession, tmp_path: Path
) -> None:
    player = Player(tmp_path, lambda _: None)
    player.play([Append("plant/a", (some(0, 8),)), Gather()])
    frame = read_sealed(spark, str(player.directory))
    assert "StartsWith" not in plan_of(frame)
    assert frame.count() == 8
