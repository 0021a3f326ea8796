"""Versions of the Delta table: what a scan of one has, and streams that begin after one."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from shards.delta.actions import TableRequest
from shards.delta.library import DeltaLibrary
from shards.delta.table import update_table
from shards.seams.os_file_system import OsFileSystem
from spark_export import read_sealed
from spark_export.cli.main import run
from spark_export.discovery import take_snapshot
from spark_export.errors import OptionError, UnreadableError
from spark_export.options import parse_options
from spark_export.record_columns import SPARK_SCHEMA
from spark_export.sealed_files import parse_shared
from spark_export.streaming import JournalStreamReader
from tests.spark.history_player import Append, Gather, Player, Trim
from tests.spark.sealed_trees import SealedTree, values
from tests.spark.stores import places, planned
from tests.spark.streams import Followed
from tests.spark.test_any_history import some
from tests.spark.test_sealed_table import plan_of, scanned


def commit(tree: SealedTree, lsn: int, *files: Path) -> int:
    """Make a version of the table with these files; return its number."""
    names = [name for name in map(parse_shared, map(str, files)) if name is not None]
    request = TableRequest(str(tree.root), lsn, tuple((name.day, name.file_id) for name in names))
    return update_table(OsFileSystem(), request, DeltaLibrary(), 1).version


def found(frame: DataFrame) -> list[tuple[str, int]]:
    return sorted((row.shard, row.offset) for row in frame.select("shard", "offset").collect())


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    """Versions 0 to 2: two shards; more of one of them; all in one new file, beside the old ones."""
    tree = SealedTree(tmp_path)
    first = tree.gather(("a", values(4)), ("b", values(5)))
    assert commit(tree, 2, first) == 0
    second = tree.gather(("a", values(3, first=4)))
    assert commit(tree, 3, first, second) == 1
    assert commit(tree, 4, tree.rewrite(first, second)) == 2
    return tree


ALL = [*places("a", range(7)), *places("b", range(5))]
FIRST = [*places("a", range(4)), *places("b", range(5))]


def test_a_scan_has_the_files_of_its_version(spark: SparkSession, tree: SealedTree) -> None:
    path = str(tree.root)
    for version, rows, files in ((0, FIRST, 1), (1, ALL, 2), (2, ALL, 1)):
        frame = read_sealed(spark, path, version=version)
        assert found(frame) == rows
        assert scanned(spark, frame, "numFiles") == files
        source = spark.read.format("journal").option("path", path).option("asOfVersion", version).load()
        assert found(source) == rows
    assert found(read_sealed(spark, path, version=1, topics="b")) == places("b", range(5))


def test_a_tree_with_a_table_has_the_files_of_its_newest_version(spark: SparkSession, tree: SealedTree) -> None:
    frame = read_sealed(spark, str(tree.root))
    assert found(frame) == ALL
    assert scanned(spark, frame, "numFiles") == 1
    # Each row of a version counts: rows are not compared, and no offsets are read to plan.
    assert "Join" not in plan_of(frame)
    assert sorted(planned({"path": tree.root}).places()) == ALL
    # A file that is not in the table yet belongs to no version.
    tree.gather(("c", values(2)))
    assert found(read_sealed(spark, str(tree.root))) == ALL
    assert sorted(planned({"path": tree.root}).places()) == ALL


def test_of_shards_of_one_name_a_version_shows_the_newest(spark: SparkSession, tmp_path: Path) -> None:
    tree = SealedTree(tmp_path)
    files = [
        tree.gather(("a", values(7)), shard_id=5),
        tree.gather(("b", values(1)), shard_id=6),
        tree.gather(("a", values(2)), shard_id=8),
    ]
    commit(tree, 9, *files)
    for version in (None, 0):
        assert found(read_sealed(spark, str(tree.root), version=version)) == [
            *places("a", range(2)),
            *places("b", range(1)),
        ]


def test_a_query_names_a_version_on_the_command_line(
    spark: SparkSession, tree: SealedTree, capfd: pytest.CaptureFixture[str]
) -> None:
    for engine in ("spark", "duckdb"):
        for version, count in ((0, 9), (2, 12)):
            for view in ("records", "sealed"):
                query = f"select count(*) as n from {view}"
                arguments = ["--as-of-version", str(version), "--engine", engine, "--csv"]
                assert run(["sql", str(tree.root), query, *arguments]) == 0
                assert capfd.readouterr().out == f"n\n{count}\n", (engine, version, view)


def test_a_version_that_is_not_there_is_named_with_the_newest_one(spark: SparkSession, tree: SealedTree) -> None:
    with pytest.raises(UnreadableError, match=r"cannot read version 3 of the Delta table .*; the newest version is 2"):
        read_sealed(spark, str(tree.root), version=3)
    with pytest.raises(UnreadableError, match="cannot read version 3 of"):
        planned({"path": tree.root, "asOfVersion": 3})


def test_a_version_whose_files_were_removed_says_so(spark: SparkSession, tree: SealedTree) -> None:
    for file in sorted(tree.root.glob("date=*/*.parquet"))[:2]:
        file.unlink()
    message = r"version 1 of the Delta table needs .*\.parquet, which is gone: .* read a newer version"
    with pytest.raises(UnreadableError, match=message):
        read_sealed(spark, str(tree.root), version=1)
    with pytest.raises(UnreadableError, match=message):
        planned({"path": tree.root, "asOfVersion": 1})
    options = parse_options({"path": str(tree.root), "startingVersion": "2"}, "stream")
    with pytest.raises(UnreadableError, match=message):
        take_snapshot(options)
    assert found(read_sealed(spark, str(tree.root), version=2)) == ALL


def test_a_version_has_no_unsealed_records(spark: SparkSession, tree: SealedTree) -> None:
    with pytest.raises(OptionError, match="version 1 of the table has sealed records only"):
        read_sealed(spark, str(tree.root), version=1, with_unsealed=True)
    with pytest.raises(OptionError, match=r"'asOfVersion' \('1'\) .* 'server' .*: give one of them"):
        parse_options({"path": "/data", "server": "a:1", "asOfVersion": "1"}, "batch")
    with pytest.raises(OptionError, match=r"'startingVersion' .* give its path"):
        parse_options({"server": "a:1", "startingVersion": "1"}, "stream")
    with pytest.raises(OptionError, match=r"'startingOffsets' .* and 'startingLsn' .*: give one of them"):
        parse_options({"path": "/data", "startingLsn": "1", "startingOffsets": "latest"}, "stream")


@pytest.fixture
def player(tmp_path: Path) -> Player:
    """A data directory whose table has three shards; `append_more` adds to it."""
    player = Player(tmp_path, lambda _: None)
    player.play([Append("a", (some(0, 4),)), Append("b", (some(0, 2),)), Append("short", (some(0, 9),)), Gather()])
    return player


def append_more(player: Player) -> None:
    """Append to the table, and something that is not sealed."""
    player.play([Append("c", (some(0, 2),)), Append("a", (some(4, 3),)), Gather(), Append("b", (some(2, 2),))])


def newest_version(directory: Path) -> int:
    return DeltaLibrary().read(str(directory / "sealed")).version


def is_rewriting(commit: Path) -> bool:
    """Whether a version adds files and no data."""
    added = [action["add"] for line in commit.read_text().splitlines() if "add" in (action := json.loads(line))]
    return bool(added) and not any(each["dataChange"] for each in added)


class Stream:
    """A stream that is started again for each run, as Spark does it: its position is all that is kept."""

    def __init__(self, path: Path, **options: object) -> None:
        given = {"path": path, "shards": "#", **options}
        self._options = parse_options({name: str(value) for name, value in given.items()}, "stream")
        self._position: dict[str, object] | None = None

    def run(self) -> list[tuple[str, int]]:
        """Read what is there."""
        reader = JournalStreamReader(self._options, SPARK_SCHEMA)
        reader.prepareForTriggerAvailableNow()
        position = self._position if self._position is not None else reader.initialOffset()
        self._position = reader.latestOffset(position, ReadAllAvailable())
        partitions = reader.partitions(position, self._position)
        rows = (row for one in partitions for batch in reader.read(one) for row in batch.to_pylist())
        return sorted((row["shard"], row["offset"]) for row in rows)


@pytest.mark.slow("gathers in a store")
def test_a_stream_begins_after_the_records_of_a_version_and_gets_each_later_one_once(player: Player) -> None:
    after = newest_version(player.directory) + 1
    append_more(player)
    assert newest_version(player.directory) >= after
    stream = Stream(player.directory, startingVersion=after)
    assert stream.run() == [*places("a", range(4, 7)), *places("b", range(2, 4)), *places("c", range(2))]
    assert stream.run() == []
    # What was read as a log is gathered, and trimmed records go: no new records.
    player.play([Gather(), Append("a", (some(7, 1),)), Gather(), Trim("short", 1.0), Gather()])
    assert stream.run() == places("a", range(7, 8))
    everything = [*places("a", range(8)), *places("b", range(4)), *places("c", range(2))]
    assert Stream(player.directory, startingVersion=0).run() == everything


def test_a_stream_that_has_begun_needs_the_files_of_its_first_version_no_more(tree: SealedTree) -> None:
    stream = Stream(tree.root, startingVersion=1)
    assert stream.run() == places("a", range(4, 7))
    old = sorted(tree.root.glob("date=*/*.parquet"))
    for file in old[:2]:
        file.unlink()
    new = tree.gather(("a", values(2, first=7)), ("c", values(1)))
    commit(tree, 7, old[2], new)
    assert stream.run() == [*places("a", range(7, 9)), *places("c", range(1))]
    # The same records in another file are no new ones.
    version = commit(tree, 8, tree.rewrite(old[2], new))
    assert is_rewriting(tree.root / "_delta_log" / f"{version:020}.json")
    assert stream.run() == []


@pytest.mark.slow("gathers in a store")
def test_a_stream_begins_at_an_lsn(player: Player, tree: SealedTree) -> None:
    append_more(player)
    lsns = pq.read_table(player.directory / "sealed", columns=["shard", "lsn"]).to_pylist()
    lsn = min(row["lsn"] for row in lsns if row["shard"] == "c")
    expected = [*places("a", range(4, 7)), *places("b", range(2, 4)), *places("c", range(2))]
    assert Stream(player.directory, startingLsn=lsn).run() == expected
    # The third batch: the second append to shard a.
    assert Stream(tree.root, startingLsn=3).run() == places("a", range(4, 7))
    assert Stream(tree.root, startingLsn=4).run() == []


def test_spark_streams_from_a_version(spark: SparkSession, tree: SealedTree, tmp_path: Path) -> None:
    followed = Followed(spark, tree.root, tmp_path / "stream")
    assert followed.run(startingVersion="1") == [3]
    assert followed.offsets() == {"a": [4, 5, 6]}


def test_the_plan_shows_what_the_scan_leaves_out(spark: SparkSession, tree: SealedTree) -> None:
    frame = read_sealed(spark, str(tree.root), version=2)
    for condition, shown in (
        ("date = '2026-03-01'", "PartitionFilters: [isnotnull(date#"),
        ("shard = 'a'", "EqualTo(shard,a)"),
        ("offset >= 5", "GreaterThanOrEqual(offset,5)"),
        ("timestamp > timestamp '2026-03-01 14:00:00'", "GreaterThan(timestamp,2026-03-01"),
        ("append_time < timestamp '2026-03-02 00:00:00'", "LessThan(append_time,2026-03-02"),
    ):
        assert shown in plan_of(frame.where(condition)), condition
    assert found(frame.where("shard = 'a' and offset >= 5")) == places("a", range(5, 7))
    assert scanned(spark, frame.where("date = '2026-03-02'"), "numFiles") == 0


def test_a_tree_of_which_all_was_trimmed_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """It has the log of its table and no file, and was taken for a directory of something else."""
    tree = SealedTree(tmp_path)
    file = tree.gather(("a", values(4)))
    commit(tree, 1, file)
    commit(tree, 2)
    file.unlink()
    file.parent.rmdir()
    assert read_sealed(spark, str(tree.root)).count() == 0
    assert spark.read.format("journal").option("path", str(tree.root)).load().count() == 0


def test_a_copy_of_the_log_without_its_files_is_refused(spark: SparkSession, tree: SealedTree) -> None:
    """It was read as a history without records."""
    for file in tree.root.glob("date=*/*.parquet"):
        file.unlink()
    for directory in tree.root.glob("date=*"):
        directory.rmdir()
    with pytest.raises(
        UnreadableError, match=r"version 2 of the Delta table in .* has .*\.parquet, which is not there"
    ):
        read_sealed(spark, str(tree.root))


def test_a_log_without_a_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(UnreadableError, match="cannot read the newest version of the Delta table"):
        read_sealed(spark, str(tmp_path))


def test_files_that_are_kept_for_readers_of_older_versions_have_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    tree = SealedTree(tmp_path)
    commit(tree, 1, tree.gather(("a", values(4))))
    commit(tree, 2)
    assert read_sealed(spark, str(tree.root)).count() == 0
