"""A filter `#` leaves out names that begin with ``$``; a file that has none of them is read without a condition."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from spark_export import read_sealed
from spark_export.hidden_names import has_none
from tests.spark.history_player import Append, Gather, Player
from tests.spark.sealed_trees import SealedTree, values
from tests.spark.test_any_history import some
from tests.spark.test_sealed_table import plan_of
from tests.spark.test_table_versions import commit

NAMES = st.text(st.sampled_from("#$%a\x00é\U0010ffff"), min_size=1, max_size=3)


@given(st.lists(NAMES, min_size=1))
def test_bounds_without_a_hidden_name_are_those_of_names_without_one(names: list[str]) -> None:
    ordered = sorted(names, key=str.encode)
    if has_none([(ordered[0], ordered[-1])]):
        assert not any(name.startswith("$") for name in names)
    only_one_side = all(name[0] > "$" for name in names) or all(name[0] < "$" for name in names)
    assert has_none([(ordered[0], ordered[-1])]) == only_one_side


def test_without_bounds_there_may_be_hidden_names() -> None:
    assert not has_none([("a", "b"), None])


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
