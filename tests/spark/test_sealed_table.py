"""Sealed segments as a Spark table: which records it has, and that Spark reads no more of the files than it must."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import duckdb
import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

from shards.errors import InvalidNameError
from shards.format.record import Record
from shards.topics.topic_filters import matches
from spark_export import read_sealed
from spark_export.discovery import take_snapshot
from spark_export.errors import UnreadableError
from spark_export.hadoop_files import HadoopFiles
from spark_export.options import parse_options
from spark_export.sealed_scan import TABLE_COLUMNS
from tests.spark.sealed_trees import NOW_US, SealedTree, values

ODD_NAMES = (
    "007",
    "2026-03-01",
    "__HIVE_DEFAULT_PARTITION__",
    "a b/c=d,e;f'g\"h",
    "plant/température/ü~x",
    "x~y",
    "日本/センサー",
    "é" * 500,
    "a/" + "long" * 60,
)


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    return SealedTree(tmp_path)


def plan_of(frame: DataFrame) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        frame.explain("formatted")
    return printed.getvalue()


def offsets(frame: DataFrame, shard: str) -> list[int]:
    return sorted(row.offset for row in frame.where(frame.shard == shard).select("offset").collect())


def scanned(spark: SparkSession, frame: DataFrame, metric: str) -> int:
    """What the scans of a query counted, once it ran."""
    query = frame._jdf.queryExecution()
    frame._jdf.collectToPython()
    plan = query.executedPlan()
    total = 0
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.metrics().contains(metric):
            total += leaf.metrics().apply(metric).value()
    return int(total)


def test_every_field_of_a_record_comes_back(spark: SparkSession, tree: SealedTree) -> None:
    record = Record(
        value=b"\x00\xff" * 3,
        key=b"\xfekey",
        timestamp_us=NOW_US + 123_456,
        headers=(("trace", b"\x00\x01"), ("trace", b""), ("ü", "ü".encode())),
        tags=("red", "grün"),
        expires_at_us=1,
    )
    tree.convert("plant/a", [record, Record()])
    frame = read_sealed(spark, str(tree.root))
    assert tuple(frame.columns) == TABLE_COLUMNS
    first, empty = frame.orderBy("offset").collect()
    assert (first.topic, first.shard, first.offset) == ("plant/a", "plant/a", 0)
    assert (bytes(first.key), bytes(first.value)) == (record.key, record.value)
    assert [(header.key, bytes(header.value)) for header in first.headers] == list(record.headers)
    assert tuple(first.tags) == record.tags
    assert frame.selectExpr("unix_micros(timestamp)").first()[0] == record.timestamp_us
    assert (bytes(empty.key), bytes(empty.value), empty.headers, empty.tags) == (b"", b"", [], [])
    assert empty.append_time == first.append_time


def test_any_shard_name_comes_back_as_it_is(spark: SparkSession, tree: SealedTree) -> None:
    for number, name in enumerate(ODD_NAMES, 1):
        tree.convert(name, values(number))
    frame = read_sealed(spark, str(tree.root))
    assert dict(frame.groupBy("shard").count().collect()) == {name: n for n, name in enumerate(ODD_NAMES, 1)}
    assert frame.where("topic <> shard").count() == 0
    assert read_sealed(spark, str(tree.root), topics=ODD_NAMES[-2]).count() == len(ODD_NAMES) - 1


def test_a_filter_on_the_shard_or_topic_reads_only_its_row_groups(spark: SparkSession, tree: SealedTree) -> None:
    for name in ODD_NAMES:
        tree.convert(name, values(2))
    frame = read_sealed(spark, str(tree.root))
    for name in ODD_NAMES[2:9:3]:
        assert scanned(spark, frame.where(frame.shard == name), "numOutputRows") == 2
        assert scanned(spark, frame.where(frame.topic == name), "numOutputRows") == 2
    assert scanned(spark, read_sealed(spark, str(tree.root), topics="日本/+"), "numOutputRows") == 2
    assert scanned(spark, read_sealed(spark, str(tree.root), topics="no/such"), "numOutputRows") == 0


def test_filters_on_offset_and_time_reach_the_row_groups(spark: SparkSession, tree: SealedTree) -> None:
    # 1 KiB a value: about a thousand records a row group.
    records = [Record(value=b"%08d" % n + bytes(1016), timestamp_us=NOW_US + n * 1_000_000) for n in range(5000)]
    tree.convert("plant/a", records)
    frame = read_sealed(spark, str(tree.root)).select("offset")
    for condition in ("offset = 4321", f"timestamp = timestamp_micros({NOW_US + 4321 * 1_000_000})"):
        chosen = read_sealed(spark, str(tree.root)).where(condition).select("offset")
        assert [row.offset for row in chosen.collect()] == [4321]
        assert "PushedFilters: [" in plan_of(chosen)
        assert scanned(spark, chosen, "numOutputRows") < 3000
    assert scanned(spark, frame, "numOutputRows") == 5000


def test_columns_that_are_not_asked_for_are_not_read(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("plant/a", values(5))
    plan = plan_of(read_sealed(spark, str(tree.root)).select("offset"))
    assert "ReadSchema: struct<offset:bigint,topic:string,shard:string>" in plan


def test_topic_filters_choose_as_brokers_do(spark: SparkSession, tree: SealedTree) -> None:
    names = ("plant/a", "plant/a/b", "plant", "plants", "$internal/x", "a.b/c", "axb/c")
    for name in names:
        tree.convert(name, values(1))
    for topics in ("#", "+", "plant/#", "plant/+", "+/+", "$internal/#", "a.b/+", "plant/a", "+/a/#"):
        found = {row.topic for row in read_sealed(spark, str(tree.root), topics=topics).collect()}
        assert found == {name for name in names if matches(topics, name)}, topics
    both = read_sealed(spark, str(tree.root), topics=["plants", "plant/+"])
    assert {row.topic for row in both.collect()} == {"plants", "plant/a"}
    with pytest.raises(InvalidNameError, match=r"plant/\+x"):
        read_sealed(spark, str(tree.root), topics="plant/+x")


def test_topics_folded_into_a_shard_are_found_by_topic(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("folded/0", [*values(3, topic="plant/a"), *values(2, topic="plant/b"), *values(1)])
    tree.convert("plant/a", values(4))
    frame = read_sealed(spark, str(tree.root))
    assert dict(frame.groupBy("topic").count().collect()) == {"plant/a": 7, "plant/b": 2, "folded/0": 1}
    assert frame.where("topic = 'plant/b'").count() == 2
    # By default the topics say which shards are looked into, as in the data source.
    assert read_sealed(spark, str(tree.root), topics="plant/+").count() == 4
    assert read_sealed(spark, str(tree.root), topics="plant/+", shards=["plant/+", "folded/+"]).count() == 9


def test_files_of_a_shard_that_was_deleted_and_made_anew_do_not_count(spark: SparkSession, tree: SealedTree) -> None:
    tree.convert("plant/a", values(10))
    tree.convert("plant/a", values(3, first=100), shard_id=99)
    frame = read_sealed(spark, str(tree.root))
    assert offsets(frame, "plant/a") == [0, 1, 2]
    assert frame.agg({"value": "max"}).first()[0] == b'{"n": 102}'


def test_without_sealed_segments_the_table_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    for path in (tmp_path / "tree", tmp_path / "data"):
        path.mkdir()
    (tmp_path / "data" / "FORMAT").write_text("{}")
    for path in (tmp_path / "tree", tmp_path / "data"):
        frame = read_sealed(spark, str(path))
        assert frame.collect() == []
        assert tuple(frame.columns) == TABLE_COLUMNS


def test_a_tree_of_the_form_before_shared_files_is_an_error_that_says_so(
    spark: SparkSession, tree: SealedTree, tmp_path: Path
) -> None:
    tree.convert("plant/a", values(1))
    (tree.root / "shard=plant%2Fa").mkdir()
    (tmp_path / "FORMAT").write_text("{}")
    for path in (tmp_path, tree.root):
        with pytest.raises(UnreadableError, match=r"sealed/shard=plant%2Fa is of a form .* with the version that"):
            read_sealed(spark, str(path))
        with pytest.raises(UnreadableError, match="does not read, with a directory for each shard"):
            take_snapshot(parse_options({"path": str(path)}, "batch"))


def test_a_path_with_nothing_of_ours_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="nothing at"):
        read_sealed(spark, str(tmp_path / "missing"))
    (tmp_path / "photos").mkdir()
    with pytest.raises(UnreadableError, match="neither a data directory"):
        read_sealed(spark, str(tmp_path))


def test_a_path_may_be_the_data_directory_or_a_url_and_look_like_a_pattern(spark: SparkSession, tmp_path: Path) -> None:
    directory = tmp_path / "a{b}[c]*d é"
    directory.mkdir()
    tree = SealedTree(directory)
    tree.convert("plant/a", values(3))
    for path in (str(directory), f"{directory}/", str(tree.root), f"file:{tree.root}"):
        assert read_sealed(spark, path).count() == 3


def test_duckdb_and_polars_read_the_same_directory_and_agree(spark: SparkSession, tree: SealedTree) -> None:
    for name in ("plant/a", "plant/ü", "x=y z"):
        tree.convert(name, values(250))
        tree.convert(name, values(50, first=250))
    pattern = f"{tree.root}/date=*/*.parquet"
    ours = read_sealed(spark, str(tree.root))
    rows = sorted((row.shard, row.offset, bytes(row.key), bytes(row.value)) for row in ours.collect())
    found = duckdb.sql(f"select shard, \"offset\", key, value from read_parquet('{pattern}') order by all").fetchall()
    assert [(shard, offset, bytes(key), bytes(value)) for shard, offset, key, value in found] == rows
    table = pl.scan_parquet(pattern)
    picked = table.select("shard", "offset", "key", "value").collect().rows()
    assert sorted(picked) == rows


def test_publishing_a_directory_never_replaces_one(spark: SparkSession, tmp_path: Path) -> None:
    files = HadoopFiles(spark, str(tmp_path))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        files.write_text(f"{tmp_path}/{name}/state", name)
    assert files.publish(f"{tmp_path}/first", f"{tmp_path}/run")
    assert not files.publish(f"{tmp_path}/second", f"{tmp_path}/run")
    # As on a file system that is not the driver's own.
    assert not files._rename(f"{tmp_path}/second", f"{tmp_path}/run")
    assert files._rename(f"{tmp_path}/second", f"{tmp_path}/other")
    assert files.read_text(f"{tmp_path}/run/state") == "first"
    assert files.names(f"{tmp_path}/run") == ["state"] or ".state.crc" in files.names(f"{tmp_path}/run")


def test_a_tree_in_which_nothing_is_sealed_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """It was called no tree, for it holds the hidden marker of its data directory."""
    (tmp_path / ".node").write_text("{}")
    assert read_sealed(spark, str(tmp_path)).count() == 0
