"""Entries and groups: read back as written; every flipped bit is found; what an earlier life left is not ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.wal.entry import (
    ENTRY_HEADER_SIZE,
    GROUP_HEADER_SIZE,
    BadEntryHeader,
    Entry,
    GroupHeader,
    Kind,
    decode_entries,
    decode_group_header,
    encode_entry,
    encode_group_header,
)
from journal.protocol.frames import APPEND_HEAD

u64 = st.integers(0, 2**64 - 1)
salts = st.integers(0, 2**32 - 1)
kinds = st.sampled_from([kind for kind in Kind if kind is not Kind.APPEND])
contents = st.lists(st.tuples(kinds, u64, u64, st.binary(max_size=50)), min_size=1, max_size=8)


def encoded(content: list[tuple[Kind, int, int, bytes]]) -> bytes:
    return b"".join(encode_entry(*each) for each in content)


@given(contents, st.integers(0, 3))
def test_entries_are_read_back_as_they_were_written(
    content: list[tuple[Kind, int, int, bytes]], words_before: int
) -> None:
    before = 8 * words_before
    data = memoryview(b"x" * before + encoded(content))
    entries = list(decode_entries(data, before, len(data)))
    assert [
        (each.kind, each.lsn, each.shard_id, bytes(each.payload)) for each in entries if isinstance(each, Entry)
    ] == content
    assert all(each.position % 8 == 0 for each in entries)


@given(contents, st.data())
def test_a_flipped_bit_in_a_header_is_found_and_nothing_behind_it_is_trusted(
    content: list[tuple[Kind, int, int, bytes]], data: st.DataObject
) -> None:
    hit = data.draw(st.integers(0, len(content) - 1))
    start = len(encoded(content[:hit]))
    stored = bytearray(encoded(content))
    bit = data.draw(st.integers(0, ENTRY_HEADER_SIZE * 8 - 1))
    stored[start + bit // 8] ^= 1 << bit % 8
    *whole, bad = decode_entries(memoryview(stored), 0, len(stored))
    assert len(whole) == hit
    assert isinstance(bad, BadEntryHeader)
    assert bad.position == start


@given(contents, st.data())
def test_entries_that_are_cut_off_end_in_a_bad_header(
    content: list[tuple[Kind, int, int, bytes]], data: st.DataObject
) -> None:
    stored = encoded(content)
    # What is cut away is more than the padding of the last entry.
    used = len(stored) - len(encoded(content[-1:])) + ENTRY_HEADER_SIZE + len(content[-1][3])
    cut = data.draw(st.integers(1, used - 1))
    entries = list(decode_entries(memoryview(stored), 0, cut))
    at_a_border = cut in {len(encoded(content[:count])) for count in range(len(content) + 1)}
    padded = any(
        len(encoded(content[:count])) + ENTRY_HEADER_SIZE + len(content[count][3])
        <= cut
        < len(encoded(content[: count + 1]))
        for count in range(len(content))
    )
    assert isinstance(entries[-1], BadEntryHeader) != (at_a_border or padded)


def test_zeroed_space_is_no_entry_and_no_group() -> None:
    zeroes = memoryview(bytes(4096))
    (bad,) = decode_entries(zeroes, 0, len(zeroes))
    assert isinstance(bad, BadEntryHeader)
    assert decode_group_header(zeroes, 0, 0) is None
    assert 0 not in set(Kind)


@given(salts, u64, u64, u64)
def test_a_group_header_is_read_back_as_it_was_written(salt: int, size: int, first_lsn: int, next_lsn: int) -> None:
    stored = encode_group_header(salt, size, first_lsn, next_lsn)
    assert len(stored) == GROUP_HEADER_SIZE
    assert decode_group_header(memoryview(b"12345678" + stored), 8, salt) == GroupHeader(size, first_lsn, next_lsn)


@given(salts, salts, st.integers(0, GROUP_HEADER_SIZE * 8 - 1))
def test_a_group_header_of_another_life_or_with_a_flipped_bit_is_none(salt: int, other: int, bit: int) -> None:
    stored = bytearray(encode_group_header(salt, 80, 5, 7))
    if other != salt:
        assert decode_group_header(memoryview(stored), 0, other) is None
    stored[bit // 8] ^= 1 << bit % 8
    assert decode_group_header(memoryview(stored), 0, salt) is None


@pytest.mark.parametrize("size", range(GROUP_HEADER_SIZE))
def test_a_group_header_that_is_cut_off_is_none(size: int) -> None:
    assert decode_group_header(memoryview(encode_group_header(1, 80, 5, 7)[:size]), 0, 1) is None


def test_the_head_of_an_append_frame_has_room_for_an_entry_header() -> None:
    assert APPEND_HEAD.size == ENTRY_HEADER_SIZE == 40
