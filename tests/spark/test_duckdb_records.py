"""The history in DuckDB: the same records as in Spark and from the server, without Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from shards.format.record import Record
from spark_export import connect_duckdb, duckdb_records
from spark_export.cli.main import run
from spark_export.errors import UnreadableError
from tests.faults.processes import running
from tests.spark.sealed_trees import NOW_US, SealedTree, values
from tests.spark.stores import append, convert, numbered, trim
from tests.spark.test_cli_stats import SIZES
from tests.spark.test_sealed_table import ODD_NAMES


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]):
    def ask(place: object, query: str, *arguments: str, status: int = 0) -> tuple[Any, str]:
        given = ["sql", str(place), query, "--engine", "duckdb", "--json", *arguments]
        assert run(given) == status
        told = capfd.readouterr()
        return [json.loads(line) for line in told.out.splitlines()], told.err

    return ask


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    tree = SealedTree(tmp_path)
    readings = [b'{"temperature": 20.5, "unit": "C"}', b"21", b"\xff", b'{"temperature": "warm"}']
    tree.convert("plant/1/temperature", [Record(value=value, timestamp_us=NOW_US + 1) for value in readings])
    tree.convert("plant/2", [Record(value=b"{", key=b"k", headers=(("a", b"b"),), tags=("red",))])
    tree.convert("folded", values(2, topic="plant/1/odd"))
    return tree


def rows(directory: Path, query: str) -> list[tuple[Any, ...]]:
    with connect_duckdb(str(directory)) as connection:
        return connection.execute(query).fetchall()


def test_json_text_and_bytes_of_values(ask, tree: SealedTree) -> None:
    query = (
        "select offset, value, text, payload, value:unit::string as unit, try_cast(value:temperature as double) as t "
        "from records where topic = 'plant/1/temperature' order by offset"
    )
    found, err = ask(tree.root, query)
    assert found == [
        {
            "offset": 0,
            "value": {"temperature": 20.5, "unit": "C"},
            "text": '{"temperature": 20.5, "unit": "C"}',
            "payload": '{"temperature": 20.5, "unit": "C"}',
            "unit": "C",
            "t": 20.5,
        },
        {"offset": 1, "value": 21, "text": "21", "payload": "21", "unit": None, "t": None},
        {"offset": 2, "value": None, "text": None, "payload_base64": "/w==", "unit": None, "t": None},
        {
            "offset": 3,
            "value": {"temperature": "warm"},
            "text": '{"temperature": "warm"}',
            "payload": '{"temperature": "warm"}',
            "unit": None,
            "t": None,
        },
    ]
    assert err == ""


def test_levels_of_topics_are_counted_from_0(ask, tree: SealedTree) -> None:
    query = "select distinct topic[0] as a, topic[1] as b, topic[2] as c, topic[-1] as z from records order by z"
    assert ask(tree.root, query)[0] == [
        {"a": "plant", "b": "2", "c": None, "z": "2"},
        {"a": "plant", "b": "1", "c": "odd", "z": "odd"},
        {"a": "plant", "b": "1", "c": "temperature", "z": "temperature"},
    ]


def test_times_and_the_day(ask, tree: SealedTree) -> None:
    query = (
        "select timestamp, date, append_time >= '2026-03-01 12:00:00' as later, date = '2026-03-01' as same "
        "from sealed where topic = 'plant/1/temperature' and offset = 1"
    )
    assert ask(tree.root, query)[0] == [
        {"timestamp": "2026-03-01T12:00:00.000001Z", "date": "2026-03-01", "later": True, "same": True}
    ]


def test_the_other_columns_are_those_of_the_record(ask, tree: SealedTree) -> None:
    found, _ = ask(tree.root, "select topic, shard, key, headers, tags from records where shard = 'plant/2'")
    assert found == [
        {
            "topic": "plant/2",
            "shard": "plant/2",
            "key": "k",
            "headers": [{"key": "a", "value": "b"}],
            "tags": ["red"],
        }
    ]


def test_any_shard_name_comes_back_as_it_is(tmp_path: Path) -> None:
    tree = SealedTree(tmp_path)
    for number, name in enumerate(ODD_NAMES, 1):
        tree.convert(name, values(number))
    found = rows(tree.root, "select shard, topic, count(*) from sealed group by 1, 2")
    assert {shard: count for shard, _, count in found} == {name: n for n, name in enumerate(ODD_NAMES, 1)}
    assert all(shard == topic for shard, topic, _ in found)


@pytest.mark.parametrize(
    ("topics", "count"),
    [("plant/1/#", 6), ("+/2", 1), ("plant/1/odd,plant/2", 3), ("#", 7), ("no/such", 0)],
)
def test_topics_select_records(ask, tree: SealedTree, topics: str, count: int) -> None:
    """`folded` is a shard whose records have topics of their own, so it is named as well."""
    with connect_duckdb(str(tree.root), topics="#") as connection:
        condition = " or ".join(duckdb_records._matches(each) for each in topics.split(","))
        assert connection.execute(f"select count(*) from records where {condition}").fetchall() == [(count,)]


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A data directory at rest: sealed segments, a trimmed one, and records that are not sealed."""
    directory = tmp_path / "data"
    append(directory, "plant/1", numbered(0, 3))
    convert(directory, "plant/1")
    append(directory, "plant/1", numbered(3, 2))
    append(directory, "plant/2", numbered(0, 2))
    trim(directory, "plant/1", 1)
    return directory


