"""Rows as JSON: what can be read back, and what cannot be written."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.sinks import Rows
from broker_adapter.sinks.json_form import encode_row, encode_rows, encode_value

texts = st.text(st.characters(exclude_categories=["Cs"]))
leaves = st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=10)


def plain(value: Any) -> Any:
    """What the documentation says a value becomes."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


@given(values)
def test_any_value_is_read_back_as_documented(value: Any) -> None:
    assert json.loads(encode_value(value)) == plain(value)


@given(st.dictionaries(texts, values))
def test_a_row_is_one_line(row: dict[str, Any]) -> None:
    line = encode_row(row)
    assert b"\n" not in line
    assert json.loads(line) == plain(row)


@pytest.mark.parametrize("value", ["\ud800", {"a": ["\udfff"]}, {"\ud800": 1}])
def test_half_a_surrogate_pair_cannot_be_written(value: Any) -> None:
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        encode_value(value)


def test_rows_that_can_be_written_are_apart_from_the_others() -> None:
    encoded, refusals = encode_rows([{"a": 1}, {"a": "\ud800"}, {"a": 3}])
    assert encoded == [b'{"a":1}', b'{"a":3}']
    assert [(refusal.index, "surrogates" in refusal.reason) for refusal in refusals] == [(1, True)]


@given(st.lists(st.tuples(values | st.just("\ud800"), values)))
def test_rows_that_are_kept_as_columns_are_written_as_the_same_rows_one_by_one(rows: list[tuple[Any, Any]]) -> None:
    as_columns = Rows(("a", "b"), ([a for a, _ in rows], [b for _, b in rows]))
    assert encode_rows(as_columns) == encode_rows([{"a": a, "b": b} for a, b in rows])


def test_what_is_nested_too_deeply_is_refused_alone() -> None:
    # A client can send that, and a bridge that projects its payload as JSON must not end of it.
    value: Any = []
    for _ in range(5000):
        value = [value]
    encoded, refusals = encode_rows([{"a": 1}, {"a": value}, {"a": 2}])
    assert encoded == [b'{"a":1}', b'{"a":2}']
    assert [(refusal.index, refusal.reason) for refusal in refusals] == [
        (1, "a value cannot be written as JSON: it is nested too deeply")
    ]
    with pytest.raises(ValueError, match="nested too deeply"):
        encode_value(value)
