"""The decoder of records: both of its forms give the same records, or the same error, whatever the body is."""

from __future__ import annotations

import gc
import struct
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from shards import compiled
from shards.errors import BatchError
from shards.format.batch import HEADER_SIZE, BatchHeader, encode
from shards.format.columns import ALL_COLUMNS
from shards.format.record import Record, StoredRecord
from shards.format.record_decoder import decode_in_python, decode_records
from tests.shards.batches import NOW_US, encode_stamped, record_lists, stored

needs_compiled = pytest.mark.skipif(compiled.decode_records is None, reason=f"loops are {compiled.DESCRIPTION}")

EVERYTHING = (
    Record(b"value", b"key", "topic/\u00fc", 5, (("name", b"x"), ("n", b"")), ("tag", "\u20ac"), 77),
    Record(b"", b"k2", "topic/\u00fc", 6, (("name", b"x"), ("n", b"other"), ("third", b"")), ("tag",), 0),
    Record(b"more", b"", "", 9, (), (), 99),
    Record(b"more", b"", "t", 9, (("name", b"x"),), ("tag", "\u20ac"), 99),
)
"""Records with all columns, whose lists begin like those before, or do not."""


def header_of(count: int, columns: int, times_us: tuple[int, int] = (5, 9), base_offset: int = 10) -> BatchHeader:
    return BatchHeader(0, base_offset, 3, NOW_US, 0, 0, 0, count, columns, 0, 0, 0, 0, 0, 0, *times_us)


def taken_apart(records: list[Record] | tuple[Record, ...]) -> tuple[BatchHeader, bytes]:
    """Header and body of a batch of the records."""
    batch = encode_stamped(records, 10)
    return BatchHeader.unpack(batch), batch[HEADER_SIZE:]


def in_c(header: BatchHeader, body: bytes) -> list[StoredRecord] | None:
    """What the compiled form says, which is None where it leaves the body to the one in Python."""
    assert compiled.decode_records is not None
    return compiled.decode_records(
        body,
        header.record_count,
        header.columns,
        header.base_offset,
        header.lsn,
        header.append_time_us,
        header.min_timestamp_us,
        header.max_timestamp_us,
        StoredRecord,
    )


def outcome(decode: Callable[[BatchHeader, bytes, int], list[StoredRecord]], header: BatchHeader, body: bytes) -> Any:
    try:
        return decode(header, body, 8)
    except BatchError as error:
        return str(error)


def compare(header: BatchHeader, body: bytes) -> bool:
    """Check that both forms say the same; returns whether the body is in order.

    The compiled one itself must read just those that the one in Python does.
    """
    expected = outcome(decode_in_python, header, body)
    assert outcome(decode_records, header, body) == expected
    is_valid = not isinstance(expected, str)
    assert in_c(header, body) == (expected if is_valid else None)
    return is_valid


@needs_compiled
@given(record_lists)
@example(list(EVERYTHING))
def test_both_forms_give_the_same_records(records: list[Record]) -> None:
    header, body = taken_apart(records)
    assert in_c(header, body) == decode_in_python(header, body, 0) == stored(records, 10)


@needs_compiled
@given(st.integers(1, 5), st.integers(1, ALL_COLUMNS), st.lists(st.integers(-1, 4), max_size=40), st.binary(max_size=9))
def test_both_forms_judge_random_bodies_alike(count: int, columns: int, numbers: list[int], rest: bytes) -> None:
    """Small numbers are often offsets that fit."""
    body = struct.pack(f"<{len(numbers)}i", *numbers) + rest
    event(f"valid: {compare(header_of(count, columns, (0, 0)), body)}")


