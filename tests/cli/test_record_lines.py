"""Records become lines: payloads as they are, or JSON that loses nothing."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from journal.cli.shown_records import gap_note, json_lines, payload_lines, topic_lines
from shards.format.record import Gap, StoredRecord


def record(**fields: object) -> StoredRecord:
    return StoredRecord(**{"offset": 7, "lsn": 3, "append_time_us": 11, **fields})  # type: ignore[arg-type]


def test_payloads_are_printed_byte_for_byte() -> None:
    assert list(payload_lines("s", [record(value=b"\xff\x00"), record()])) == [b"\xff\x00", b""]


def test_a_topic_line_shows_the_shard_when_the_record_has_no_topic_of_its_own() -> None:
    lines = list(topic_lines("plant/a", [record(value=b"1"), record(topic="plant/b", value=b"2")]))
    assert lines == [b"plant/a 1", b"plant/b 2"]


def test_a_json_line_has_every_field() -> None:
    whole = record(
        value=b"21.5",
        key=b"k",
        topic="t",
        timestamp_us=5,
        headers=(("a", b"1"), ("a", b"\xff")),
        tags=("x",),
        expires_at_us=9,
    )
    (line,) = json_lines("s", [whole])
    assert json.loads(line) == {
        "shard": "s",
        "offset": 7,
        "lsn": 3,
        "append_time_us": 11,
        "timestamp_us": 5,
        "topic": "t",
        "key": "k",
        "value": "21.5",
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value_base64": "/w=="}],
        "tags": ["x"],
        "expires_at_us": 9,
    }


@given(st.binary(), st.binary())
def test_bytes_survive_as_text_or_as_base64(key: bytes, value: bytes) -> None:
    (line,) = json_lines("s", [record(key=key, value=value)])
    fields = json.loads(line)
    for name, expected in (("key", key), ("value", value)):
        found = fields[name].encode() if name in fields else base64.b64decode(fields[f"{name}_base64"])
        assert found == expected


def test_no_json_line_has_a_line_break_in_it() -> None:
    (line,) = json_lines("s", [record(value=b"two\nlines\r\n")])
    assert b"\n" not in line


def test_a_lost_range_is_reported_in_json_and_in_words() -> None:
    gap = Gap(5, 8)
    assert [json.loads(line) for line in json_lines("s", [gap])] == [{"shard": "s", "gap": [5, 8]}]
    assert gap_note("s", gap) == (
        "s: offsets 5 to 7 have no records: those that were in memory only are lost, at most 3 (offsets are reserved "
        "ahead of their use)"
    )
