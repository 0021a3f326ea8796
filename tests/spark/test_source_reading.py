"""What the data source reads of real stores: the records that were there when the query was planned, each once."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest

from broker_adapter import StorageAdapter
from shards.format.record import Record
from shards.model import Mode, SegmentKind, ShardConfig
from shards.parquet.shared_reading import PartOfFile, SharedReader
from spark_export.conditions import Condition
from spark_export.errors import DataLossError, OptionError, UnreadableError
from spark_export.file_access import FileTree
from tests.spark.stores import append, convert, numbered, places, planned, sealed_file, trim, within

YEAR_2100_US = 4_102_444_800_000_000


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that tests only read."""
    directory = tmp_path_factory.mktemp("history") / "data"
    a_history(directory)
    return directory


def a_history(directory: Path) -> None:
    """Shard "a": 10 sealed records, 10 in a closed log, 10 in the open one; shard "b/c": 5 in a log."""
    append(directory, "a", numbered(0, 4), numbered(4, 6))
    convert(directory, "a")
    append(directory, "a", numbered(10, 10))

    async def close(adapter: StorageAdapter) -> None:
        await adapter.roll("a")

    within(directory, close)
    append(directory, "a", numbered(20, 10))
    append(directory, "b/c", numbered(0, 5))


def test_sealed_closed_and_open_segments_are_one_table(history: Path) -> None:
    query = planned({"path": history})
    kinds = [part.segment.kind for parts in query.partitions for part in parts]
    assert sorted(kinds) == sorted([SegmentKind.PARQUET, SegmentKind.LOG, SegmentKind.LOG, SegmentKind.LOG])
    assert sorted(query.places()) == [*places("a", range(30)), *places("b/c", range(5))]
    values = [row["value"] for row in query.rows() if row["shard"] == "a"]
    assert values == [b"%d" % number for number in range(30)]


def test_an_unused_directory_is_read_by_many_at_once(history: Path) -> None:
    found: list[int] = []
    readers = [threading.Thread(target=lambda: found.append(len(planned({"path": history}).rows()))) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [35] * 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"topics": "a"}, places("a", range(30))),
        ({"topics": "b/#"}, places("b/c", range(5))),
        ({"topics": "nothing/+"}, []),
        ({"startingOffsets": {"a": 28}}, [*places("a", range(28, 30)), *places("b/c", range(5))]),
        ({"startingOffsets": {"a": 5, "b/c": "latest"}, "endingOffsets": {"a": 15}}, places("a", range(5, 15))),
        ({"endingOffsets": {"a": 0, "b/c": 2}}, places("b/c", range(2))),
        ({"startingTimestamp": 4}, [*places("a", range(3, 30)), *places("b/c", range(3, 5))]),
        ({"startingTimestamp": 13}, places("a", range(12, 30))),
        ({"startingTimestamp": "1970-01-01T00:00:00.026Z"}, places("a", range(25, 30))),
        ({"minPartitions": 7, "topics": "a"}, places("a", range(30))),
    ],
)
def test_options_choose_records(history: Path, options: dict[str, object], expected: list[tuple[str, int]]) -> None:
    texts = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in options.items()}
    query = planned({"path": history, **texts})
    assert sorted(query.places()) == expected
    assert len(query.partitions) >= int(str(options.get("minPartitions", 0)))


def test_offsets_that_are_not_there_are_an_error_unless_losses_are_allowed(tmp_path: Path) -> None:
    append(tmp_path / "data", "s", numbered(0, 10))
    trim(tmp_path / "data", "s", 4)
    path = {"path": tmp_path / "data"}
    for options, error, named in (
        ({"startingOffsets": '{"s": 1}'}, DataLossError, ["offset 1", "'s'", "from 4 up to but not including 10"]),
        ({"startingOffsets": '{"s": 11}'}, OptionError, ["startingOffsets", "offset 11", "'s'"]),
        ({"endingOffsets": '{"s": 11}'}, OptionError, ["endingOffsets", "offset 11", "'s'"]),
        ({"startingOffsets": '{"t": 1}'}, OptionError, ["startingOffsets", "'t'", "failOnDataLoss"]),
        ({"startingOffsets": '{"s": 8}', "endingOffsets": '{"s": 6}'}, OptionError, ["begin at offset 8", "offset 6"]),
    ):
        with pytest.raises(error) as caught:
            planned({**path, **options})
        for part in named:
            assert part in str(caught.value)
    allowed = {**path, "startingOffsets": '{"s": 1, "t": 1}', "failOnDataLoss": "false"}
    assert planned(allowed).places() == places("s", range(4, 10))


