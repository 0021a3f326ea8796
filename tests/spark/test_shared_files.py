"""The data source over shared files: which rows are read of trees and data directories, and what moves meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from shards.model import SegmentKind
from spark_export.conditions import Condition
from spark_export.errors import DataLossError, UnreadableError
from spark_export.options import parse_options
from spark_export.record_columns import SPARK_SCHEMA
from spark_export.server_connection import ServerConnection
from spark_export.shared_files import SharedFiles
from spark_export.streaming import JournalStreamReader
from tests.faults.processes import running
from tests.spark.any_history import FOLDED, PLAIN
from tests.spark.history_model import ShardModel
from tests.spark.history_player import Append, Delete, Gather, Player, Step, Trim
from tests.spark.sealed_trees import NOW_US, SealedTree, values
from tests.spark.stores import Planned, places, planned
from tests.spark.test_any_history import some

HOUR_US = 3_600_000_000


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    return SealedTree(tmp_path, batch_size=3)


def sorted_places(query: Planned) -> list[tuple[str, int]]:
    return sorted(query.places())


def test_a_tree_has_what_its_own_and_its_shared_files_have(tree: SealedTree) -> None:
    tree.convert("a", values(4))
    tree.gather(("a", values(3, first=4)), ("b", values(5)), ("größe/水", values(2, topic="other")))
    tree.gather(("a", values(2, first=7)), day=1)
    query = planned({"path": tree.root})
    assert sorted_places(query) == [*places("a", range(9)), *places("b", range(5)), *places("größe/水", range(2))]
    assert [row["value"] for row in query.rows() if row["shard"] == "a"] == [each.value for each in values(9)]
    assert {row["topic"] for row in query.rows()} == {"a", "b", "other"}
    assert planned({"path": tree.root, "topics": "other", "shards": "#"}).places() == places("größe/水", range(2))


def test_of_a_tree_with_old_and_rewritten_files_each_row_is_read_once(tree: SealedTree) -> None:
    old = [tree.gather(("a", values(4)), ("b", values(5))), tree.gather(("a", values(4, first=4)), ("c", values(1)))]
    tree.rewrite(*old, without=["b"])
    assert sorted_places(planned({"path": tree.root})) == [
        *places("a", range(8)),
        *places("b", range(5)),
        *places("c", range(1)),
    ]
    old[0].unlink()
    assert sorted_places(planned({"path": tree.root})) == [*places("a", range(8)), *places("c", range(1))]


def test_of_shards_of_one_name_in_a_tree_the_newest_is_read(tree: SealedTree) -> None:
    tree.convert("a", values(9), shard_id=5)
    tree.gather(("a", values(7)), shard_id=6)
    tree.gather(("b", values(2)))
    tree.gather(("a", values(2)), shard_id=8)
    assert sorted_places(planned({"path": tree.root})) == [*places("a", range(2)), *places("b", range(2))]


def test_records_from_a_time_on_are_found_in_shared_files(tree: SealedTree) -> None:
    tree.convert("a", values(2))
    tree.gather(("a", values(8, first=2)), ("b", values(3)), row_group_bytes=1)
    query = planned({"path": tree.root, "startingTimestamp": (NOW_US + 5 * HOUR_US) // 1000})
    assert query.places() == places("a", range(5, 10))


def test_conditions_leave_out_row_groups(tree: SealedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.gather(("a", values(30)), ("b", values(30)), row_group_bytes=1)
    read: list[tuple[int, int]] = []

    def counted(self: SharedFiles, *arguments: Any) -> Iterator[Any]:
        for rows in _rows(self, *arguments):
            read.append((rows.column("shard_id")[0].as_py(), rows.num_rows))
            yield rows

    _rows = SharedFiles.rows
    monkeypatch.setattr(SharedFiles, "rows", counted)
    at = NOW_US + 14 * HOUR_US
    assert planned({"path": tree.root}, Condition("timestamp", "=", at), Condition("shard", "=", "b")).places() == [
        ("b", 14)
    ]
    assert read == [(tree.id_of("b"), 3)]


def test_neighbouring_parts_are_read_from_one_row_group(tree: SealedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{number:03}" for number in range(200)]
    for day in range(3):
        tree.gather(*((name, values(2, first=2 * day)) for name in names), day=day)
    decoded: list[str] = []

    def counted(self: SharedFiles, file: Any, reader: Any, index: int) -> Any:
        decoded.append(file.path)
        return _table(self, file, reader, index)

    _table = SharedFiles._group
    monkeypatch.setattr(SharedFiles, "_group", counted)
    query = planned({"path": tree.root})
    assert len(query.partitions) == 1
    assert sorted_places(query) == [place for name in names for place in places(name, range(6))]
    # All parts of a day before those of the next: one day's row groups are in use at a time.
    assert decoded == sorted(decoded)


def test_rows_that_moved_after_planning_are_found_in_the_other_file(tree: SealedTree) -> None:
    first = tree.gather(("a", values(4)), ("b", values(5)))
    second = tree.gather(("a", values(4, first=4)))
    query = planned({"path": tree.root})
    tree.rewrite(first, second)
    first.unlink()
    second.unlink()
    assert sorted_places(query) == [*places("a", range(8)), *places("b", range(5))]


def test_rows_that_are_in_no_file_any_more_are_a_loss(tree: SealedTree) -> None:
    path = tree.gather(("a", values(4)), ("b", values(5)))
    tree.gather(("a", values(4, first=4)))
    query = planned({"path": tree.root})
    path.unlink()
    with pytest.raises(DataLossError, match=r"shard 'a': the records of offsets 0 up to but not including 4 are in no"):
        query.rows()
    lenient = planned({"path": tree.root, "failOnDataLoss": "false"})
    assert lenient.places() == places("a", range(4, 8))


def test_damage_names_shard_file_and_rows(tree: SealedTree) -> None:
    path = tree.gather(("a", values(40)), ("b", values(5)))
    query = planned({"path": tree.root})
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(UnreadableError, match=rf"shard 'a', offsets 0 .*{path.name}.*row group 0 \(rows 0 to 45\)"):
        query.rows()


def no_look(player: Player) -> None:
    raise AssertionError("nothing is looked at in between")


@pytest.fixture
def player(tmp_path: Path) -> Player:
    """A data directory with shared files that have dead rows: trimmed ones, and those of a deleted shard."""
    player = Player(tmp_path, no_look)
    player.play(
        [
            Append(PLAIN, (some(0, 4), some(4, 6))),
            Append(FOLDED, (some(0, 3, "fold/x"), some(3, 6))),
            Append("gone", (some(0, 4),)),
            Gather(),
            Append(PLAIN, (some(10, 5),)),
            Delete("gone", again=False),
            Trim(FOLDED, 0.4),
            Gather(),
            Append(FOLDED, (some(9, 2),)),
        ]
    )
    return player


def kept(shards: dict[str, ShardModel]) -> list[tuple[str, int]]:
    return sorted((name, offset) for name, one in shards.items() for offset in one.kept if offset >= one.start)


def test_a_directory_at_rest_shows_only_live_rows(player: Player) -> None:
    query = planned({"path": player.directory, "shards": "#"})
    segments = [part.segment for parts in query.partitions for part in parts]
    assert [one.place is not None for one in segments if one.kind is SegmentKind.PARQUET] == [True] * 3
    assert sorted_places(query) == kept(player.shards)


@pytest.mark.slow("reads files of a server that runs")
def test_with_a_server_parts_are_read_from_their_files_and_otherwise_from_it(
    player: Player, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int, int]] = []
    read = ServerConnection.read

    def counted(self: ServerConnection, shard: str, shard_id: int, first: int, end: int) -> Any:
        asked.append((shard, first, end))
        return read(self, shard, shard_id, first, end)

    monkeypatch.setattr(ServerConnection, "read", counted)
    with running(player.directory) as server:
        options = {"path": player.directory, "server": f"127.0.0.1:{server.ports['tcp']}", "shards": "#"}
        query = planned(options)
        assert sorted_places(query) == kept(player.shards)
        assert [one for one in asked if one[0] == PLAIN] == []
        # As on a machine that does not have the files.
        elsewhere = attrs.evolve(query, store=attrs.evolve(query.store, sealed=str(tmp_path / "other"), log=""))
        assert sorted_places(elsewhere) == kept(player.shards)
        assert any(one[0] == PLAIN for one in asked)


@pytest.mark.slow("reads files of a server that runs")
def test_a_stream_reads_each_record_once_while_segments_move_between_planning_and_reading(tmp_path: Path) -> None:
    player = Player(tmp_path, no_look)
    player.play([Append(PLAIN, (some(0, 4),)), Append(FOLDED, (some(0, 9),))])
    options = parse_options({"path": str(player.directory), "shards": "#", "startingOffsets": "earliest"}, "stream")
    reader = JournalStreamReader(options, SPARK_SCHEMA)
    position = reader.initialOffset()
    found: list[tuple[str, int]] = []

    def micro_batch(*meanwhile: Step) -> set[SegmentKind]:
        nonlocal position
        end = reader.latestOffset(position, ReadAllAvailable())
        partitions = reader.partitions(position, end)
        player.play(meanwhile)
        for partition in partitions:
            for batch in reader.read(partition):
                found.extend((row["shard"], row["offset"]) for row in batch.to_pylist())
        position = end
        return {part.segment.kind for one in partitions for part in one.parts}  # type: ignore[attr-defined]

    assert micro_batch(Gather()) == {SegmentKind.LOG}
    player.play([Append(PLAIN, (some(4, 2),)), Append("gone", (some(0, 9),)), Gather(), Append(PLAIN, (some(6, 1),))])
    # Of the file with offsets 4 and 5 most is dead then: it is written again.
    player.play([Delete("gone", again=False)])
    assert micro_batch(Gather()) == {SegmentKind.PARQUET, SegmentKind.LOG}
    assert micro_batch() == set()
    assert sorted(found) == [*places(FOLDED, range(9)), *places(PLAIN, range(7))]
