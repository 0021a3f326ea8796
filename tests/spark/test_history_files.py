"""Shared files for readers without Spark: which rows are live, in DuckDB and in statistics."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pytest

from shards.format.record import Record
from spark_export import connect_duckdb
from spark_export.cli.main import run
from spark_export.discovery import take_snapshot
from spark_export.history_files import HistoryFiles, history_files
from spark_export.options import parse_options
from tests.spark.history_model import kept_rows
from tests.spark.history_player import Append, Convert, Delete, Gather, Player, Trim
from tests.spark.sealed_trees import SealedTree, values
from tests.spark.stores import places
from tests.spark.test_any_history import some


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    return SealedTree(tmp_path)


def rows(directory: Path, query: str) -> list[tuple[Any, ...]]:
    with connect_duckdb(str(directory)) as connection:
        return connection.execute(query).fetchall()


def files_of(directory: Path) -> HistoryFiles:
    return history_files(take_snapshot(parse_options({"path": str(directory)}, "batch"), with_segments=True))


def test_all_files_are_one_table(tree: SealedTree) -> None:
    tree.convert("plant/a", values(4))
    tree.gather(("plant/a", values(3, first=4)), ("b", values(5, topic="own")), ("日本/é ü", values(2)))
    tree.gather(("plant/a", values(2, first=7)), day=1)
    assert rows(tree.root, 'select shard, "offset" from records order by all') == [
        *places("b", range(5)), *places("plant/a", range(9)), *places("日本/é ü", range(2)),
    ]  # fmt: skip
    assert rows(tree.root, "select date, count(*) from sealed where shard = 'plant/a' group by 1 order by 1") == [
        (date(2026, 3, 1), 7),
        (date(2026, 3, 2), 2),
    ]
    assert rows(tree.root, "select distinct topic from records order by 1") == [("own",), ("plant/a",), ("日本/é ü",)]
    assert rows(tree.root, "select sum((value->>'$.n')::int) from records where topic = 'plant/a'") == [(36,)]


def test_a_condition_on_the_date_opens_only_the_files_of_that_day(tree: SealedTree) -> None:
    tree.gather(("a", values(3)), ("b", values(3)))
    later = tree.gather(("a", values(3, first=3)), day=1)
    with connect_duckdb(str(tree.root)) as connection:
        later.write_bytes(b"damaged")
        first = "select count(*) from records where date = '2026-03-01'"
        assert connection.execute(first).fetchall() == [(6,)]
        assert connection.execute("select count(*) from records where date < '2026-03-02'").fetchall() == [(6,)]
        with pytest.raises(duckdb.Error):
            connection.execute("select sum(\"offset\") from records where date >= '2026-03-02'").fetchall()


def test_rows_of_old_and_rewritten_files_are_shown_once(tree: SealedTree) -> None:
    old = [tree.gather(("a", values(4)), ("b", values(5))), tree.gather(("a", values(4, first=4)), ("c", values(1)))]
    tree.rewrite(*old, without=["b"])
    assert rows(tree.root, 'select shard, "offset" from records order by all') == [
        *places("a", range(8)), *places("b", range(5)), *places("c", range(1)),
    ]  # fmt: skip


@pytest.fixture
def mixed(tmp_path: Path) -> Player:
    """A directory with shared files that have dead rows, sealed segments of one shard, and records in a log."""
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
            Append("plant/a", (some(8, 2),)),
        ]
    )
    return player


@pytest.mark.slow("gathers in a store")
def test_a_directory_shows_live_rows_and_what_is_not_sealed(mixed: Player) -> None:
    live = sorted((row[1], row[2]) for row in kept_rows(mixed.shards))
    assert rows(mixed.directory, 'select shard, "offset" from records order by all') == live
    files = files_of(mixed.directory)
    # What is trimmed inside a segment stays with it. What was deleted stays until its file is rewritten or, if it was
    # alone in one, deleted.
    [(deleted,)] = duckdb.execute(
        "select count(*) from read_parquet($1) where shard = 'gone'", [[each.path for each in files.sealed]]
    ).fetchall()
    assert sum(each.rows - each.live_rows for each in files.sealed) == 2 + deleted
    assert sum(each.live_rows for each in files.sealed) + sum(
        part.next_offset - part.first_offset for part in files.rest
    ) == len(live)


@pytest.mark.slow("gathers in a store")
def test_statistics_by_day_count_dead_rows(mixed: Player, capsys: pytest.CaptureFixture[str]) -> None:
    files = files_of(mixed.directory).sealed
    assert [each.size_bytes for each in files] == [Path(each.path).stat().st_size for each in files]
    assert run(["stats", str(mixed.directory), "--by", "day", "--json"]) == 0
    days = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(day.get("dead_bytes", 0) for day in days) == sum(
        each.size_bytes * (each.rows - each.live_rows) // each.rows for each in files
    )
    assert sum(day.get("dead_bytes", 0) for day in days) > 0
    assert sum(day["records"] for day in days) == len(kept_rows(mixed.shards))


def test_payloads_of_shared_files_are_json_text_and_bytes(tree: SealedTree) -> None:
    tree.gather(("a", [Record(b'{"t": 1}'), Record(b"\xff")]))
    assert rows(tree.root, 'select value, text, payload from records order by "offset"') == [
        ('{"t": 1}', '{"t": 1}', b'{"t": 1}'),
        (None, None, b"\xff"),
    ]