@pytest.mark.slow("reads files of a server that runs")
def test_conditions_choose_rows_and_leave_out_what_cannot_match(history: Path) -> None:
    for conditions, expected in (
        ([Condition("offset", ">=", 8), Condition("offset", "<", 12)], places("a", range(8, 12))),
        ([Condition("offset", "in", (3, 29, 400))], [("a", 3), ("a", 29), ("b/c", 3)]),
        ([Condition("timestamp", "=", 12_000)], [("a", 11)]),
        ([Condition("timestamp", "<=", 2_000), Condition("shard", "=", "a")], places("a", range(2))),
        ([Condition("append_time", "<", 0)], []),
        ([Condition("topic", "in", ("b/c", "x"))], places("b/c", range(5))),
        ([Condition("topic", ">", "a")], places("b/c", range(5))),
    ):
        assert sorted(planned({"path": history}, *conditions).places()) == expected
    query = planned({"path": history}, Condition("shard", "=", "b/c"), Condition("offset", ">", 2))
    assert [(part.shard, part.first_offset) for parts in query.partitions for part in parts] == [("b/c", 3)]


def test_a_record_has_its_own_topic_or_its_shards(tmp_path: Path) -> None:
    data = tmp_path / "data"
    append(data, "$fold/0", [Record(b"1", topic="a/1"), Record(b"2"), Record(b"3", topic="b")], [Record(b"4")])
    append(data, "a/9", [b"5"])
    for _ in ("log", "sealed"):
        everything = planned({"path": data, "shards": "$fold/+,#", "topics": '["#", "$fold/+"]'}).rows()
        assert [(row["topic"], row["value"]) for row in everything] == [
            ("a/1", b"1"),
            ("$fold/0", b"2"),
            ("b", b"3"),
            ("$fold/0", b"4"),
            ("a/9", b"5"),
        ]
        chosen = planned({"path": data, "shards": "$fold/+,#", "topics": "a/+"}).rows()
        assert [row["value"] for row in chosen] == [b"1", b"5"]
        assert [row["value"] for row in planned({"path": data, "topics": "a/+"}).rows()] == [b"5"]
        convert(data, "$fold/0", "a/9")


@pytest.mark.slow("reads files of a server that runs")
def test_expired_records_are_history(tmp_path: Path) -> None:
    append(tmp_path / "data", "s", [Record(b"gone", expires_at_us=1), Record(b"there", expires_at_us=YEAR_2100_US)])
    for _ in ("log", "sealed"):
        assert [row["value"] for row in planned({"path": tmp_path / "data"}).rows()] == [b"gone", b"there"]
        convert(tmp_path / "data", "s")


@pytest.mark.slow("reads files of a server that runs")
def test_a_log_that_was_sealed_after_planning_is_read_from_its_parquet_file(tmp_path: Path) -> None:
    a_history(tmp_path / "data")
    query = planned({"path": tmp_path / "data"})
    append(tmp_path / "data", "a", numbered(30, 5))
    convert(tmp_path / "data", "a", "b/c")
    assert not list((tmp_path / "data" / "log").rglob("*.log"))
    assert sorted(query.places()) == [*places("a", range(30)), *places("b/c", range(5))]


def test_what_was_trimmed_after_planning_is_lost_with_its_place_in_the_error(tmp_path: Path) -> None:
    a_history(tmp_path / "data")
    for allowed in ("true", "false"):
        query = planned({"path": tmp_path / "data", "failOnDataLoss": allowed, "startingOffsets": '{"a": 10}'})
        if allowed == "true":
            trim(tmp_path / "data", "a", 20)
            convert(tmp_path / "data", "a")
            with pytest.raises(DataLossError, match=r"'a'.*offsets 10 up to but not including 20.*failOnDataLoss"):
                query.rows()
        else:
            assert sorted(query.places()) == [*places("a", range(20, 30)), *places("b/c", range(5))]


@pytest.mark.slow("reads files of a server that runs")
def test_a_trim_inside_a_sealed_segment_hides_the_records_below(tmp_path: Path) -> None:
    append(tmp_path / "data", "s", numbered(0, 10))
    convert(tmp_path / "data", "s")
    trim(tmp_path / "data", "s", 7)
    assert planned({"path": tmp_path / "data"}).places() == places("s", range(7, 10))
    # The files alone do not tell.
    assert planned({"path": tmp_path / "data" / "sealed"}).places() == places("s", range(10))


@pytest.mark.few_cases(1, "a failure in each step")
@pytest.mark.parametrize("damage", [100, -20, -3_000])
def test_a_damaged_sealed_segment_is_named_and_other_shards_are_read(tmp_path: Path, damage: int) -> None:
    data = tmp_path / "data"
    for shard in ("broken", "whole"):
        append(data, shard, [Record(b"%d" % number * 200) for number in range(2_000)])
    convert(data, "broken", "whole")
    path = sealed_file(data, "broken")
    content = bytearray(path.read_bytes())
    content[damage] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(UnreadableError) as caught:
        planned({"path": data}).rows()
    for part in (str(path), "'broken'", "offsets 0 up to but not including 2000"):
        assert part in str(caught.value)
    assert len(planned({"path": data, "shards": "whole"}).rows()) == 2_000


