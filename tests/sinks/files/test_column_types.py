"""What columns hold, and that all files of a directory are one table for every reader."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.sinks import BatchRefusedError
from broker_adapter.sinks.column_types import ColumnType, converter, type_of
from broker_adapter.sinks.files.contents import encode_lines, parquet_encoder
from broker_adapter.sinks.files.settings import FilesSettings, Format, check
from journal.settings.values import ConfigurationError
from tests.sinks.stage import batch_of
from tests.sinks.test_json_form import values

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
MOMENT_US = 1767323045678901


@pytest.mark.parametrize(
    ("column_type", "value", "held"),
    [
        ("text", "a", "a"),
        ("text", b"a", "a"),
        ("text", b"\xff", '{"base64":"/w=="}'),
        ("text", 1, "1"),
        ("text", {"a": [None]}, '{"a":[null]}'),
        ("json", "a", '"a"'),
        ("json", 1, "1"),
        ("binary", b"\xff", b"\xff"),
        ("binary", "ä", b"\xc3\xa4"),
        ("int", -(2**63), -(2**63)),
        ("float", 1, 1.0),
        ("float", 0.1, 0.1),
        ("bool", False, False),
        ("timestamp", MOMENT_US, MOMENT_US),
        ("timestamp", "2026-01-02T03:04:05.678901Z", MOMENT_US),
        ("timestamp", "2026-01-02T04:04:05.678901+01:00", MOMENT_US),
        ("timestamp", "2026-01-02 03:04:05.678901", MOMENT_US),
    ],
)
def test_a_value_becomes_what_the_column_holds(column_type: str, value: Any, held: object) -> None:
    converted = converter(ColumnType(column_type))(value)
    assert converted == held
    assert type(converted) is type(held)


@pytest.mark.parametrize(
    ("column_type", "value"),
    [
        ("text", "\ud800"),
        ("json", "\ud800"),
        ("binary", "\ud800"),
        ("binary", 1),
        ("int", True),
        ("int", 1.0),
        ("int", "1"),
        ("int", 2**63),
        ("float", "1"),
        ("float", False),
        ("float", 10**400),
        ("float", 2**53 + 1),
        ("float", Decimal("1e400")),
        ("int", Decimal("1.5")),
        ("bool", 1),
        ("timestamp", 1.0),
        ("timestamp", True),
        ("timestamp", "yesterday"),
        ("timestamp", 2**63),
    ],
)
def test_a_value_that_a_column_does_not_hold_is_refused_with_its_row(column_type: str, value: Any) -> None:
    encode = parquet_encoder(("a",), {"a": column_type})
    with pytest.raises(BatchRefusedError, match="row 1: column a ") as told:
        encode(batch_of([{"a": None}, {"a": value}]))
    assert told.value.index == 1


def test_columns_that_bridges_name_so_have_types() -> None:
    names = ("topic", "client", "qos", "timestamp", "payload", "offset", "headers")
    assert [type_of(name, {}).value for name in names] == [
        "text", "text", "int", "timestamp", "binary", "int", "json",
    ]  # fmt: skip
    assert type_of("payload", {"payload": "text"}) is ColumnType.TEXT


@given(st.lists(st.fixed_dictionaries({"a": values, "b": values}), min_size=1, max_size=5), st.sampled_from(ColumnType))
def test_whatever_is_taken_is_of_the_declared_type(rows: list[dict[str, Any]], column_type: ColumnType) -> None:
    encode = parquet_encoder(("a", "b"), {"b": column_type.value})
    schema = pq.read_schema(io.BytesIO(encode(batch_of([{"a": None, "b": None}]))))
    try:
        contents = encode(batch_of(rows))
    except BatchRefusedError:
        assert column_type not in (ColumnType.TEXT, ColumnType.JSON)
        return
    table = pq.read_table(io.BytesIO(contents))
    assert table.schema.equals(schema)
    assert table.num_rows == len(rows)
    assert [each is None for each in table["a"].to_pylist()] == [row["a"] is None for row in rows]


MIXED: list[dict[str, Any]] = [
    {"any": 1, "n": None, "at": None, "raw": None},
    {"any": "one", "n": 1, "at": MOMENT_US, "raw": b"\xff"},
    {"any": {"a": 1}, "n": 2, "at": None, "raw": "text"},
    {"any": None, "n": None, "at": "2026-01-02T03:04:05.678901Z", "raw": None},
]
TYPES = {"n": "int", "at": "timestamp", "raw": "binary"}


def mixed_files(directory: Path) -> None:
    """A file for each row, so that no two files have the same kinds of values."""
    encode = parquet_encoder(tuple(MIXED[0]), TYPES)
    for number, each in enumerate(MIXED):
        (directory / f"{number}.parquet").write_bytes(encode(batch_of([each])))


def test_files_whose_values_differ_are_one_table(tmp_path: Path) -> None:
    mixed_files(tmp_path)
    expected = [
        ("1", None, None, None),
        ("one", 1, MOMENT, b"\xff"),
        ('{"a":1}', 2, None, b"text"),
        (None, None, MOMENT, None),
    ]
    with duckdb.connect() as connection:
        # Without a time zone of the session in between.
        found = connection.sql(
            f'SELECT "any", n, epoch_us("at"), raw FROM read_parquet(\'{tmp_path}/*.parquet\') ORDER BY filename'
        ).fetchall()
    assert [(row[0], row[1], row[2], row[3]) for row in found] == [
        (row[0], row[1], MOMENT_US if row[2] else None, row[3]) for row in expected
    ]
    assert pl.read_parquet(tmp_path / "*.parquet").rows() == expected


def test_lines_hold_values_as_json(tmp_path: Path) -> None:
    lines = encode_lines(batch_of(MIXED)).splitlines()
    assert [json.loads(line) for line in lines[:1]] == [MIXED[0]]
    assert json.loads(lines[1])["raw"] == {"base64": "/w=="}
    with pytest.raises(BatchRefusedError, match="row 1: ") as told:
        encode_lines(batch_of([{"a": 1}, {"a": "\ud800"}]))
    assert told.value.index == 1


def test_types_of_nothing() -> None:
    with pytest.raises(ConfigurationError, match=r"types\.b is given, but the columns of rows are a"):
        parquet_encoder(("a",), {"b": "int"})
    assert "allowed: text, json" in check(FilesSettings("/data", types={"a": "varchar"}))[0]
    assert "leave it out" in check(FilesSettings("/data", Format.NDJSON, {"a": "int"}))[0]
