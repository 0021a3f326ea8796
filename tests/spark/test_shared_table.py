"""Shared files in the table that Spark's own Parquet reader scans: which rows it has, and how little is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from shards.format.record import Record
from spark_export import read_sealed
from spark_export.errors import UnreadableError
from spark_export.history import Origin, take_history
from spark_export.sealed_scan import TABLE_COLUMNS
from tests.spark.history_model import kept_rows
from tests.spark.history_player import Append, Convert, Delete, Gather, Player, Trim
from tests.spark.sealed_trees import NOW_US, SealedTree, values
from tests.spark.stores import places
from tests.spark.test_any_history import some
from tests.spark.test_sealed_table import plan_of, scanned

SECOND_US = 1_000_000


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    return SealedTree(tmp_path)


def table(spark: SparkSession, tree: SealedTree, **options: str) -> DataFrame:
    return read_sealed(spark, str(tree.root), **options)  # type: ignore[arg-type]


def found(frame: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.shard, row.offset) for row in frame.select("shard", "offset").collect())


def test_all_files_are_one_table(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("plant/a", values(4))
    tree.gather(("plant/a", values(3, first=4)), ("b", values(5, topic="own")), ("日本/é ü", values(2)))
    tree.gather(("plant/a", values(2, first=7)), day=1)
    frame = table(spark, tree)
    assert tuple(frame.columns) == TABLE_COLUMNS
    assert found(frame) == [*places("b", range(5)), *places("plant/a", range(9)), *places("日本/é ü", range(2))]
    rows = frame.where("shard = 'plant/a'").orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [each.value for each in values(9)]
    assert [row.date.isoformat() for row in rows] == ["2026-03-01"] * 7 + ["2026-03-02"] * 2
    assert found(table(spark, tree, topics="own", shards="#")) == places("b", range(5))
    assert found(table(spark, tree, topics="plant/+")) == places("plant/a", range(9))


def test_a_query_reads_only_the_days_and_row_groups_that_it_needs(spark: SparkSession, tree: SealedTree) -> None:
    for day in range(3):
        records = [
            Record(b"%08d" % n + bytes(1016), timestamp_us=NOW_US + (day * 1000 + n) * SECOND_US) for n in range(1000)
        ]
        tree.gather(("a", records), ("b", records), ("c", records), day=day)
    frame = table(spark, tree).select("offset", "shard", "timestamp", "append_time", "date")
    assert frame.count() == 9000
    for condition, files, most_rows in (
        ("shard = 'b'", 3, 3000),
        ("shard = 'b' and date = '2026-03-02'", 1, 1000),
        ("date >= '2026-03-03' and shard = 'c'", 1, 1000),
        ("shard = 'a' and offset = 1500", 3, 1000),
        (f"shard = 'a' and timestamp = timestamp_micros({NOW_US + 2500 * SECOND_US})", 3, 1000),
    ):
        chosen = frame.where(condition)
        assert scanned(spark, chosen, "numFiles") == files, condition
        assert 0 < scanned(spark, chosen, "numOutputRows") <= most_rows, condition
        assert "PushedFilters: [" in plan_of(chosen)


def test_old_and_rewritten_files_give_each_row_once_and_only_then_rows_are_compared(
    spark: SparkSession, tree: SealedTree
) -> None:
    old = [tree.gather(("a", values(4)), ("b", values(5))), tree.gather(("a", values(4, first=4)), ("c", values(1)))]
    assert "Join" not in plan_of(table(spark, tree))
    tree.rewrite(*old, without=["b"])
    frame = table(spark, tree)
    assert found(frame) == [*places("a", range(8)), *places("b", range(5)), *places("c", range(1))]
    assert plan_of(frame).count("BroadcastHashJoin LeftSemi") == 1
    old[0].unlink()
    assert found(table(spark, tree)) == [*places("a", range(8)), *places("c", range(1))]


def test_of_shards_of_one_name_the_newest_is_read(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("a", values(9), shard_id=5)
    tree.gather(("a", values(7)), shard_id=6)
    tree.gather(("b", values(2)))
    tree.gather(("a", values(2)), shard_id=8)
    assert found(table(spark, tree)) == [*places("a", range(2)), *places("b", range(2))]


def test_an_empty_file_is_an_error_and_not_no_records(spark: SparkSession, tree: SealedTree) -> None:
    path = tree.gather(("a", values(3)))
    path.write_bytes(b"")
    with pytest.raises(UnreadableError, match=rf"{path.name} is empty"):
        table(spark, tree)


def test_a_directory_shows_only_live_rows(spark: SparkSession, tmp_path: Path) -> None:
    player = Player(tmp_path, lambda _: None)
    player.play(
        [
            Append("plant/a", (some(0, 8),)),
            Append("plant/b", (some(0, 8),)),
            Append("gone", (some(0, 2),)),
            Gather(),
            Trim("plant/a", 0.25),
            Delete("gone", again=False),
            Append("plant/b", (some(8, 3),)),
            Convert("plant/b"),
        ]
    )
    live = sorted((row[1], row[2]) for row in kept_rows(player.shards))
    frame = read_sealed(spark, str(player.directory))
    assert found(frame) == live
    assert found(read_sealed(spark, str(player.directory), with_unsealed=True)) == live
    # The file has dead rows; those of the shard that is asked for are all live.
    assert found(frame.where("shard = 'plant/b'")) == places("plant/b", range(11))
    # The tree alone does not tell which rows are dead: those of files that have a live one are all there.
    shown = found(read_sealed(spark, str(player.directory / "sealed")))
    assert places("plant/a", range(8)) == [one for one in shown if one[0] == "plant/a"]
    assert set(live) < set(shown)


def test_an_export_goes_on_where_it_was_when_segments_move_into_shared_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    player = Player(tmp_path, lambda _: None)
    player.play([Append("plant/a", (some(0, 8),)), Append("plant/b", (some(0, 4),)), Convert("plant/b")])
    origin = Origin(str(player.directory), shards=("#",))
    first = take_history(spark, origin)
    assert len(found(first.read(spark))) == 12
    player.play([Append("plant/a", (some(8, 2),)), Append("plant/b", (some(4, 2),)), Gather()])
    second = take_history(spark, origin, first.places)
    assert found(second.read(spark)) == [*places("plant/a", range(8, 10)), *places("plant/b", range(4, 6))]
    player.play([Append("plant/b", (some(6, 1),)), Gather()])
    third = take_history(spark, origin, second.places)
    assert found(third.read(spark)) == places("plant/b", range(6, 7))
    assert not take_history(spark, origin, third.places).ranges