def test_a_damaged_log_is_named_with_its_place(tmp_path: Path) -> None:
    append(tmp_path / "data", "s", numbered(0, 100), numbered(100, 100))
    query = planned({"path": tmp_path / "data"})
    (path,) = (tmp_path / "data" / "log").rglob("*.log")
    content = bytearray(path.read_bytes())
    content[-1_000] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(UnreadableError) as caught:
        query.rows()
    for part in (str(path), "'s'", "offsets 0 up to but not including 200", "checksum"):
        assert part in str(caught.value)


@pytest.mark.slow("reads files of a server that runs")
def test_a_copied_tree_of_sealed_segments_is_read_without_its_directory(tmp_path: Path) -> None:
    long_name = "long/" + "x" * 400
    for shard in ("a", long_name, "$internal/b"):
        append(tmp_path / "data", shard, numbered(0, 6))
    convert(tmp_path / "data", "a", long_name, "$internal/b")
    append(tmp_path / "data", "a", numbered(6, 4))
    shutil.copytree(tmp_path / "data" / "sealed", tmp_path / "copy" / "sealed")
    for path in (tmp_path / "copy", tmp_path / "copy" / "sealed", f"file://{tmp_path}/copy"):
        query = planned({"path": path})
        assert query.places() == [*places("a", range(6)), *places(long_name, range(6))]
        since = planned({"path": path, "startingTimestamp": 5})
        assert since.places() == [*places("a", range(4, 6)), *places(long_name, range(4, 6))]


@pytest.mark.slow("reads files of a server that runs")
def test_a_deleted_shard_of_the_same_name_is_not_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    append(data, "s", numbered(0, 6))
    convert(data, "s")
    (old,) = (data / "sealed").rglob("*.parquet")
    kept = old.read_bytes()

    async def delete(adapter: StorageAdapter) -> None:
        await adapter.delete_shard("s")

    within(data, delete)
    append(data, "s", numbered(50, 3))
    convert(data, "s")
    old.write_bytes(kept)
    assert [row["value"] for row in planned({"path": data / "sealed"}).rows()] == [b"50", b"51", b"52"]


def test_a_file_on_an_object_store_is_read_in_few_requests(tmp_path: Path) -> None:
    append(tmp_path / "data", "s", numbered(0, 500))
    convert(tmp_path / "data", "s")
    tree = FileTree(str(tmp_path / "data" / "sealed"))
    (path,) = (path for path, size in tree.files() if size >= 0 and path.endswith(".parquet") and "date=" in path)
    tree.is_local = False
    with SharedReader(tree.file_system, tree.shown(path)) as reader:
        (shard_id,) = reader.shard_ids()
        groups = reader.groups_of(PartOfFile(shard_id, 0, 500, 0))
        rows = [reader.rows_for_batches(group.index) for group in groups]
    assert [value for each in rows for value in each["offset"].to_pylist()] == list(range(500))


@pytest.mark.parametrize("path", ["/nowhere/at/all", "s3x://bucket/sealed"])
def test_a_path_that_cannot_be_read_is_named(path: str) -> None:
    with pytest.raises(UnreadableError, match=path):
        planned({"path": path})


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UnreadableError, match=r"neither a data directory.*notes\.txt"):
        planned({"path": tmp_path})


def test_records_of_memory_mode_are_gone_with_the_node_and_no_error(tmp_path: Path) -> None:
    async def work(adapter: StorageAdapter) -> None:
        await adapter.create_shard("s", ShardConfig(mode=Mode.MEMORY))
        await adapter.append("s", [b"lost"])
        await adapter.set_mode("s", Mode.FILE)
        await adapter.append("s", [b"kept"])

    within(tmp_path / "data", work)
    assert [row["value"] for row in planned({"path": tmp_path / "data"}).rows()] == [b"kept"]


@pytest.mark.slow("reads files of a server that runs")
def test_as_a_queue_it_gives_what_a_consumer_would_get(tmp_path: Path) -> None:
    records = [
        Record(b"0", timestamp_us=1),
        Record(b"1", topic="$SYS/load", timestamp_us=1),
        Record(b"2", expires_at_us=1, timestamp_us=1),
        Record(b"3", topic="plant/a", expires_at_us=YEAR_2100_US, timestamp_us=1),
        Record(b"4", topic="$SYS/load", expires_at_us=2, timestamp_us=1),
    ]
    append(tmp_path, "$queue/q", records)
    for _ in ("log", "sealed"):
        assert planned({"path": tmp_path, "shards": "$queue/q"}).places() == places("$queue/q", range(3, 4))
        rows = planned({"path": tmp_path, "shards": "$queue/q", "asQueue": True}).rows()
        assert [(row["offset"], row["topic"]) for row in rows] == [(0, "$queue/q"), (1, "$SYS/load"), (3, "plant/a")]
        convert(tmp_path, "$queue/q")


def test_a_tree_in_which_nothing_is_sealed_was_called_no_tree(tmp_path: Path) -> None:
    """It holds the hidden marker of its data directory."""
    (tmp_path / ".node").write_text("{}")
    assert planned({"path": tmp_path}).rows() == []
