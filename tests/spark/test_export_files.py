"""Exports to directories: what a reader with plain `spark.read` sees, run after run."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from broker_adapter import StorageAdapter
from shards.format.record import Record
from shards.history import HistoryGap
from spark_export.errors import DataLossError, OptionError
from spark_export.export import (
    ExportConflictError,
    ExportError,
    ExportOptions,
    ExportProgress,
    run_export,
)
from spark_export.export.file_target import FileTarget
from spark_export.export.state import BEFORE_FIRST, ExportState
from spark_export.history import Places, Reached
from tests.spark.sealed_trees import NOW_US, SealedTree, values
from tests.spark.stores import append, within

ODD_TOPICS = ("plant/a", "007", "é/ü=x y", "x" * 300, "a%2Fb", "__HIVE_DEFAULT_PARTITION__")


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    return SealedTree(tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def test_each_run_adds_what_is_new_and_nothing_else(spark: SparkSession, tree: SealedTree, target: Path) -> None:
    options = ExportOptions(path=str(tree.root), target=str(target))
    for name in ("plant/a", "plant/b"):
        tree.convert(name, values(30))
    first = run_export(spark, options)
    assert (first.run, first.records, first.shards) == (1, 60, 2)
    assert run_export(spark, options).run is None
    tree.convert("plant/a", values(5, first=30))
    tree.convert("plant/c", values(2))
    second = run_export(spark, options)
    assert (second.run, second.records, second.shards) == (2, 7, 2)
    rows = spark.read.parquet(str(target)).select("shard", "offset").collect()
    expected = {"plant/a": range(35), "plant/b": range(30), "plant/c": range(2)}
    assert sorted((row.shard, row.offset) for row in rows) == [
        (shard, offset) for shard, offsets in expected.items() for offset in offsets
    ]


def test_directories_tell_date_and_topic_and_the_rows_stay_whole(
    spark: SparkSession, tree: SealedTree, target: Path
) -> None:
    for number, topic in enumerate(ODD_TOPICS, 1):
        tree.convert(topic, values(number * 24))
    tree.convert("old", [Record(value=b"x", timestamp_us=1)])
    run_export(spark, ExportOptions(path=str(tree.root), target=str(target)))
    frame = spark.read.parquet(str(target))
    counts = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"old": 1, **{topic: number * 24 for number, topic in enumerate(ODD_TOPICS, 1)}}
    assert {str(path.name) for path in target.glob("run=default-00000001/date=*")} == {
        "date=1970-01-01",
        *(f"date=2026-03-0{day}" for day in range(1, 8)),
    }
    assert frame.where("date <> cast(timestamp as date)").count() == 0
    assert frame.where("topic_dir = 'plant/a'").count() == 24
    assert frame.where("length(topic) > 80 and topic_dir <> topic").count() == 4 * 24
    assert frame.where("topic = '007' and topic_dir = '~007'").count() == 2 * 24
    assert frame.where("topic_dir is null").count() == 0


LOOK_LIKE_NO_TEXT = ("007", "-1.5", ".5", "1e5", " 7", "7 ", "NaN", "Infinity ", "2026-01-01", "2026-01-01 10:00:00")
NUMBERS_OF_OTHER_SCRIPTS = ("\u0663", "\uff17")


@pytest.mark.parametrize(
    "topics",
    [
        *((topic,) for topic in ("007", "__HIVE_DEFAULT_PARTITION__", "~007")),
        LOOK_LIKE_NO_TEXT,
        NUMBERS_OF_OTHER_SCRIPTS,
    ],
    ids=lambda topics: topics[0],
)
def test_a_topic_that_looks_like_a_number_or_null_is_text_as_a_directory(
    spark: SparkSession, tree: SealedTree, target: Path, topics: tuple[str, ...]
) -> None:
    """topic_dir came back as the number 7 for the topic 007, and as null for __HIVE_DEFAULT_PARTITION__."""
    for topic in topics:
        tree.convert(topic, values(1))
    run_export(spark, ExportOptions(path=str(tree.root), target=str(target), partition_by=("topic",)))
    frame = spark.read.parquet(str(target))
    assert dict(frame.dtypes)["topic_dir"] == "string"
    assert {row.topic: row.topic_dir for row in frame.collect()} == {topic: f"~{topic}" for topic in topics}
    assert frame.where(frame.topic_dir == f"~{topics[0]}").count() == 1


def test_json_and_csv_hold_any_bytes_and_say_how(spark: SparkSession, tree: SealedTree, tmp_path: Path) -> None:
    records = [
        Record(value=b'{"n": 1, "list": [1.50, null]}', key=b"\xff\x00", timestamp_us=NOW_US + 1),
        Record(value=' a "quoted", line\r\nand ü\\ '.encode(), headers=(("h", b"\xfe"), ("ü", b"t")), tags=("x", "y")),
        Record(value=b"", timestamp_us=NOW_US),
        Record(value=b"\xc3\x28", timestamp_us=NOW_US),
    ]
    tree.convert("plant/a", records)
    for form in ("json", "csv"):
        run_export(spark, ExportOptions(path=str(tree.root), target=str(tmp_path / form), format=form, partition_by=()))
    reader = spark.read.option("header", True).option("multiLine", True).option("escape", '"')
    frames = {
        "json": spark.read.json(str(tmp_path / "json")),
        "csv": reader.option("nullValue", "\\N").csv(str(tmp_path / "csv")),
    }
    for form, frame in frames.items():
        rows = frame.orderBy(frame["offset"].cast("int")).collect()
        assert [(row.value, row.value_encoding) for row in rows] == [
            (records[0].value.decode(), "utf-8"),
            (records[1].value.decode(), "utf-8"),
            ("", "utf-8"),
            ("wyg=", "base64"),
        ], form
        assert (rows[0].key, rows[0].key_encoding) == ("/wA=", "base64")
        headers = rows[1].headers if form == "json" else json.loads(rows[1].headers)
        assert [
            tuple(header) if form == "json" else tuple(header[one] for one in ("encoding", "key", "value"))
            for header in headers
        ] == [
            ("base64", "h", "/g=="),
            ("utf-8", "ü", "t"),
        ]
        assert rows[0].timestamp == "2026-03-01T12:00:00.000001Z" or form == "csv"


def test_values_that_are_json_become_part_of_the_document(spark: SparkSession, tree: SealedTree, target: Path) -> None:
    tree.convert("plant/a", [Record(value=b'{"t": {"u": 1}}'), Record(value=b"no json"), Record(value=b"\xff")])
    options = ExportOptions(
        path=str(tree.root), target=str(target), format="json", value_as="json", partition_by=("topic",)
    )
    run_export(spark, options)
    lines = [
        json.loads(line) for path in target.glob("run=*/topic_dir=*/*.json") for line in path.read_text().splitlines()
    ]
    assert [(line["value"], line["value_encoding"]) for line in sorted(lines, key=lambda line: line["offset"])] == [
        ({"t": {"u": 1}}, "json"),
        ("no json", "utf-8"),
        ("/w==", "base64"),
    ]


def test_progress_goes_from_planning_to_published(spark: SparkSession, tree: SealedTree, target: Path) -> None:
    tree.convert("plant/a", values(3))
    told: list[ExportProgress] = []
    run_export(spark, ExportOptions(path=str(tree.root), target=str(target)), progress=told.append)
    assert list(dict.fromkeys(one.step for one in told)) == ["planning", "writing", "publishing", "published"]


def test_exports_of_two_names_in_one_directory_are_apart(spark: SparkSession, tree: SealedTree, target: Path) -> None:
    tree.convert("plant/a", values(3))
    for name in ("default", "other.one"):
        result = run_export(spark, ExportOptions(path=str(tree.root), target=str(target), name=name))
        assert (result.run, result.records) == (1, 3)
    assert sorted(path.name for path in target.iterdir()) == ["run=default-00000001", "run=other.one-00000001"]


def test_going_on_with_other_settings_is_refused(spark: SparkSession, tree: SealedTree, target: Path) -> None:
    tree.convert("plant/a", values(3))
    run_export(spark, ExportOptions(path=str(tree.root), target=str(target)))
    with pytest.raises(OptionError, match=r"topics \['#'\], now it is \['plant/#'\].*another name"):
        run_export(spark, ExportOptions(path=str(tree.root), target=str(target), topics="plant/#"))


def test_records_trimmed_before_they_were_exported_are_an_error_unless_passed_over(
    spark: SparkSession, tree: SealedTree, target: Path
) -> None:
    files = [tree.convert("plant/a", values(3))]
    run_export(spark, ExportOptions(path=str(tree.root), target=str(target)))
    files.append(tree.convert("plant/a", values(3, first=3)))
    tree.convert("plant/a", values(7, first=6))
    for file in files:
        file.unlink()
    with pytest.raises(DataLossError, match="'plant/a': records from offset 3 up to 6"):
        run_export(spark, ExportOptions(path=str(tree.root), target=str(target)))
    options = ExportOptions(path=str(tree.root), target=str(target), fail_on_data_loss=False)
    assert run_export(spark, options).records == 7


def places(spark: SparkSession, target: Path) -> list[tuple[str, int]]:
    rows = spark.read.parquet(str(target)).select("shard", "offset").collect()
    return sorted((row.shard, row.offset) for row in rows)


def test_a_shard_that_was_missing_for_one_run_came_twice(
    spark: SparkSession, tree: SealedTree, target: Path, tmp_path: Path
) -> None:
    """The export lost its place: 24 rows, of which 14 were distinct."""
    strict = ExportOptions(path=str(tree.root), target=str(target))
    lenient = ExportOptions(path=str(tree.root), target=str(target), fail_on_data_loss=False)
    file = tree.convert("plant/a", values(10))
    tree.convert("plant/b", values(1))
    run_export(spark, strict)
    file.rename(tmp_path / "away")
    tree.convert("plant/b", values(1, first=1))
    with pytest.raises(DataLossError, match=r"'plant/a' .*read up to offset 10, is not there any more"):
        run_export(spark, strict)
    assert run_export(spark, lenient).records == 1
    assert run_export(spark, strict).run is None
    (tmp_path / "away").rename(file)
    tree.convert("plant/a", values(4, first=10))
    assert run_export(spark, strict).records == 4
    assert places(spark, target) == [("plant/a", n) for n in range(14)] + [("plant/b", n) for n in range(2)]


def test_a_shard_that_was_deleted_and_created_again_was_not_noticed(spark: SparkSession, target: Path) -> None:
    """The export went on with another shard of the same name although a loss was to be an error."""
    data = target.with_name("data")
    strict = ExportOptions(path=str(data), target=str(target), partition_by=())
    lenient = ExportOptions(path=str(data), target=str(target), partition_by=(), fail_on_data_loss=False)

    async def delete(adapter: StorageAdapter) -> None:
        await adapter.delete_shard("a")

    append(data, "a", values(10))
    assert run_export(spark, strict).records == 10
    within(data, delete)
    with pytest.raises(DataLossError, match=r"shard 'a' .*read up to offset 10, is not there any more: it was deleted"):
        run_export(spark, strict)
    append(data, "a", values(12))
    with pytest.raises(DataLossError, match="shard 'a' was deleted and created again"):
        run_export(spark, strict)
    within(data, delete)
    # Nothing is new, but that the loss was passed over is remembered.
    passed = run_export(spark, lenient)
    assert (passed.run, passed.records) == (2, 0)
    assert run_export(spark, strict).run is None
    append(data, "a", values(3))
    assert run_export(spark, strict).records == 3
    assert places(spark, target) == sorted([("a", n) for n in range(10)] + [("a", n) for n in range(3)])


def test_of_two_runs_at_a_time_one_is_published(spark: SparkSession, tree: SealedTree, target: Path) -> None:
    tree.convert("plant/a", values(30))
    options = ExportOptions(path=str(tree.root), target=str(target))

    def overtake(progress: ExportProgress) -> None:
        if progress.step == "publishing":
            assert run_export(spark, options).run == 1

    with pytest.raises(ExportConflictError, match=r"run 1 of export 'default'.*published by another process"):
        run_export(spark, options, progress=overtake)
    assert [path.name for path in target.iterdir()] == ["run=default-00000001"]
    assert spark.read.parquet(str(target)).count() == 30
    assert run_export(spark, options).run is None


def byte_of_values(path: Path) -> int:
    """Position of a byte in the values of a file."""
    group = pq.read_metadata(path).row_group(0)
    chunk = next(group.column(at) for at in range(group.num_columns) if group.column(at).path_in_schema == "value")
    return int(chunk.data_page_offset + chunk.total_compressed_size // 2)


def test_a_failed_run_leaves_the_target_as_it_was(spark: SparkSession, tree: SealedTree, target: Path) -> None:
    tree.convert("plant/a", values(3))
    options = ExportOptions(path=str(tree.root), target=str(target))
    run_export(spark, options)
    damaged = tree.convert("plant/a", values(300, first=3))
    good = damaged.read_bytes()
    at = byte_of_values(damaged)
    damaged.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    with pytest.raises(Exception, match=rf"CRC|{damaged.name}"):
        run_export(spark, options)
    assert [path.name for path in target.iterdir()] == ["run=default-00000001"]
    damaged.write_bytes(good)
    assert run_export(spark, options).records == 300


def test_what_killed_runs_left_is_removed_by_the_next_but_not_what_is_being_written(
    spark: SparkSession, tree: SealedTree, target: Path
) -> None:
    tree.convert("plant/a", values(3))
    for name in ("_writing-default-00000001-ab", "_writing-default-00000002-cd", "_writing-other-00000001-ef"):
        (target / name).mkdir(parents=True)
        (target / name / "part").write_text("half")
    run_export(spark, ExportOptions(path=str(tree.root), target=str(target)))
    left = sorted(path.name for path in target.iterdir())
    assert left == ["_writing-default-00000002-cd", "_writing-other-00000001-ef", "run=default-00000001"]
    assert spark.read.parquet(str(target)).count() == 3


def test_a_file_system_without_atomic_renames_is_refused(
    spark: SparkSession, tree: SealedTree, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_export.hadoop_files.ATOMIC_RENAME_SCHEMES", frozenset({"hdfs"}))
    with pytest.raises(ExportError, match=r"\(file\) that does not rename directories in one step"):
        FileTarget(spark, ExportOptions(path=str(tree.root), target=str(target)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "/t"}, "needs a path"),
        ({"target": "/t", "path": "/p", "name": "a/b"}, "'a/b', it must have from 1 to 64"),
        ({"target": "/t", "path": "/p", "name": "1e"}, "'1e', which readers take for a number"),
        ({"target": "/t", "path": "/p", "format": "orc"}, "format is 'orc', it must be one of parquet, csv"),
        ({"target": "/t", "path": "/p", "format": "jdbc"}, "needs a JDBC URL"),
        ({"target": "jdbc:derby:x", "path": "/p"}, "needs a JDBC URL"),
        ({"target": "jdbc:derby:x", "path": "/p", "format": "jdbc", "table": "a; drop"}, "'a; drop', it must be"),
        ({"target": "/t", "path": "/p", "partition_by": ("day",)}, "'day', it must be 'date', 'topic'"),
        ({"target": "/t", "path": "/p", "value_as": "xml"}, "value_as is 'xml'"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ExportOptions(**given)  # type: ignore[arg-type]


def test_the_state_of_an_export_comes_back_and_damage_is_named() -> None:
    reached = {"plant/ü": Reached(0xFFFFFFFFFFFFFFFF, 7), "b": Reached(2, 9)}
    places = Places(reached, {"gone": Reached(1, 3, 88)}, (HistoryGap(88, 1 << 40),))
    state = ExportState(3, {"format": "csv"}, places)
    assert ExportState.decode(state.encode(), "here") == state
    first = '{"version": 1, "run": 2, "settings": {"format": "csv"}, "shards": {"a": ["000000000000000f", 7]}}'
    assert ExportState.decode(first, "here") == ExportState(2, {"format": "csv"}, Places({"a": Reached(15, 7)}))
    BEFORE_FIRST.check_settings({"format": "json"}, "default")
    for text in (
        "",
        "{}",
        "[]",
        state.encode()[:-20],
        '{"version": 1, "run": 1, "settings": {}, "shards": {"a": [1]}}',
    ):
        with pytest.raises(Exception, match="here does not have the state of an export"):
            ExportState.decode(text, "here")
    with pytest.raises(Exception, match="here has version 3"):
        ExportState.decode(state.encode().replace('"version": 2', '"version": 3'), "here")
