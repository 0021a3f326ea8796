"""How values of a result are shown."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from spark_export.cli.cells import csv_field, json_lines, table_cell

NOON = datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "NULL"),
        (b"21.5", "21.5"),
        ("größe".encode(), "größe"),
        (b"\xff\x00a", "\\xff\\x00a"),
        ("two\nlines\tand\x1b[31mred\u202e", "two\\nlines\\tand\\x1b[31mred\\u202e"),
        (True, "true"),
        (12, "12"),
        (1.5, "1.5"),
        (Decimal("1.50"), "1.50"),
        (NOON, "2026-01-31T12:00:00.000005Z"),
        (datetime.fromisoformat("2026-01-31"), "2026-01-31T00:00:00"),
        (date(2026, 1, 31), "2026-01-31"),
        ([], "[]"),
        ([{"key": "unit", "value": b"C"}], '[{"key":"unit","value":"C"}]'),
        ({"a": [NOON]}, '{"a":["2026-01-31T12:00:00.000005Z"]}'),
    ],
)
def test_a_cell_of_a_table_is_one_harmless_line(value: object, cell: str) -> None:
    assert table_cell(value) == cell


def test_a_field_of_csv_keeps_its_line_breaks_and_null_is_nothing() -> None:
    assert csv_field(b"two\nlines") == "two\nlines"
    assert csv_field(None) == ""


@pytest.mark.parametrize(
    ("value", "member"),
    [
        (None, '"v":null'),
        (b"21.5", '"v":"21.5"'),
        (b"\xff\x00", '"v_base64":"/wA="'),
        ([{"key": "k", "value": b"\xff"}], '"v":[{"key":"k","value_base64":"/w=="}]'),
        ([b"\xff", b"a"], '"v":[{"base64":"/w=="},"a"]'),
        ([("a", 1), ("b", b"\xff")], '"v":[["a",1],["b",{"base64":"/w=="}]]'),
        (Decimal("1.50"), '"v":1.50'),
        (float("nan"), '"v":null'),
        (NOON, '"v":"2026-01-31T12:00:00.000005Z"'),
        (date(2026, 1, 31), '"v":"2026-01-31"'),
        (timedelta(days=1), '"v":86400.0'),
        (1 << 62, '"v":4611686018427387904'),
    ],
)
def test_json_keeps_types_and_every_byte(value: object, member: str) -> None:
    assert list(json_lines(["v"], [[value]])) == [b"{" + member.encode() + b"}"]
