"""`journal-spark sql` over the session that runs already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from broker_adapter import open_adapter
from shards.format.record import Record
from spark_export.cli.main import run
from spark_export.cli.task_progress import count_tasks
from tests.spark.sealed_trees import NOW_US, SealedTree
from tests.spark.stores import append, convert


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tree = SealedTree(tmp_path)
    tree.convert("plant/1", [record(b"20"), record(b"21"), record(b"\xff")])
    tree.convert("plant/1", [record(b"24")])
    tree.convert("plant/2", [record(b"two\nlines")])
    return tmp_path


def record(value: bytes) -> Record:
    return Record(value=value, headers=(("unit", b"C"),), timestamp_us=NOW_US + 1)


@pytest.fixture
def ask(spark: SparkSession, capfd: pytest.CaptureFixture[str]):
    def ask(*arguments: str, status: int = 0) -> tuple[str, str]:
        assert run(["sql", *arguments]) == status
        told = capfd.readouterr()
        return told.out, told.err

    return ask


def test_a_table_shows_values_as_text(ask, directory: Path) -> None:
    out, err = ask(str(directory), "select topic, offset, payload from sealed order by topic, offset")
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["topic", "offset", "payload"]
    assert rows[2:] == [
        ["plant/1", "0", "20"],
        ["plant/1", "1", "21"],
        ["plant/1", "2", "\\xff"],
        ["plant/1", "3", "24"],
        ["plant/2", "0", "two\\nlines"],
    ]
    assert err == ""


def test_json_is_an_object_a_row(ask, directory: Path) -> None:
    query = (
        "select offset, timestamp, payload, headers from sealed where topic = 'plant/1' and offset > 1 order by offset"
    )
    out, _ = ask(str(directory), query, "--json")
    headers = [{"key": "unit", "value": "C"}]
    assert [json.loads(line) for line in out.splitlines()] == [
        {"offset": 2, "timestamp": "2026-03-01T12:00:00.000001Z", "payload_base64": "/w==", "headers": headers},
        {"offset": 3, "timestamp": "2026-03-01T12:00:00.000001Z", "payload": "24", "headers": headers},
    ]


def test_csv_has_a_line_of_names_and_quotes_what_needs_it(ask, directory: Path) -> None:
    out, _ = ask(str(directory), "select offset, text from sealed where shard = 'plant/2'", "--csv")
    assert out == 'offset,text\n0,"two\nlines"\n'


def test_timestamps_after_the_year_9999_are_shown(ask, tmp_path: Path) -> None:
    """A producer may set any, and one such record ended every query that showed its timestamp."""
    far = [Record(b"v", timestamp_us=time_us) for time_us in (1, 253_402_300_800_000_000, (1 << 63) - 1)]
    texts = ["1970-01-01T00:00:00.000001Z", "+010000-01-01T00:00:00Z", "+294247-01-10T04:00:54.775807Z"]
    append(tmp_path, "far", far)
    convert(tmp_path, "far")
    append(tmp_path, "far", far)
    out, _ = ask(str(tmp_path), "select timestamp from records order by offset", "--csv")
    assert out.splitlines() == ["timestamp", *texts, *texts]
    query = "select max(timestamp) as last, count(*) as n from records where timestamp > '9999-12-31'"
    out, _ = ask(str(tmp_path), query, "--json")
    assert json.loads(out) == {"last": texts[-1], "n": 4}


@pytest.fixture
def readings(tmp_path: Path) -> Path:
    """Payloads of sensors, one of them damaged."""
    tree = SealedTree(tmp_path)
    tree.convert("plant/1/temperature", [record(b'{"temperature": 20.5, "unit": "C"}'), record(b'{"temperature": 21}')])
    tree.convert("plant/2", [record(b'{"temperature": 2'), record(b"\xff")])
    return tmp_path


def test_members_of_json_are_selected_by_their_names(ask, readings: Path) -> None:
    query = (
        "select topic, value:temperature::double from records where date >= '2026-03-01' "
        "and value:temperature::double > 20.7"
    )
    out, _ = ask(str(readings), query, "--csv")
    assert out.splitlines()[1:] == ["plant/1/temperature,21.0"]


def test_payloads_that_are_not_json_are_null_and_no_error(ask, readings: Path) -> None:
    out, err = ask(str(readings), "select value, value:temperature::double as t from records order by t", "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"value": None, "t": None},
        {"value": None, "t": None},
        {"value": {"temperature": 20.5, "unit": "C"}, "t": 20.5},
        {"value": {"temperature": 21}, "t": 21.0},
    ]
    assert err == ""


def test_json_in_tables_csv_and_deep_in_an_answer(ask, readings: Path) -> None:
    query = "select value, value:unit, array(value) as many, value from records where offset = 0 and topic[0] = 'plant'"
    out, _ = ask(str(readings), f"{query} and topic[1] = '1'", "--csv")
    document = '"{""temperature"":20.5,""unit"":""C""}"'
    assert out.splitlines()[1] == f'{document},"""C""","[{document[1:-1]}]",{document}'
    out, _ = ask(str(readings), "select value:unit as unit from records where value:unit is not null")
    assert [line.strip() for line in out.splitlines()[2:]] == ['"C"']


def test_levels_of_a_topic_are_counted_from_0(ask, readings: Path) -> None:
    query = (
        "select topic, topic[0] as a, topic[2] as c, topic[-1] as z, count(*) as n from records as r "
        "where r.topic[1] < '2' or topic = 'plant/2' group by all order by topic"
    )
    out, _ = ask(str(readings), query, "--json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"topic": "plant/1/temperature", "a": "plant", "c": "temperature", "z": "temperature", "n": 2},
        {"topic": "plant/2", "a": "plant", "c": None, "z": "2", "n": 2},
    ]


def test_brackets_behind_a_topic_that_is_an_array_are_those_of_the_array(ask, readings: Path) -> None:
    out, _ = ask(str(readings), "select topic[0] as first from (select array('a/b') as topic)", "--json")
    assert json.loads(out) == {"first": "a/b"}


def test_an_error_behind_a_level_names_the_place_in_the_query_as_it_was_given(ask, readings: Path) -> None:
    query = "select topic[0],\n  topic[1], 1/0 from records"
    _, err = ask(str(readings), query, status=1)
    assert err.startswith("journal-spark: line 2, column 13: Division by zero.")
    assert err.count("\n") == 1


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """A data directory at rest with nothing sealed in it."""

    async def fill() -> None:
        async with open_adapter(f"embedded:{tmp_path}") as store:
            for topic, values in {"plant/1": [b"20", b"21"], "plant/2": [b"30"]}.items():
                await store.create_shard(topic)
                await store.append(topic, values)

    trio.run(fill)
    return tmp_path


@pytest.mark.smoke
def test_records_are_those_that_are_sealed_and_those_that_are_not(ask, live: Path) -> None:
    out, _ = ask(str(live), "select topic, offset, value from records order by topic, offset", "--csv")
    assert out.splitlines() == ["topic,offset,value", "plant/1,0,20", "plant/1,1,21", "plant/2,0,30"]
    out, _ = ask(str(live), "select count(*) as n from Records", "--topics", "plant/2", "--json")
    assert json.loads(out) == {"n": 1}


def test_records_of_a_bare_tree_are_its_sealed_ones(ask, directory: Path) -> None:
    out, _ = ask(str(directory / "sealed"), "select count(*) as n from records", "--json")
    assert json.loads(out) == {"n": 5}


def test_a_server_that_is_not_there_is_one_line(ask) -> None:
    _, err = ask("select * from records", "--server", "127.0.0.1:1", status=1)
    assert err.count("\n") == 1
    assert "127.0.0.1:1" in err


def test_only_the_topics_asked_for_are_there(ask, directory: Path) -> None:
    out, _ = ask(str(directory), "select count(*) as n from sealed", "--topics", "plant/2", "--json")
    assert json.loads(out) == {"n": 1}


def test_a_limit_is_shown_when_there_is_more(ask, directory: Path) -> None:
    query = "select offset from sealed where topic = 'plant/1'"
    out, err = ask(str(directory), query, "--limit", "3", "--csv")
    assert len(out.splitlines()) == 1 + 3
    assert err == "journal-spark: only the first 3 rows are shown; --limit N shows more\n"
    _, err = ask(str(directory), query, "--limit", "4", "--csv")
    assert err == ""


def test_a_table_has_a_limit_of_its_own_and_json_has_none(ask, directory: Path) -> None:
    out, err = ask(str(directory), "select id from range(150)")
    assert len(out.splitlines()) == 2 + 100
    assert "first 100 rows" in err
    out, err = ask(str(directory), "select id from range(150)", "--json")
    assert len(out.splitlines()) == 150
    assert err == ""


def test_no_row_is_no_error(ask, directory: Path) -> None:
    assert ask(str(directory), "select offset from sealed where offset > 9", "--json") == ("", "")
    assert ask(str(directory), "select offset from sealed where offset > 9", "--csv") == ("offset\n", "")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("selec 1", "line 1, column 1: Syntax error at or near 'selec'"),
        ("select topci from sealed", "line 1, column 8: A column"),
        ("select * from nowhere", "line 1, column 15: The table or view `nowhere` cannot be found"),
        ("select 1/0", "line 1, column 8: Division by zero"),
        ("select 1 where 1 = (select offset from sealed)", "line 1, column 20: More than one row"),
    ],
)
def test_an_error_in_the_query_is_one_line_with_the_place(ask, directory: Path, query: str, told: str) -> None:
    out, err = ask(str(directory), query, status=1)
    assert out == ""
    assert err.startswith(f"journal-spark: {told}")
    assert err.count("\n") == 1


def test_a_directory_that_is_not_there_is_one_line(ask, tmp_path: Path) -> None:
    _, err = ask(str(tmp_path / "nowhere"), "select * from sealed", status=1)
    assert err.count("\n") == 1
    assert "nowhere" in err


def test_the_views_are_gone_afterwards(ask, spark: SparkSession, directory: Path) -> None:
    ask(str(directory), "select count(*) from sealed")
    assert not spark.catalog.listTables()


def test_sealed_segments_need_a_directory(ask) -> None:
    _, err = ask("select * from sealed", "--server", "127.0.0.1:1", status=2)
    assert "name the data directory" in err


def test_the_tasks_of_a_command_are_counted(spark: SparkSession) -> None:
    spark.sparkContext.setJobGroup("counted", "a test")
    try:
        spark.range(0, 100, 1, 3).selectExpr("sum(id)").collect()
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    done, total = count_tasks(spark.sparkContext.statusTracker(), "counted")
    assert done == total >= 3
    assert count_tasks(spark.sparkContext.statusTracker(), "unknown") == (0, 0)
