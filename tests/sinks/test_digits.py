"""Numbers of JSON payloads reach every kind of sink with the digits that they were sent with, or are refused.

They were read as floats of 64 bits: 0.1234567890123456789 and 1e400 changed, or made no row, without a word.
"""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.bridge.projection import Projection, ProjectionError
from broker_adapter.sinks import BatchRefusedError, Row, Value
from broker_adapter.sinks.files.contents import parquet_encoder
from broker_adapter.sinks.json_form import encode_row, encode_value
from broker_adapter.sinks.mqtt.topic_template import TopicTemplate
from broker_adapter.sinks.postgresql.copy_text import column_writer
from broker_adapter.sinks.redis.scripts import pack_rows
from shards.format.record import StoredRecord
from tests.sinks.stage import batch_of

NUMBERS = [
    "0.1234567890123456789",
    "1.10",
    "21.5",
    "-0.000001234567890123456789",
    "9007199254740993.0",
    "9007199254740993",
    "18446744073709551617",
    "-123456789012345678901234567890",
    "1E+400",
    "123456789012345678901234567890.123456789",
]
"""As Python writes them again, too."""


def row_of(payload: str) -> Row:
    return Projection({"value": "$.value", "all": "json"}).row(StoredRecord(0, 0, 0, payload.encode()))


def number(text: str) -> Value:
    return row_of(f'{{"value": {text}}}')["value"]


@pytest.mark.parametrize("text", NUMBERS)
def test_json_keeps_the_digits(text: str) -> None:
    assert encode_value(number(text)).decode() == text
    assert encode_row(row_of(f'{{"value":{text}}}')).decode() == f'{{"value":{text},"all":{{"value":{text}}}}}'


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_every_number_keeps_its_value(text: str) -> None:
    written = encode_value(number(text)).decode()
    assert Decimal(written) == Decimal(text)
    assert json.loads(written, parse_float=Decimal) == Decimal(text)


@pytest.mark.parametrize("type_name", ["numeric", "text", "jsonb", "float8"])
@pytest.mark.parametrize("text", NUMBERS)
def test_a_column_of_postgresql_is_given_the_digits(text: str, type_name: str) -> None:
    assert column_writer(type_name)(number(text)) == text


@pytest.mark.parametrize("text", NUMBERS)
def test_a_field_of_redis_has_the_digits(text: str) -> None:
    (packed,) = pack_rows([{"value": number(text)}], ("value",))
    assert text.encode() in packed


@pytest.mark.parametrize("text", NUMBERS)
def test_a_topic_has_the_digits(text: str) -> None:
    assert TopicTemplate("x/{value}").topic({"value": number(text)}) == f"x/{text.replace('+', '')}"


def stored(column_type: str, value: Value) -> Any:
    encode = parquet_encoder(("value",), {"value": column_type})
    return pq.read_table(io.BytesIO(encode(batch_of([{"value": value}]))))["value"].to_pylist()[0]


@pytest.mark.parametrize("column_type", ["text", "json"])
@pytest.mark.parametrize("text", NUMBERS)
def test_a_text_column_of_a_file_has_the_digits(text: str, column_type: str) -> None:
    assert stored(column_type, number(text)) == text


def test_a_float_column_rounds_fractions_and_refuses_what_it_would_make_another_number() -> None:
    """A column that was declared as float is one: fractions are rounded there, an identifier is not changed."""
    assert stored("float", number("0.1234567890123456789")) == 0.1234567890123456789
    assert stored("float", number("9007199254740992")) == 9007199254740992.0
    for text in ("9007199254740993", "1E+400"):
        with pytest.raises(BatchRefusedError, match="row 0: column value is float"):
            stored("float", number(text))
    with pytest.raises(BatchRefusedError):
        stored("int", number("1.10"))


@pytest.mark.parametrize("text", ["1e999999999999999999999", "1e-999999999999999999999", "9" * 5000])
def test_a_number_that_nothing_holds_makes_no_row(text: str) -> None:
    with pytest.raises(ProjectionError, match="the payload is"):
        number(text)
