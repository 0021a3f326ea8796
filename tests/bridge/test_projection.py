"""Which part of a message becomes which column. A header of another program once ended the driver."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.bridge.projection import Projection, ProjectionError
from broker_adapter.sinks import Value
from broker_adapter.sinks.json_form import encode_row
from shards.format.record import StoredRecord

RECORD = StoredRecord(
    offset=7,
    lsn=0,
    append_time_us=0,
    value=b'{"a": {"b": [1, 2]}, "odd name": "x"}',
    key=b"k",
    topic="plant/line-1/temperature",
    timestamp_us=1_700_000_000_000_001,
    headers=(
        ("client", b"press-07"),
        ("qos", b"1"),
        ("content-type", b"application/json"),
        ("user-property", b"shift\0night"),
    ),
)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("topic", "plant/line-1/temperature"),
        ("topic[0]", "plant"),
        ("topic[-1]", "temperature"),
        ("topic[3]", None),
        ("client", "press-07"),
        ("qos", 1),
        ("retain", False),
        ("offset", 7),
        ("timestamp", 1_700_000_000_000_001),
        ("time", "2023-11-14T22:13:20.000001Z"),
        ("payload", RECORD.value),
        ("text", RECORD.value.decode()),
        ("json", {"a": {"b": [1, 2]}, "odd name": "x"}),
        ("$.a.b[1]", 2),
        ("$.a.b[1] ?? 0", 2),
        ("$.a.b[2] ?? null", None),
        ('$["odd name"]', "x"),
        ("$.a.c ?? 0.5", 0.5),
        ('$.unit ?? "C ?? F"', "C ?? F"),
        ('$["odd ?? name"] ?? []', []),
        ("topic[3] ?? -1", -1),
        ("user:none ?? {}", {}),
        ("header:content-type ?? 1", "application/json"),
        ("=a ?? 1", "a ?? 1"),
        ("header:content-type", "application/json"),
        ("header:none", None),
        ("user:shift", "night"),
        ("user:none", None),
        ("headers", {"content-type": "application/json", "shift": "night"}),
        ("key", b"k"),
        ("=line 1", "line 1"),
    ],
)
def test_each_source_gives_its_part(source: str, value: Value) -> None:
    assert Projection({"x": source}).row(RECORD) == {"x": value}


SOME_HEADERS = (
    (),
    RECORD.headers,
    (("client", b"pump-3"), ("qos", b"2"), ("retain", b"")),
    (("qos", b"none"), ("content-type", b"text/plain"), ("user-property", b"shift\0day")),
)
EACH_SOURCE = {
    "topic": "topic",
    "site": "topic[0]",
    "client": "client",
    "qos": "qos",
    "retain": "retain",
    "offset": "offset",
    "timestamp": "timestamp",
    "time": "time",
    "payload": "payload",
    "value": "$.value ?? null",
    "text": 'text ?? ""',
    "kind": "header:content-type",
    "shift": "user:shift",
    "headers": "headers",
    "key": "key",
    "line": "=line 1",
}


@given(st.lists(st.tuples(st.sampled_from(SOME_HEADERS), st.sampled_from([b'{"value": 1}', b"{}", b"\xff"]))))
def test_rows_made_together_are_those_made_one_by_one(
    records: list[tuple[tuple[tuple[str, bytes], ...], bytes]],
) -> None:
    projection = Projection(EACH_SOURCE)
    stored = [
        msgspec.structs.replace(RECORD, offset=number, timestamp_us=number, headers=headers, value=value)
        for number, (headers, value) in enumerate(records)
    ]
    rows = projection.rows(stored)
    one_by_one = [projection.row(record) for record in stored]
    assert list(rows) == one_by_one
    assert [rows[index] for index in range(len(rows))] == one_by_one
    assert list(rows[1:3]) == one_by_one[1:3]


def test_a_header_that_is_no_text_stays_as_it_is() -> None:
    """Different correlation data became the same text."""
    record = StoredRecord(0, 0, 0, headers=(("correlation-data", b"\x00\xff"), ("content-type", b"a")))
    row = Projection({"x": "header:correlation-data", "y": "headers"}).row(record)
    assert row == {"x": b"\x00\xff", "y": {"correlation-data": b"\x00\xff", "content-type": "a"}}
    assert encode_row(row) == (b'{"x":{"base64":"AP8="},"y":{"correlation-data":{"base64":"AP8="},"content-type":"a"}}')


def test_a_record_without_a_row_is_an_error_of_all_rows_that_are_made_with_it() -> None:
    with pytest.raises(ProjectionError, match="has nothing at"):
        Projection({"x": "$.value"}).rows([StoredRecord(0, 0, 0, b'{"value": 1}'), StoredRecord(1, 0, 0, b"{}")])


NOTHING_THERE = [b"22.5", b"[]", b"{}", b'"text"', b"null", b'{"values": {"value": 1}}']


@pytest.mark.parametrize("payload", NOTHING_THERE)
@pytest.mark.parametrize("source", ["$.value", "$.value[0]", '$["value"].x'])
def test_a_payload_that_does_not_yield_a_column_makes_no_row_unless_there_is_a_default(
    source: str, payload: bytes
) -> None:
    """A bridge once wrote NULL for it, without a message."""
    record = StoredRecord(0, 0, 0, payload)
    with pytest.raises(ProjectionError, match="has nothing at"):
        Projection({"x": source}).row(record)
    assert Projection({"x": f"{source} ?? null"}).row(record) == {"x": None}


@pytest.mark.parametrize("payload", [b"no json", b"\xff", b""])
def test_a_default_stands_for_a_payload_that_is_no_json_too(payload: bytes) -> None:
    assert Projection({"x": "$.value ?? 0", "y": "json ?? 1"}).row(StoredRecord(0, 0, 0, payload)) == {"x": 0, "y": 1}


@pytest.mark.parametrize("source", ["$.value", "$.value ?? 7"])
def test_a_null_that_was_sent_is_brought(source: str) -> None:
    assert Projection({"x": source}).row(StoredRecord(0, 0, 0, b'{"value": null}')) == {"x": None}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("$.value ?? none", "with a default in JSON as"),
        ("topic[1] ?? none", "whose default is not JSON"),
        ("header:a ?? b", "whose default is not JSON"),
        ("nothing ?? 1", "is not one of"),
    ],
)
def test_a_default_that_is_no_json_is_refused(source: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Projection({"x": source})


@pytest.mark.parametrize("qos", [b"", b"one", b"\xc2\xb2", b"-1", b"\xff", b"9" * 5000])
def test_a_qos_that_is_no_number_is_null(qos: bytes) -> None:
    record = StoredRecord(0, 0, 0, headers=(("qos", qos),))
    assert Projection({"x": "qos"}).row(record) == {"x": None}


@pytest.mark.parametrize("timestamp_us", [253_402_300_800_000_000, 1 << 62, -(1 << 62)])
def test_a_time_that_no_calendar_has_makes_no_row(timestamp_us: int) -> None:
    """A message dated past the year 9999 ended the broker, and again after each restart."""
    with pytest.raises(ProjectionError, match="not in a year from 1 to 9999"):
        Projection({"x": "time"}).row(StoredRecord(0, 0, 0, timestamp_us=timestamp_us))


@pytest.mark.parametrize("source", ["json", "$.a"])
def test_a_payload_that_is_nested_too_deeply_makes_no_row(source: str) -> None:
    with pytest.raises(ProjectionError, match="nested too deeply"):
        Projection({"x": source}).row(StoredRecord(0, 0, 0, b"[" * 100_000))


@pytest.mark.parametrize("source", ["json", "$.a", "text"])
def test_a_payload_of_another_form_makes_no_row(source: str) -> None:
    with pytest.raises(ProjectionError, match="the payload is no"):
        Projection({"x": source}).row(StoredRecord(0, 0, 0, b"\xff{"))
