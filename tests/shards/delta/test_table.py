"""The table as other programs read it: the same rows, file by file as it is wanted, and again after damage."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from shards.delta.actions import TableRequest, TableVersion, table_path
from shards.delta.library import DeltaLibrary
from shards.delta.log_files import LOG
from shards.delta.schema import COMMENTS
from shards.delta.table import update_table
from shards.format.record import Record
from shards.seams.os_file_system import OsFileSystem
from tests.shards.batches import NOW_US
from tests.shards.delta.tables import DAY, Key, Shelf, logs_of
from tests.shards.parquet.shared_files import DAY_US

NOW_MS = NOW_US // 1000


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(OsFileSystem(), str(tmp_path))


def update(shelf: Shelf, wanted: list[Key], lsn: int = 100) -> TableVersion:
    request = TableRequest(shelf.root, lsn, tuple(sorted(wanted)))
    return update_table(shelf.files, request, DeltaLibrary(), NOW_MS)


def paths(shelf: Shelf) -> list[str]:
    return sorted(DeltaTable(shelf.root).get_add_actions().column("path").to_pylist())


def rows(shelf: Shelf) -> list[tuple[str, int, bytes]]:
    table = DeltaTable(shelf.root).to_pyarrow_table(columns=["shard", "offset", "value"])
    return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def test_three_readers_find_the_rows(shelf: Shelf) -> None:
    wanted = shelf.put(1, logs_of("plant/a", "plant/\u00fc", values=[b"1", b"\x00\xff"], later_us=DAY_US))
    assert update(shelf, wanted) == TableVersion(0, added=1, committed_ms=NOW_MS)
    expected = [
        (name, offset, value) for name in ("plant/a", "plant/\u00fc") for offset, value in ((0, b"1"), (1, b"\x00\xff"))
    ]
    assert rows(shelf) == sorted(expected)
    frame = pl.scan_delta(shelf.root).filter(pl.col("offset") == 1).select("shard", "offset", "value").collect()
    assert sorted(frame.rows()) == sorted(row for row in expected if row[1] == 1)
    dataset = DeltaTable(shelf.root).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("records", dataset)
        found = database.sql("SELECT shard, \"offset\", value FROM records WHERE date = '2023-11-15'").fetchall()
    assert sorted(found) == sorted(expected)


def test_each_column_has_a_comment(shelf: Shelf) -> None:
    update(shelf, shelf.put(1, logs_of("a")))
    table = DeltaTable(shelf.root)
    assert {field.name: field.metadata["comment"] for field in table.schema().fields} == COMMENTS
    assert table.metadata().partition_columns == ["date"]
    assert [field.name for field in table.schema().fields if field.nullable] == ["date", "expires_at"]


def test_one_commit_replaces_files_and_none_is_made_twice(shelf: Shelf) -> None:
    first, second = shelf.put(1, logs_of("a")), shelf.put(2, logs_of("b"))
    assert update(shelf, first).version == 0
    assert update(shelf, second) == TableVersion(1, added=1, removed=1, committed_ms=NOW_MS)
    assert update(shelf, second) == TableVersion(1, committed_ms=NOW_MS)
    assert paths(shelf) == [table_path(*second[0])]
    assert DeltaTable(shelf.root, version=0).get_add_actions().column("path").to_pylist() == [table_path(*first[0])]


def test_a_table_may_have_no_file(shelf: Shelf) -> None:
    assert update(shelf, []) == TableVersion(0, committed_ms=NOW_MS)
    assert rows(shelf) == []
    assert update(shelf, []) == TableVersion(0, committed_ms=NOW_MS)


def test_its_statistics_let_readers_leave_out_files(shelf: Shelf) -> None:
    wanted = [*shelf.put(1, logs_of("a", "b")), *shelf.put(2, logs_of("c", "d"))]
    update(shelf, wanted)
    dataset = DeltaTable(shelf.root).to_pyarrow_dataset()

    def read_for(condition: pc.Expression) -> list[int]:
        return sorted(int(fragment.path[-24:-8], 16) for fragment in dataset.get_fragments(condition))

    assert read_for(pc.field("shard") == "b") == [1]
    assert read_for(pc.field("topic") == "c") == [2]
    assert read_for(pc.field("offset") > 1) == []
    assert read_for(pc.field("lsn") >= 5) == [1, 2]
    second_us = pa.scalar(NOW_US + 1_000_000, pa.timestamp("us", tz="UTC"))
    assert read_for(pc.field("append_time") > second_us) == []
    assert read_for(pc.field("timestamp") < second_us) == [1, 2]
    actions = DeltaTable(shelf.root).get_add_actions(flatten=True)
    assert actions.column("num_records").to_pylist() == [4, 4]
    assert actions.column("null_count.lsn").to_pylist() == [0, 0]


def test_topics_and_times_that_statistics_cannot_have_hide_no_file(shelf: Shelf) -> None:
    (long,), (late,) = logs_of("long"), logs_of("late")
    (batch,) = long.batches
    long = attrs.evolve(long, batches=[attrs.evolve(batch, records=[Record(b"1", topic="z" * 5000)])])
    late = attrs.evolve(late, batches=[attrs.evolve(batch, records=[Record(b"1", timestamp_us=2**62)])])
    update(shelf, [*shelf.put(1, [long]), *shelf.put(2, [late])])
    dataset = DeltaTable(shelf.root).to_pyarrow_dataset()
    this_year = pa.scalar(NOW_US, pa.timestamp("us", tz="UTC"))
    assert dataset.count_rows(pc.field("topic") == "z" * 5000) == 1
    assert dataset.count_rows(pc.field("topic") == "late") == 1
    assert dataset.count_rows(pc.field("timestamp") > this_year) == 1
    assert dataset.count_rows(pc.field("timestamp") <= this_year) == 1
    assert pl.scan_delta(shelf.root).filter(pl.col("topic") == "z" * 5000).select("shard").collect().rows() == [
        ("long",)
    ]


@pytest.mark.parametrize("column", sorted(COMMENTS))
def test_a_filter_on_any_column_finds_the_rows(shelf: Shelf, column: str) -> None:
    update(shelf, [*shelf.put(1, logs_of("a")), *shelf.put(2, logs_of("b"))])
    dataset = DeltaTable(shelf.root).to_pyarrow_dataset()
    field = pc.field(column)
    assert dataset.count_rows(field.is_null() if column == "expires_at" else field.is_valid()) == 4
    if column in ("key", "value", "own_topic"):
        first = dataset.to_table().column(column)[0]
        assert dataset.count_rows(field == first) >= 2


def log_lines(shelf: Shelf, version: int) -> list[str]:
    return Path(shelf.root, LOG, f"{version:020}.json").read_text().splitlines()


def test_a_file_that_was_written_again_is_no_change_for_streams(shelf: Shelf) -> None:
    (log,) = logs_of("a")
    update(shelf, first := shelf.put(1, [log]))
    update(shelf, shelf.rewrite(2, log, first))
    changes = [json.loads(line) for line in log_lines(shelf, 1)]
    assert [change["add"]["dataChange"] for change in changes if "add" in change] == [False]
    assert [change["remove"]["dataChange"] for change in changes if "remove" in change] == [False]
    assert rows(shelf) == [("a", 0, b"1"), ("a", 1, b"2")]


def truncate(log: Path) -> None:
    os.truncate(log / f"{1:020}.json", 40)


def lose_the_first(log: Path) -> None:
    (log / f"{0:020}.json").unlink()


def change_the_schema(log: Path) -> None:
    other = pa.table({"date": ["2023-11-14"], "other": [1]})
    write_deltalake(str(log.parent), other, mode="overwrite", schema_mode="overwrite", partition_by=["date"])


def raise_the_protocol(log: Path) -> None:
    (log / f"{2:020}.json").write_text('{"protocol":{"minReaderVersion":1,"minWriterVersion":5}}\n')


def commit_what_the_journal_lost(log: Path) -> None:
    (log / f"{2:020}.json").write_text('{"txn":{"appId":"journal","version":101,"lastUpdated":1}}\n')


@pytest.mark.parametrize(
    "damage", [truncate, lose_the_first, change_the_schema, raise_the_protocol, commit_what_the_journal_lost]
)
def test_a_table_that_cannot_be_used_is_moved_aside_and_made_anew(shelf: Shelf, damage: object) -> None:
    wanted = shelf.put(1, logs_of("a"))
    update(shelf, [])
    update(shelf, wanted)
    damage(Path(shelf.root, LOG))  # type: ignore[operator]
    aside = Path(shelf.root, "_delta_log.unreadable")
    made = update(shelf, wanted)
    assert (made.version, made.added) == (0, 1)
    assert re_made(made.warnings, shelf)
    assert rows(shelf) == [("a", 0, b"1"), ("a", 1, b"2")]
    assert (aside / f"{1:020}.json").exists()
    # A second time: what was moved aside first is replaced.
    Path(shelf.root, LOG, f"{0:020}.json").write_text("{")
    assert re_made(update(shelf, wanted).warnings, shelf)
    assert os.listdir(aside) == [f"{0:020}.json"]
    assert rows(shelf) == [("a", 0, b"1"), ("a", 1, b"2")]


def put_a_file(log: Path) -> None:
    log.write_text("x")


def link_to_nothing(log: Path) -> None:
    log.symlink_to("/nonexistent/x")


def link_to_a_file(log: Path) -> None:
    target = log.with_name("target")
    target.write_text("x")
    log.symlink_to(target)


@pytest.mark.parametrize("put", [put_a_file, link_to_nothing, link_to_a_file])
def test_what_is_in_the_way_of_the_log_is_moved_aside(shelf: Shelf, put: Callable[[Path], None]) -> None:
    wanted = shelf.put(1, logs_of("a"))
    log, aside = Path(shelf.root, LOG), Path(shelf.root, "_delta_log.unreadable")
    # A second time: what was moved aside first is replaced.
    for _ in range(2):
        update(shelf, wanted)
        shutil.rmtree(log)
        put(log)
        made = update(shelf, wanted)
        assert (made.version, made.added) == (0, 1)
        assert re_made(made.warnings, shelf)
        assert not aside.is_dir()
        assert os.path.lexists(aside)
        assert rows(shelf) == [("a", 0, b"1"), ("a", 1, b"2")]
    # A log takes the place of a file or link that was moved aside before, and what the link leads to stays.
    Path(log, f"{0:020}.json").write_text("{")
    assert re_made(update(shelf, wanted).warnings, shelf)
    assert aside.is_dir()
    assert put is not link_to_a_file or log.with_name("target").exists()


def test_an_error_of_the_disk_is_not_taken_for_something_in_the_way(shelf: Shelf) -> None:
    """The log stays where it is: it may be sound."""
    wanted = shelf.put(1, logs_of("a"))
    update(shelf, wanted)

    class Refusing(OsFileSystem):
        def listdir(self, path: str) -> list[str]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with pytest.raises(OSError, match="Input/output error"):
        update_table(Refusing(), TableRequest(shelf.root, 100, tuple(wanted)), DeltaLibrary(), 0)
    assert not Path(shelf.root, "_delta_log.unreadable").exists()
    assert rows(shelf) == [("a", 0, b"1"), ("a", 1, b"2")]


def re_made(warnings: tuple[str, ...], shelf: Shelf) -> bool:
    (warning,) = warnings
    return warning.startswith(f"the Delta table is made anew, its log is now in {shelf.root}/_delta_log.unreadable: ")


def test_files_that_another_program_adds_go_with_the_next_commit(shelf: Shelf) -> None:
    wanted = shelf.put(1, logs_of("a"))
    update(shelf, wanted)
    table = DeltaTable(shelf.root)
    write_deltalake(table, table.to_pyarrow_table(), mode="append")
    assert len(rows(shelf)) == 4
    assert update(shelf, wanted).removed == 1
    assert len(rows(shelf)) == 2


def test_a_disk_that_refuses_is_no_damage(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = shelf.put(1, logs_of("a"))
    update(shelf, wanted)
    truncate_to = Path(shelf.root, LOG, f"{0:020}.json")
    content = truncate_to.read_bytes()
    truncate_to.write_bytes(content[:40])
    with monkeypatch.context() as patch:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, "Input/output error", str(truncate_to))

        patch.setattr(shelf.files, "open", refuse, raising=False)
        with pytest.raises(OSError, match="Input/output error"):
            update(shelf, wanted)
    truncate_to.write_bytes(content)
    assert update(shelf, wanted) == TableVersion(0, committed_ms=NOW_MS)


def test_a_damaged_file_is_left_out_and_the_others_are_there(shelf: Shelf) -> None:
    wanted = [*shelf.put(1, logs_of("a")), *shelf.put(2, logs_of("b")), (DAY, 3)]
    path = Path(shelf.root, table_path(*wanted[0]))
    os.truncate(path, 100)
    made = update(shelf, wanted)
    assert made.added == 1
    assert [str(path) in warning or "0000000000000003" in warning for warning in made.left_out] == [True, True]
    assert {name for name, _, _ in rows(shelf)} == {"b"}
    assert update(shelf, wanted).version == 0


def test_the_log_is_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints replace commits, which are removed when they are older than the table keeps them."""
    monkeypatch.setattr("shards.delta.log_library.CHECKPOINT_EVERY", every := 5)
    first, second = shelf.put(1, logs_of("a")), shelf.put(2, logs_of("b"))
    log = Path(shelf.root, LOG)
    for number in range(2 * every + 3):
        assert update(shelf, [first, second][number % 2]).warnings == ()
        for path in log.iterdir():
            # Long ago.
            os.utime(path, (NOW_US // 1_000_000, NOW_US // 1_000_000))
    versions = [int(name[:20]) for name in os.listdir(log) if name.endswith(".json")]
    assert len(versions) <= every + 3
    assert max(versions) == 2 * every + 2
    assert paths(shelf) == [table_path(*first[0])]
    assert update(shelf, first).added == 0
