"""Commit groups in slots: what was encoded is decoded, and damage is an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.shared_log.slot_groups import SlotGroup, decode_groups, encode_group
from journal.engine.wal.entry import encode_entry
from journal.engine.wal.entry_payloads import KINDS, Trimmed, encode_payload
from journal.logstore.errors import LogDamagedError


def entry_of(lsn: int, offset: int) -> bytes:
    decision = Trimmed(offset)
    return encode_entry(KINDS[type(decision)], lsn, 7, encode_payload(decision))


def body_of(offsets: list[int], first_lsn: int) -> bytes:
    entries = [entry_of(first_lsn + at, offset) for at, offset in enumerate(offsets)]
    return encode_group(entries, sum(map(len, entries)), first_lsn, first_lsn + len(entries))


def told(group: SlotGroup) -> tuple[list[int], int, int]:
    return [entry.lsn for entry in group.entries], group.first_lsn, group.next_lsn


OFFSETS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20)


@given(st.lists(OFFSETS, min_size=1, max_size=4), st.integers(1, 2**40))
def test_the_groups_of_a_slot_are_decoded_as_they_were_encoded(groups: list[list[int]], first_lsn: int) -> None:
    body, expected, lsn = b"", [], first_lsn
    for offsets in groups:
        body += body_of(offsets, lsn)
        expected.append((list(range(lsn, lsn + len(offsets))), lsn, lsn + len(offsets)))
        lsn += len(offsets)
    assert [told(group) for group in decode_groups("key", body)] == expected


@given(OFFSETS, st.data())
def test_a_flipped_bit_is_found(offsets: list[int], data: st.DataObject) -> None:
    body = bytearray(body_of(offsets, 5))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        groups = list(decode_groups("key", bytes(body)))
    except LogDamagedError as error:
        assert str(error).startswith("key at byte ")
    else:
        # Only the bytes that fill an entry up to a multiple of 8 have no checksum.
        assert [told(group) for group in groups] == [(list(range(5, 5 + len(offsets))), 5, 5 + len(offsets))]


@given(OFFSETS, st.data())
def test_a_slot_that_was_cut_off_is_damaged(offsets: list[int], data: st.DataObject) -> None:
    body = body_of(offsets, 5)
    with pytest.raises(LogDamagedError, match=r"^key at byte "):
        list(decode_groups("key", body[: data.draw(st.integers(1, len(body) - 1))]))
