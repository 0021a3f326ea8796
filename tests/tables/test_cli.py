"""The command in this process: its lines, its errors, and several tables that do not hold each other up."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from spark_export.cli.main import run
from spark_export.tables.follower import TableFailure, TableFollower
from spark_export.tables.updater import AddedBatch
from tests.spark.stores import append, trim
from tests.tables.declared import TOPIC, declared, expected, offsets, payloads, source

TABLE = """
[[table]]
name = "{name}"
directory = "{place}/{name}"
topics = ["{topic}"]
fields = {{ temperature = "$.temperature" }}
types = {{ temperature = "{kind}" }}
"""


def config(place: Path, kind: str = "float") -> str:
    tables = [TABLE.format(name=name, place=place, topic=name, kind=kind) for name in ("a", "b")]
    (place / "tables.toml").write_text(f'[source]\ndirectory = "{place}/data"\n' + "".join(tables))
    return str(place / "tables.toml")


def test_once_adds_what_is_there_to_each_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path / "data", "a", payloads(0, 2))
    append(tmp_path / "data", "b", [b"{"])
    assert run(["tables", config(tmp_path), "--once"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("a: batch 1 added 2 records (")
    assert first.endswith("/s), up to date")
    assert second.endswith("/s), 1 with a problem, up to date")
    append(tmp_path / "data", "a", payloads(2, 1))
    assert run(["tables", config(tmp_path), "--once", "--only", "a", "--json"]) == 0
    [report] = map(json.loads, capsys.readouterr().out.splitlines())
    assert report["event"] == "batch"
    assert (report["table"], report["batch"], report["version"], report["records"], report["bad_records"]) == (
        *("a", 2, 2, 1, 0),
    )
    assert run(["tables", config(tmp_path, "text"), "--once", "--only", "a"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert "has the column 'temperature' as float, now it is declared as text" in told[0]
    assert told[1] == "journal-spark: not up to date: a; the reasons are above"
    assert run(["tables", config(tmp_path, "text"), "--once", "--only", "a", "--rebuild", "a"]) == 0
    assert capsys.readouterr().out.startswith("a: batch 4 added 3 records (")


def test_wrong_use_is_told_in_a_line_for_each_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JOURNAL_SERVER", raising=False)
    file = tmp_path / "t.toml"
    assert run(["tables", str(file)]) == 1
    assert capsys.readouterr().err == f"journal-spark: {file}: No such file or directory\n"
    file.write_text(TABLE.format(name="a", place=tmp_path, topic="#", kind="float"))
    assert run(["tables", str(file)]) == 2
    assert "t.toml has no [source]; add one with directory or server" in capsys.readouterr().err
    assert run(["tables", str(file), str(tmp_path), "--only", "b"]) == 2
    assert capsys.readouterr().err == "journal-spark: --only names b; declared are a\n"
    file.write_text("[[table]]\nname = 1")
    assert run(["tables", str(file), str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "[[table]] number 1: name = 1 must be a text" in told


@pytest.mark.slow("starts the program several times")
def test_a_table_that_has_failed_does_not_hold_up_the_others(tmp_path: Path) -> None:
    for first in range(0, 40, 10):
        append(tmp_path / "data", "b/1", payloads(first, 10))
    lossy = declared(tmp_path, name="lossy", directory=str(tmp_path / "lossy"), topics=("b/#",))
    TableFollower([lossy], source(tmp_path), lambda _: None, once=True).run()
    append(tmp_path / "data", "b/1", payloads(40, 10))
    append(tmp_path / "data", "b/1", payloads(50, 10))
    append(tmp_path / "data", TOPIC, payloads(0, 3))
    trim(tmp_path / "data", "b/1", 55)
    table = declared(tmp_path, max_records=1)
    reports: list[object] = []
    stopping = threading.Event()

    def report(found: object) -> None:
        reports.append(found)
        if isinstance(found, AddedBatch) and not found.behind:
            stopping.set()

    failed = TableFollower([lossy, table], source(tmp_path), report, stopping=stopping).run()
    assert failed == ["lossy"]
    [failure] = [each for each in reports if isinstance(each, TableFailure)]
    assert failure.is_final
    assert "the records below were trimmed" in failure.error
    assert offsets(table) == expected((TOPIC, 3))


@pytest.mark.slow("starts the program several times")
def test_tables_take_turns_of_a_batch(tmp_path: Path) -> None:
    append(tmp_path / "data", TOPIC, payloads(0, 3))
    tables = [
        declared(tmp_path, name=name, directory=str(tmp_path / name), max_records=1) for name in ("first", "second")
    ]
    order: list[str] = []
    TableFollower(tables, source(tmp_path), lambda report: order.append(report.table), once=True).run()
    assert order == ["first", "second"] * 3
