"""The encoder of binary columns: both of its forms give the same bytes, or leave it to Python to say what is wrong."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shards import compiled
from shards.errors import InvalidRequestError
from shards.format.batch import encode_values
from shards.format.columns import binary_in_python, write_binary

needs_compiled = pytest.mark.skipif(compiled.encode_binary is None, reason=f"loops are {compiled.DESCRIPTION}")


class _Bytes(bytes):
    """A subclass may say another size than it has."""

    def __len__(self) -> int:
        return 3


def in_c(items: Any) -> bytes | None:
    assert compiled.encode_binary is not None
    return compiled.encode_binary(items)


def size_in_c(items: Any) -> int | None:
    assert compiled.size_of_items is not None
    return compiled.size_of_items(items)


@needs_compiled
@given(st.lists(st.binary(max_size=40), max_size=40) | st.lists(st.just(b"x" * 100), max_size=300))
@example([])
@example([b""])
@example([b"1234567"])
@example([b"12345678", b"", b"9"])
@example([bytes(1 << 20), b"x", bytes(1 << 17)])
def test_both_forms_give_the_same_buffers(items: list[bytes]) -> None:
    expected = b"".join(binary_in_python(items))
    assert in_c(items) == in_c(tuple(items)) == b"".join(write_binary(items)) == expected
    assert size_in_c(items) == size_in_c(tuple(items)) == sum(map(len, items))


@needs_compiled
@pytest.mark.parametrize(
    "items",
    [
        [b"x", "text"],
        [b"x", bytearray(b"y")],
        [b"x", memoryview(b"y")],
        [b"x", _Bytes(b"yy")],
        [None],
        b"xy",
        {b"x": 1},
        iter([b"x"]),
    ],
    ids=["text", "bytearray", "memoryview", "subclass", "none", "bytes", "dict", "iterator"],
)
def test_anything_but_a_list_or_tuple_of_bytes_is_left_to_python(items: Any) -> None:
    assert in_c(items) is None
    assert size_in_c(items) is None


@pytest.mark.parametrize("other", [bytearray(b"y"), memoryview(b"yz"), _Bytes(b"abc")])
def test_other_buffers_than_bytes_are_encoded_as_before(other: Any) -> None:
    assert encode_values([b"x", other], timestamp_us=5) == encode_values([b"x", bytes(other)], timestamp_us=5)


def test_a_value_that_is_no_bytes_is_an_error_of_its_type() -> None:
    values: Sequence[Any] = [b"x", "text"]
    with pytest.raises(TypeError, match="str"):
        encode_values(values, timestamp_us=5)
    with pytest.raises(InvalidRequestError):
        encode_values([], timestamp_us=5)


@needs_compiled
def test_more_bytes_than_a_column_can_have_are_left_to_python() -> None:
    """One object many times: nothing of that size is made."""
    large = bytes(1 << 24)
    assert in_c([large] * 128) is None
    assert size_in_c([large] * 128) == 1 << 31


@needs_compiled
def test_a_failed_request_for_memory_is_an_error() -> None:
    testcapi = pytest.importorskip("_testcapi", reason="this Python lacks its own test module")
    items = [b"x" * 100] * 10
    expected = in_c(items)
    failures = 0
    for start in range(10):
        found: object = MemoryError
        testcapi.set_nomemory(start, start + 1)
        try:
            found = in_c(items)
        except MemoryError:
            failures += 1
        finally:
            testcapi.remove_mem_hooks()
        assert found is MemoryError or found == expected
    assert failures > 0


@needs_compiled
def test_nothing_is_held_after_a_call() -> None:
    items = [b"%d" % number * 20 for number in range(50)]
    bad = [*items, None]
    counts = [sys.getrefcount(each) for each in (*items, items, bad)]
    gc.collect()
    tracemalloc.start()
    in_c(items)
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(100):
        in_c(items)
        in_c(bad)
        size_in_c(items)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 1024
    assert [sys.getrefcount(each) for each in (*items, items, bad)] == counts
