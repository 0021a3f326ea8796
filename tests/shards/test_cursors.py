from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.write.decisions import check_version
from shards.errors import CorruptionError, FormatVersionError, InvalidRequestError, VersionConflictError
from shards.model import Cursor
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.views.cursors import Cursors

MAX_U64 = 2**64 - 1


def commit(store: MemoryStore, shard_id: int, name: str, offset: int, version: int) -> None:
    mutations = Mutations()
    Cursors(store).fold_commit(mutations, shard_id, name, offset, version)
    store.write(mutations)


def test_a_committed_cursor_is_read_back() -> None:
    store = MemoryStore()
    assert Cursors(store).get(1, "billing") is None
    commit(store, 1, "billing", 42, 7)
    assert Cursors(store).get(1, "billing") == Cursor("billing", 42, 7)
    commit(store, 1, "billing", MAX_U64, MAX_U64)
    assert Cursors(store).get(1, "billing") == Cursor("billing", MAX_U64, MAX_U64)
    assert Cursors(store).get(2, "billing") is None


def test_a_shard_lists_its_own_cursors_sorted_by_name() -> None:
    store = MemoryStore()
    for shard_id, name in [(1, "b"), (1, "ä/1"), (1, "a"), (2, "c"), (256, "d"), (0, "e")]:
        commit(store, shard_id, name, 5, 6)
    assert [cursor.name for cursor in Cursors(store).list(1)] == ["a", "b", "ä/1"]
    assert [cursor.name for cursor in Cursors(store).list(256)] == ["d"]
    assert Cursors(store).list(3) == []


def test_deleting_a_cursor_leaves_all_others() -> None:
    store = MemoryStore()
    for shard_id, name in [(1, "a"), (1, "b"), (1, "c"), (2, "a")]:
        commit(store, shard_id, name, 5, 6)
    mutations = Mutations()
    Cursors(store).fold_delete(mutations, 1, "b")
    Cursors(store).fold_delete(mutations, 1, "never there")
    store.write(mutations)
    assert [cursor.name for cursor in Cursors(store).list(1)] == ["a", "c"]
    assert [cursor.name for cursor in Cursors(store).list(2)] == ["a"]


def test_a_stored_cursor_keeps_its_bytes() -> None:
    """The layout is part of format version 1."""
    store = MemoryStore()
    commit(store, 258, "é", 3, 4)
    assert list(store.scan(Family.CURSORS)) == [
        (bytes.fromhex("0000000000000102 c3a9"), bytes.fromhex("01 0000000000000003 0000000000000004"))
    ]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (b"\x02" + bytes(16), FormatVersionError, "cursor 'a' of shard 1 is stored in format 02"),
        (b"", FormatVersionError, "format none"),
        (b"\x01" + bytes(15), CorruptionError, "16 bytes, expected 17"),
    ],
)
def test_a_damaged_cursor_is_an_error_that_names_it(value: bytes, error: type[Exception], message: str) -> None:
    store = MemoryStore()
    mutations = Mutations()
    mutations.put(Family.CURSORS, bytes(7) + b"\x01a", value)
    store.write(mutations)
    with pytest.raises(error, match=message):
        Cursors(store).get(1, "a")
    with pytest.raises(error, match=message):
        Cursors(store).list(1)


@given(found=st.integers(0, MAX_U64), expected=st.integers(0, MAX_U64))
def test_compare_and_set_takes_the_very_version_only(found: int, expected: int) -> None:
    check_version("it", None, found)
    check_version("it", found, found)
    if expected != found:
        with pytest.raises(VersionConflictError) as caught:
            check_version("it", expected, found)
        assert (caught.value.expected_version, caught.value.found_version) == (expected, found)


def test_compare_and_set_refuses_a_negative_version() -> None:
    with pytest.raises(InvalidRequestError, match="expected version of it is -1"):
        check_version("it", -1, 0)
