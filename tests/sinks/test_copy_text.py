"""Values as PostgreSQL's COPY reads them; that it does read them so, `test_postgresql` asks a real server."""

from __future__ import annotations

import pytest

from broker_adapter.sinks import Rows, Value
from broker_adapter.sinks.postgresql import copy_text


@pytest.mark.parametrize(
    ("type_name", "value", "written"),
    [
        ("text", "a\tb\nc\rd\\e", "a\\tb\\nc\\rd\\\\e"),
        ("text", "\\N", "\\\\N"),
        ("text", "", ""),
        ("text", None, "\\N"),
        ("text", b"caf\xc3\xa9", "café"),
        ("text", {"a": "\\"}, '{"a":"\\\\\\\\"}'),
        ("bool", True, "true"),
        ("int8", -7, "-7"),
        ("float8", 0.1, "0.1"),
        ("float8", float("nan"), "nan"),
        ("bytea", b"\x00\xff", "\\\\x00ff"),
        ("bytea", "é", "\\\\xc3a9"),
        ("bytea", None, "\\N"),
        ("bytea", [1], "\\\\x5b315d"),
        ("jsonb", {"a": [1, None]}, '{"a":[1,null]}'),
        ("jsonb", "a\n", '"a\\\\n"'),
        ("jsonb", b"[1]", "[1]"),
        ("jsonb", True, "true"),
        ("jsonb", None, "\\N"),
        ("timestamptz", 1_700_000_000_000_001, "2023-11-14T22:13:20.000001+00:00"),
        ("timestamptz", -62_135_596_800_000_000, "0001-01-01T00:00:00.000000+00:00"),
        ("timestamptz", 0, "1970-01-01T00:00:00.000000+00:00"),
        ("timestamptz", -1, "1969-12-31T23:59:59.999999+00:00"),
        ("timestamptz", "yesterday", "yesterday"),
    ],
)
def test_a_value_is_written_so_that_its_column_reads_it(type_name: str, value: Value, written: str) -> None:
    assert copy_text.column_writer(type_name)(value) == written


@pytest.mark.parametrize(
    ("type_name", "values"),
    [
        ("text", ["plain", "as", "can be"]),
        ("text", ["one", "of them\t", "\\"]),
        ("text", ["", "\r", "é"]),
        ("text", [1, -2, 1 << 70]),
        ("float8", [0.5, float("nan"), float("-inf")]),
        ("bool", [True, False, True]),
        ("bytea", [b"", b"\x00\xff", b"\\"]),
        ("jsonb", [{}, {}, {}]),
        ("jsonb", [{}, {"a": "\\"}, {}]),
        ("timestamptz", [0, 999_999, 1_000_000]),
        ("text", [1, "1", None]),
    ],
)
def test_a_column_of_one_class_is_written_as_its_values_are_one_by_one(type_name: str, values: list[Value]) -> None:
    write = copy_text.column_writer(type_name)
    block = copy_text.copy_block([{"a": value} for value in values], [("a", write)])
    assert block.decode() == "".join(f"{write(value)}\n" for value in values)


def test_a_block_has_a_line_for_each_row() -> None:
    columns = [("a", copy_text.column_writer("text")), ("b", copy_text.column_writer("int8"))]
    rows = [{"a": "x", "b": 1}, {"a": "y\n", "b": 2}]
    block = b"x\t1\ny\\n\t2\n"
    assert copy_text.copy_block(rows, columns) == block
    as_columns = Rows(("b", "a", "c"), ([1, 2], ["x", "y\n"], [None, None]))
    assert copy_text.copy_block(as_columns, columns) == block


@pytest.mark.parametrize(
    ("type_name", "value", "reason"),
    [
        ("text", b"ab\xff", "byte 2 is 0xff.*bytea"),
        ("text", "\ud800", "half a character"),
        ("bytea", "\ud800", "half a character"),
        ("jsonb", {"a": "\ud800"}, "cannot be written as JSON"),
        ("timestamptz", 10**18, "not in a year"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(type_name: str, value: Value, reason: str) -> None:
    columns = [("a", copy_text.column_writer("text")), ("b", copy_text.column_writer(type_name))]
    rows = [{"a": "x", "b": None}, {"a": "x", "b": value}, {"a": "x", "b": value}]
    with pytest.raises(copy_text.UnwritableRowError, match=f"column b: .*{reason}") as told:
        copy_text.copy_block(rows, columns)
    assert told.value.index == 1
