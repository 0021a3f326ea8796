"""Decisions are read back as they were written, and what is none is refused."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.wal.entry import Kind
from journal.engine.wal.entry_payloads import (
    KINDS,
    ConvertedFile,
    ConvertedPart,
    Decision,
    ShardCreated,
    decode_payload,
    encode_payload,
    runs_of_parts,
)
from shards.model import Mode, Retention, ShardConfig

numbers = st.integers(0, 2**63)
BY_TYPE: dict[object, st.SearchStrategy[object]] = {
    "str": st.text(max_size=20),
    "int": numbers,
    "bytes": st.binary(max_size=20),
    "Mode": st.sampled_from(Mode),
    "Retention": st.builds(Retention, max_age_s=numbers, max_bytes=numbers, max_records=numbers),
    "ShardConfig": st.builds(ShardConfig, mode=st.sampled_from(Mode), segment_bytes=numbers, index_tags=st.booleans()),
    "tuple[ConvertedFile, ...]": st.lists(
        st.builds(ConvertedFile, numbers, numbers, numbers, numbers, st.binary(max_size=32)), max_size=3
    ).map(tuple),
    "tuple[ConvertedPart, ...]": st.lists(
        st.tuples(*[numbers] * 10).map(lambda fields: ConvertedPart(*fields)), max_size=3
    ).map(tuple),
}
decisions = st.one_of(
    [
        st.builds(kind, **{field.name: BY_TYPE[field.type] for field in attrs.fields(kind)})  # type: ignore[arg-type]
        for kind in KINDS
    ]
)


@given(decisions)
def test_a_decision_is_read_back_as_it_was_written(decision: Decision) -> None:
    payload = encode_payload(decision)
    assert decode_payload(KINDS[type(decision)], memoryview(payload)) == decision


def test_parts_of_one_shard_that_follow_each_other_are_one_run() -> None:
    places = [(1, 0, 5), (1, 5, 7), (1, 9, 10), (2, 10, 12)]
    parts = [ConvertedPart(shard, first, end, 0, 0, 0, 0, 0, 0, 0) for shard, first, end in places]
    assert list(runs_of_parts(parts)) == [(1, parts[:2]), (1, parts[2:3]), (2, parts[3:])]
    assert list(runs_of_parts([])) == []


def test_every_kind_but_append_has_a_decision() -> None:
    assert set(KINDS.values()) == set(Kind) - {Kind.APPEND}


def test_fields_that_a_newer_program_added_are_passed_over() -> None:
    import msgspec

    fields = {"name": "a", "config": {}, "created_us": 5, "newer": [1, 2]}
    assert decode_payload(Kind.CREATE_SHARD, memoryview(msgspec.msgpack.encode(fields))) == ShardCreated(
        "a", ShardConfig(), 5
    )


@pytest.mark.parametrize("kind", [0, Kind.APPEND, 18, 255])
def test_a_kind_without_a_decision_is_refused(kind: int) -> None:
    with pytest.raises(ValueError, match=str(int(kind))):
        decode_payload(kind, memoryview(b"\x80"))


@given(st.sampled_from(sorted(KINDS.values())), st.binary(max_size=20))
def test_garbage_is_a_decision_or_a_value_error_and_nothing_else(kind: Kind, payload: bytes) -> None:
    try:
        decision = decode_payload(kind, memoryview(payload))
    except ValueError:
        return
    assert KINDS[type(decision)] == kind
