from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shards.errors import CorruptionError, FormatVersionError
from shards.model import StateValue
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.views.state_store import StateStore


def put(store: MemoryStore, key: bytes, value: bytes = b"", version: int = 1, expires_at_us: int = 0) -> None:
    mutations = Mutations()
    StateStore(store).fold_put(mutations, key, value, version, expires_at_us)
    store.write(mutations)


def test_a_value_is_read_back_until_it_expires() -> None:
    store = MemoryStore()
    put(store, b"session", b"bytes", version=9, expires_at_us=1_000)
    state = StateStore(store)
    assert state.get(b"session", 999) == StateValue(b"session", b"bytes", 9, 1_000)
    assert state.get(b"session", 1_000) is None
    assert state.get(b"sess", 0) is None


def test_a_value_without_expiry_stays() -> None:
    store = MemoryStore()
    put(store, b"", b"empty key")
    assert StateStore(store).get(b"", 2**63) == StateValue(b"", b"empty key", 1)
    assert StateStore(store).expired(2**63, 10) == []


def test_a_scan_pages_through_the_unexpired_values_of_a_prefix() -> None:
    store = MemoryStore()
    for name in (b"a/1", b"a/2", b"a/3", b"a/4", b"b", b"a"):
        put(store, name, expires_at_us=50 if name == b"a/2" else 0)
    state = StateStore(store)
    first = state.scan(b"a/", 60, limit=2)
    assert [value.key for value in first] == [b"a/1", b"a/3"]
    assert [value.key for value in state.scan(b"a/", 60, after=b"a/3", limit=2)] == [b"a/4"]
    assert [value.key for value in state.scan(b"a/", 40, after=b"a/11", limit=9)] == [b"a/2", b"a/3", b"a/4"]
    assert [value.key for value in state.scan(b"", 60, limit=9)] == [b"a", b"a/1", b"a/3", b"a/4", b"b"]
    assert state.scan(b"a/", 60, limit=0) == []


def test_expired_keys_come_in_the_order_of_their_expiry() -> None:
    store = MemoryStore()
    put(store, b"late", expires_at_us=300)
    put(store, b"early", expires_at_us=100)
    put(store, b"middle", expires_at_us=256)
    state = StateStore(store)
    assert state.expired(99, 10) == []
    assert state.expired(256, 10) == [b"early", b"middle"]
    assert state.expired(1_000, 2) == [b"early", b"middle"]


def test_putting_a_key_twice_in_one_batch_leaves_one_index_entry() -> None:
    """Guards against an index entry that outlives its value because the value was still pending."""
    store = MemoryStore()
    state = StateStore(store)
    mutations = Mutations()
    state.fold_put(mutations, b"k", b"1", 1, 100)
    state.fold_put(mutations, b"k", b"2", 2, 200)
    state.fold_put(mutations, b"gone", b"1", 3, 100)
    state.fold_delete(mutations, b"gone")
    store.write(mutations)
    assert state.expired(1_000, 10) == [b"k"]
    assert state.expired(150, 10) == []
    assert len(list(store.scan(Family.STATE))) == 2


def test_stored_state_keeps_its_bytes() -> None:
    """The layout is part of format version 1."""
    store = MemoryStore()
    put(store, b"k", b"value", version=2, expires_at_us=258)
    assert list(store.scan(Family.STATE)) == [
        (b"vk", bytes.fromhex("01 0000000000000002 0000000000000102") + b"value"),
        (b"x" + bytes.fromhex("0000000000000102") + b"k", b""),
    ]


@pytest.mark.parametrize(
    ("stored", "error", "message"),
    [
        (b"\x09" + bytes(16), FormatVersionError, "state of key b'k' is stored in format 09"),
        (b"\x01" + bytes(9), CorruptionError, "10 bytes, expected 17 or more"),
    ],
)
def test_a_damaged_value_is_an_error_that_names_its_key(stored: bytes, error: type[Exception], message: str) -> None:
    store = MemoryStore()
    mutations = Mutations()
    mutations.put(Family.STATE, b"vk", stored)
    store.write(mutations)
    with pytest.raises(error, match=message):
        StateStore(store).get(b"k", 0)
    with pytest.raises(error, match=message):
        StateStore(store).scan(b"", 0, limit=1)


changes = st.lists(
    st.tuples(st.sampled_from([b"", b"a", b"ab", b"b"]), st.none() | st.sampled_from([0, 10, 20, 30])), max_size=12
)


@given(changes=changes, batch_size=st.integers(1, 5))
def test_folding_twice_equals_folding_once(changes: list[tuple[bytes, int | None]], batch_size: int) -> None:
    def fold_all(store: MemoryStore) -> dict[bytes, bytes]:
        state = StateStore(store)
        for first in range(0, len(changes), batch_size):
            mutations = Mutations()
            for lsn, (key, expires_at_us) in list(enumerate(changes, 1))[first : first + batch_size]:
                if expires_at_us is None:
                    state.fold_delete(mutations, key)
                else:
                    state.fold_put(mutations, key, b"%d" % lsn, lsn, expires_at_us)
            store.write(mutations)
        return dict(store.scan(Family.STATE))

    store = MemoryStore()
    assert fold_all(store) == fold_all(store)


class StateAgainstModel(RuleBasedStateMachine):
    """The view against a plain dictionary, with time moving on."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.state = StateStore(self.store)
        self.model: dict[bytes, StateValue] = {}
        self.lsn = 0
        self.now_us = 0

    @rule(key=st.sampled_from([b"", b"a", b"a\x00", b"a\xff", b"b"]), life_us=st.none() | st.integers(1, 20))
    def put(self, key: bytes, life_us: int | None) -> None:
        self.lsn += 1
        expires_at_us = 0 if life_us is None else self.now_us + life_us
        mutations = Mutations()
        self.state.fold_put(mutations, key, b"%d" % self.lsn, self.lsn, expires_at_us)
        self.store.write(mutations)
        self.model[key] = StateValue(key, b"%d" % self.lsn, self.lsn, expires_at_us)

    @rule(key=st.sampled_from([b"", b"a", b"b"]))
    def delete(self, key: bytes) -> None:
        mutations = Mutations()
        self.state.fold_delete(mutations, key)
        self.store.write(mutations)
        self.model.pop(key, None)

    @rule(duration_us=st.integers(1, 15))
    def wait(self, duration_us: int) -> None:
        self.now_us += duration_us

    @rule(limit=st.integers(1, 3))
    def sweep(self, limit: int) -> None:
        mutations = Mutations()
        for key in self.state.expired(self.now_us, limit):
            self.state.fold_delete(mutations, key)
            del self.model[key]
        self.store.write(mutations)

    @invariant()
    def readers_see_what_has_not_expired(self) -> None:
        alive = {key: value for key, value in self.model.items() if not 0 < value.expires_at_us <= self.now_us}
        assert self.state.scan(b"", self.now_us, limit=99) == [alive[key] for key in sorted(alive)]
        assert {key: self.state.get(key, self.now_us) for key in self.model} == {
            key: alive.get(key) for key in self.model
        }

    @invariant()
    def the_index_names_what_has_expired_and_nothing_else(self) -> None:
        dead = [v for v in self.model.values() if 0 < v.expires_at_us <= self.now_us]
        expected = [value.key for value in sorted(dead, key=lambda value: (value.expires_at_us, value.key))]
        assert self.state.expired(self.now_us, 99) == expected
        expiring = sum(1 for value in self.model.values() if value.expires_at_us)
        assert len(list(self.store.scan(Family.STATE, b"x"))) == expiring


TestStateAgainstModel = StateAgainstModel.TestCase
TestStateAgainstModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