EXPECTED = [("plant/1", offset) for offset in (1, 2, 3, 4)] + [("plant/2", 0), ("plant/2", 1)]


def test_what_is_not_sealed_is_there_as_well(mixed: Path) -> None:
    assert rows(mixed, 'select shard, "offset" from records order by all') == EXPECTED
    assert rows(mixed, 'select shard, "offset" from sealed order by all') == EXPECTED[:2]
    assert rows(mixed, "select distinct date from records")[0][0] >= date(2026, 1, 1)


@pytest.mark.slow("starts a server")
def test_a_server_gives_the_same_with_and_without_its_directory(ask, mixed: Path) -> None:
    query = "select shard, offset from records order by shard, offset"
    with running(mixed, *SIZES) as server:
        address = f"127.0.0.1:{server.ports['tcp']}"
        found, _ = ask(mixed, query)
        assert [tuple(row.values()) for row in found] == EXPECTED
        assert run(["sql", query, "--server", address, "--engine", "duckdb", "--csv"]) == 0


@pytest.mark.slow("reads files of a server that runs")
def test_more_unsealed_records_than_fit_are_an_error_with_ways_out(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, ask
) -> None:
    monkeypatch.setattr(duckdb_records, "MOST_BYTES", 10)
    with pytest.raises(UnreadableError, match="query the view `sealed`"):
        connect_duckdb(str(mixed))
    assert ask(mixed, "select count(*) as n from sealed")[0] == [{"n": 2}]


def test_a_limit_is_shown_when_there_is_more(ask, tree: SealedTree) -> None:
    found, err = ask(tree.root, "select offset from records", "--limit", "3")
    assert len(found) == 3
    assert "only the first 3 rows" in err
    assert ask(tree.root, "select offset from records", "--limit", "7")[1] == ""


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("selec 1", "line 1, column"),
        ("select topci from records", "topci"),
        ("select * from nowhere", "nowhere"),
        ("select cast('a' as int)", "Conversion Error"),
    ],
)
def test_an_error_in_the_query_is_one_line(ask, tree: SealedTree, query: str, told: str) -> None:
    found, err = ask(tree.root, query, status=1)
    assert found == []
    assert told in err
    assert err.count("\n") == 1


def test_options_of_spark_are_refused(ask, tree: SealedTree) -> None:
    assert "leave them out" in ask(tree.root, "select 1", "--cores", "2", status=2)[1]


def test_files_elsewhere_are_for_spark() -> None:
    with pytest.raises(UnreadableError, match="use Spark"):
        connect_duckdb("s3://bucket/sealed")


def test_without_duckdb_it_says_what_brings_it(ask, tree: SealedTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert "DuckDB is not installed; `pip install" in ask(tree.root, "select 1", status=1)[1]


def test_neither_pyspark_nor_java_is_used(tree: SealedTree) -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "from spark_export.cli.main import run\n"
        f"query = ['sql', {str(tree.root)!r}, 'select count(*) as n from records', '--engine', 'duckdb', '--csv']\n"
        "sys.exit(run(query))"
    )
    environment = {**os.environ, "PATH": "", "JAVA_HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "n\n7\n"), done.stderr


@pytest.mark.slow("starts the process that converts")
def test_timestamps_after_the_year_9999_are_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A producer may set any, and one such record ended every query that showed its timestamp."""
    times_us = (1, 253_402_300_799_999_999, 253_402_300_800_000_000, (1 << 62), (1 << 63) - 1)
    texts = [
        "1970-01-01T00:00:00.000001Z",
        "9999-12-31T23:59:59.999999Z",
        "+010000-01-01T00:00:00Z",
        "+148108-07-06T14:00:27.387904Z",
        "+294247-01-10T04:00:54.775807Z",
    ]
    append(tmp_path, "far", [Record(b"sealed", timestamp_us=time_us) for time_us in times_us])
    convert(tmp_path, "far")
    append(tmp_path, "far", [Record(b"not sealed", timestamp_us=time_us) for time_us in times_us])

    def told(query: str, *form: str) -> list[str]:
        assert run(["sql", str(tmp_path), query, "--engine", "duckdb", *form]) == 0
        return [line.strip() for line in capfd.readouterr().out.splitlines()]

    query = "select timestamp from records order by offset"
    assert told(query)[2:] == [*texts, *texts]
    assert told(query, "--csv") == ["timestamp", *texts, *texts]
    assert [json.loads(line)["timestamp"] for line in told(query, "--json")] == [*texts, *texts]
    aggregated = "select max(timestamp) as last, list(timestamp order by timestamp) as all from sealed"
    assert [json.loads(line) for line in told(aggregated, "--json")] == [{"last": texts[-1], "all": texts}]
    assert told("select count(*) as n from records where timestamp > '9999-12-31'", "--csv") == ["n", "8"]
    ancient = "select timestamp - interval 5000 year as t from sealed where offset = 0"
    assert told(ancient, "--csv") == ["t", "-003030-01-01T00:00:00.000001Z"]
