"""Typed rows of exports: the fields of bridges with types, and what becomes of payloads that lack them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker_adapter.message_headers import CLIENT, QOS
from shards.format.record import Record
from spark_export.cli.export_options import table_of
from spark_export.cli.main import run
from spark_export.errors import OptionError
from spark_export.export import ExportOptions, run_export
from tests.spark.sealed_trees import NOW_US, SealedTree

FIELDS = {
    "line": "topic[1]",
    "temperature": "$.temperature",
    "at": "time",
    "client": "client",
    "qos": "qos",
    "raw": "payload",
    "status": '$.state ?? "unknown"',
}
TYPES = {"temperature": "float", "at": "timestamp", "qos": "int", "raw": "binary"}
GOOD = b'{"temperature": 20.5, "state": "on"}'


@pytest.fixture
def tree(tmp_path: Path) -> SealedTree:
    tree = SealedTree(tmp_path)
    headers = ((CLIENT, b"sensor"), (QOS, b"1"))
    payloads = [GOOD, b"{", b"{}", b'{"temperature": "warm"}', b'{"temperature": null}']
    tree.convert("plant/1", [Record(value=each, headers=headers, timestamp_us=NOW_US + 5) for each in payloads])
    return tree


def test_fields_become_columns_of_their_types_and_bad_payloads_are_kept(
    spark: SparkSession, tree: SealedTree, tmp_path: Path
) -> None:
    target = str(tmp_path / "out")
    options = ExportOptions(path=str(tree.root), target=target, fields=FIELDS, types=TYPES)
    assert run_export(spark, options).records == 5
    frame = spark.read.parquet(target)
    assert dict(frame.dtypes) == {
        "shard": "string",
        "offset": "bigint",
        "append_time": "timestamp",
        "line": "string",
        "temperature": "double",
        "at": "timestamp",
        "client": "string",
        "qos": "bigint",
        "raw": "binary",
        "status": "string",
        "problem": "string",
        "bad_payload": "binary",
        "run": "string",
        "date": "date",
        "topic_dir": "string",
    }
    rows = frame.orderBy("offset").collect()
    first = rows[0]
    assert (first.shard, first.line, first.temperature, first.client, first.qos) == ("plant/1", "1", 20.5, "sensor", 1)
    assert (bytes(first.raw), first.status, first.problem, first.bad_payload) == (GOOD, "on", None, None)
    assert first["at"].replace(tzinfo=UTC) == datetime(2026, 3, 1, 12, 0, 0, 5, UTC)
    assert [row.temperature for row in rows[1:]] == [None] * 4
    assert [row.line for row in rows] == ["1"] * 5
    assert [row.problem and row.problem.partition(":")[0] for row in rows[1:]] == [
        "the payload is not JSON",
        "the payload has nothing at $.temperature; to allow that, give a default as in $.temperature ?? null",
        "column temperature is float, which accepts numbers; the value is of type str",
        None,
    ]
    assert [row.bad_payload and bytes(row.bad_payload) for row in rows[1:]] == [
        b"{", b"{}", b'{"temperature": "warm"}', None,
    ]  # fmt: skip


def test_runs_with_other_fields_need_another_name(spark: SparkSession, tree: SealedTree, tmp_path: Path) -> None:
    place = {"path": str(tree.root), "target": str(tmp_path / "out")}
    run_export(spark, ExportOptions(**place))
    with pytest.raises(OptionError, match="value_as 'binary', now it is 'fields'"):
        run_export(spark, ExportOptions(**place, fields={"line": "topic[1]"}))
    run_export(spark, ExportOptions(**place, name="typed", fields={"line": "topic[1]"}))
    with pytest.raises(OptionError, match="fields"):
        run_export(spark, ExportOptions(**place, name="typed", fields={"line": "topic[0]"}))


def test_the_command_takes_tables_of_toml(
    spark: SparkSession, tree: SealedTree, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fields = ["--fields", 'line = "topic[1]", raw = "payload"', "--types", '{ raw = "binary" }']
    form = ["--format", "json", "--partition-by", "", "--json"]
    assert run(["export", str(tree.root), str(tmp_path / "out"), *fields, *form]) == 0
    assert json.loads(capfd.readouterr().out)["records"] == 5
    [file] = (tmp_path / "out").glob("run=*/part-*.json")
    first = json.loads(file.read_text().splitlines()[0])
    assert first["raw"] == "eyJ0ZW1wZXJhdHVyZSI6IDIwLjUsICJzdGF0ZSI6ICJvbiJ9"
    assert {name: first[name] for name in ("line", "offset", "problem", "bad_payload")} == {
        "line": "1",
        "offset": 0,
        "problem": None,
        "bad_payload": None,
    }


@pytest.mark.parametrize(
    ("fields", "types", "told"),
    [
        ({"a b": "topic"}, {}, "fields has a column 'a b'"),
        ({"a": "nothing"}, {}, "fields has a source 'nothing'"),
        ({"Problem": "topic"}, {}, "fields has a column 'Problem', but typed rows have"),
        ({"a": "topic"}, {"b": "int"}, "types has 'b', which is no column of fields: a"),
        ({"a": "topic"}, {"a": "long"}, "types has 'a' as 'long', it must be one of text, json"),
        ({}, {"a": "int"}, "which is no column of fields: none"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, str], types: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        ExportOptions(path="/data", target="/out", fields=fields, types=types)


@pytest.mark.parametrize("given", ["line", "line = 1", 'a = "b" }\nc = {', "line = { a = 1 }"])
def test_a_table_that_is_none_is_wrong_usage(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "/nowhere", "/out", "--fields", given]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_no_table_is_an_empty_one() -> None:
    assert table_of("--fields", "") == {}