@needs_compiled
@given(record_lists, st.data())
def test_both_forms_judge_changed_bodies_alike(records: list[Record], data: st.DataObject) -> None:
    header, body = taken_apart(records)
    changed = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.sampled_from((0, 1, 2, 4, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
    event(f"valid: {compare(header, bytes(changed))}")


@needs_compiled
def test_both_forms_judge_each_single_change_alike() -> None:
    """Each byte of a body with all columns gets values near to what it was, and at the ends of its range."""
    header, body = taken_apart(EVERYTHING)
    assert header.columns == ALL_COLUMNS
    valid = 0
    for at, before in enumerate(body):
        for value in {(before + 1) & 0xFF, (before - 1) & 0xFF, 0, 0x7F, 0x80, 0xC3, 0xFF} - {before}:
            valid += compare(header, body[:at] + bytes([value]) + body[at + 1 :])
    assert valid > len(body)


@needs_compiled
def test_both_forms_judge_cut_and_longer_bodies_alike() -> None:
    header, body = taken_apart(EVERYTHING)
    for size in range(len(body)):
        assert not compare(header, body[:size])
    for more in (b"\0", bytes(8), bytes(64)):
        assert not compare(header, body + more)


@needs_compiled
@pytest.mark.parametrize("columns", range(ALL_COLUMNS + 1))
def test_both_forms_judge_bodies_with_other_columns_alike(columns: int) -> None:
    header, body = taken_apart(EVERYTHING)
    assert compare(header._replace(columns=columns), body) == (columns == ALL_COLUMNS)


@needs_compiled
@pytest.mark.parametrize("times_us", [(5, 8), (4, 9), (6, 9), (5, 10), (9, 5), (0, 2**63 - 2)])
def test_times_that_the_header_does_not_have_are_refused_by_both_forms(times_us: tuple[int, int]) -> None:
    header, body = taken_apart(EVERYTHING)
    assert not compare(header._replace(min_timestamp_us=times_us[0], max_timestamp_us=times_us[1]), body)
    without, body = taken_apart([Record(b"x", timestamp_us=5)])
    assert not compare(without._replace(min_timestamp_us=times_us[0], max_timestamp_us=times_us[1] + 1), body)


@needs_compiled
@pytest.mark.parametrize("count", [0, -1, 2, 2**20, 2**31 - 1, 2**31, 2**62])
def test_more_records_than_the_body_can_have_are_left_to_python(count: int) -> None:
    header, body = taken_apart([Record(b"x", timestamp_us=5)])
    assert in_c(header._replace(record_count=count), body) is None
    assert in_c(header._replace(record_count=count, columns=0, max_timestamp_us=header.min_timestamp_us), b"") is None


@needs_compiled
@pytest.mark.parametrize("base_offset", [0, 2**63 - 1, 2**63, 2**64 - 5, 2**64 - 4, 2**64 - 1])
def test_both_forms_count_offsets_alike(base_offset: int) -> None:
    """Beyond the largest number of the format, which a server never assigns."""
    header, body = taken_apart(EVERYTHING)
    header = header._replace(base_offset=base_offset)
    assert decode_records(header, body, 0) == decode_in_python(header, body, 0)


@needs_compiled
@pytest.mark.parametrize("codepoint", ["\x7f", "\x80", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff", "\0"])
def test_both_forms_read_text_alike(codepoint: str) -> None:
    record = Record(topic=codepoint, timestamp_us=5, headers=((codepoint * 2, b""),), tags=(codepoint, ""))
    assert compare(*taken_apart([record, record]))


@needs_compiled
def test_equal_parts_of_records_in_a_row_are_one_object() -> None:
    """As a rule a batch has one publisher, whose name is in the headers of each record."""
    records = [Record(b"%d" % n, topic="t", headers=(("client", b"one"), ("qos", b"1")), tags=("a",)) for n in range(3)]
    found = in_c(*taken_apart(records))
    assert found is not None
    for part in ("topic", "headers", "tags", "timestamp_us"):
        assert len({id(getattr(record, part)) for record in found}) == 1
    first, second, *_ = in_c(*taken_apart(EVERYTHING)) or ()
    assert first.headers[0] is second.headers[0]
    assert first.headers[1] != second.headers[1]


@needs_compiled
def test_garbage_collection_does_not_look_at_the_records() -> None:
    """As with those that Python makes."""
    found = in_c(*taken_apart(EVERYTHING))
    assert found is not None
    assert not any(map(gc.is_tracked, found))


@attrs.frozen
class _Memory:
    """Have requests for memory fail from one on."""

    fail_from: Callable[[int], None]
    end: Callable[[], None]


@pytest.fixture
def memory() -> Iterator[_Memory]:
    testcapi = pytest.importorskip("_testcapi", reason="this Python lacks its own test module")
    yield _Memory(lambda start: testcapi.set_nomemory(start, start + 1), testcapi.remove_mem_hooks)
    testcapi.remove_mem_hooks()


@needs_compiled
@pytest.mark.parametrize("damage", ["none", "text"])
def test_a_failed_request_for_memory_is_an_error_of_its_own(memory: _Memory, damage: str) -> None:
    """Each request in turn: it is neither taken for damage nor lost, and nothing is half made."""
    header, body = taken_apart(EVERYTHING)
    if damage == "text":
        body = body.replace("\u20ac".encode(), b"\xe2\x82\xff")
    expected = in_c(header, body)
    assert (expected is None) == (damage == "text")
    failures = 0
    for start in range(200):
        found: object = MemoryError
        memory.fail_from(start)
        try:
            found = in_c(header, body)
        except MemoryError:
            failures += 1
        finally:
            memory.end()
        assert found is MemoryError or found == expected
    assert 10 < failures < 150


@needs_compiled
def test_nothing_is_held_after_a_call() -> None:
    lsn, time_us = 2**40 + 1, 2**41 + 1
    header, body = taken_apart(EVERYTHING)
    header = header._replace(lsn=lsn, append_time_us=time_us)
    bad = body.replace("\u20ac".encode(), b"\xe2\x82\xff")
    held = (header.lsn, header.append_time_us, header.min_timestamp_us, StoredRecord, body, bad, (), b"", "")
    counts = [sys.getrefcount(each) for each in held]
    for each in (body, bad, body[:-1]):
        in_c(header, each)
    assert [sys.getrefcount(each) for each in held] == counts
    gc.collect()
    tracemalloc.start()
    for each in (body, bad):
        in_c(header, each)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        for each in (body, bad, body[:-1]):
            in_c(header, each)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1024


class _RefusedError(Exception):
    pass


@needs_compiled
def test_an_exception_of_the_class_is_passed_on() -> None:
    def refuse(*_: object) -> None:
        raise _RefusedError

    assert compiled.decode_records is not None
    with pytest.raises(_RefusedError):
        compiled.decode_records(encode([Record(b"x")], now_us=5)[HEADER_SIZE:], 1, 8, 0, 1, 1, 5, 5, refuse)


@needs_compiled
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((b"",), TypeError),
        (("text", 1, 8, 0, 1, 1, 5, 5, StoredRecord), TypeError),
        ((b"", None, 8, 0, 1, 1, 5, 5, StoredRecord), TypeError),
        ((b"", 1, 8, -1, 1, 1, 5, 5, StoredRecord), OverflowError),
        ((b"", 1, 8, 0, 1, 1, 2**63, 5, StoredRecord), OverflowError),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], error: type[Exception]) -> None:
    assert compiled.decode_records is not None
    with pytest.raises(error):
        compiled.decode_records(*arguments)


@needs_compiled
def test_the_compiled_form_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    header, body = taken_apart(EVERYTHING)
    monkeypatch.setattr(compiled, "decode_records", lambda *_: [])
    assert decode_records(header, body, 0) == []
