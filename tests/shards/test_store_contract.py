"""What every `OrderedStore` does, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdict import Rdict, WriteBatch

from shards.errors import StorageFailedError
from shards.seams.memory_store import MemoryStore
from shards.seams.rocks_store import RocksStore
from shards.seams.store import Family, Mutations, OrderedStore, prefix_end
from tests.simulation.file_system import SimulatedFileSystem
from tests.simulation.store import SimulatedStore

OpenStore = Callable[[], OrderedStore]

LASTING = ("rocks", "rocks that stalls", "simulated")


class StallingStore(RocksStore):
    """Its RocksDB refuses most writes for the moment, and takes what waits one by one."""

    refusals = 3

    def _write_now(self, db: Rdict, batch: WriteBatch) -> None:
        self.refusals += 1
        if self.refusals % 4:
            raise Exception("Result incomplete: Write stall")
        super()._write_now(db, batch)


@pytest.fixture(params=["memory", *LASTING])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """A function that opens the store; of those that last, the same one each time."""
    opened: list[OrderedStore] = []
    file_system = SimulatedFileSystem()

    def open_it() -> OrderedStore:
        if request.param == "memory":
            store: OrderedStore = MemoryStore()
        elif request.param == "simulated":
            store = SimulatedStore(file_system, "/data/store")
        else:
            kind = StallingStore if request.param == "rocks that stalls" else RocksStore
            store = kind(str(tmp_path / "store"))
        opened.append(store)
        return store

    yield open_it
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> OrderedStore:
    return open_store()


def put(store: OrderedStore, *keys: bytes, family: Family = Family.STATE) -> None:
    mutations = Mutations()
    for key in keys:
        mutations.put(family, key, b"of " + key)
    store.write(mutations)


def keys(items: Iterator[tuple[bytes, bytes]]) -> list[bytes]:
    return [key for key, _ in items]


def test_a_key_that_was_never_put_is_not_there(store: OrderedStore) -> None:
    assert store.get(Family.STATE, b"a") is None
    assert list(store.scan(Family.STATE)) == []


def test_the_last_put_or_delete_of_a_batch_wins(store: OrderedStore) -> None:
    mutations = Mutations()
    mutations.put(Family.STATE, b"a", b"1")
    mutations.put(Family.STATE, b"a", b"2")
    mutations.put(Family.STATE, b"b", b"1")
    mutations.delete(Family.STATE, b"b")
    mutations.delete(Family.STATE, b"c")
    mutations.put(Family.STATE, b"c", b"1")
    assert (len(mutations), mutations.size_bytes) == (3, 5)
    assert mutations.get(store, Family.STATE, b"a") == b"2"
    assert mutations.get(store, Family.STATE, b"b") is None
    store.write(mutations)
    assert Mutations().get(store, Family.STATE, b"a") == b"2"
    assert list(store.scan(Family.STATE)) == [(b"a", b"2"), (b"c", b"1")]


def test_deleting_a_key_that_is_not_there_is_no_error(store: OrderedStore) -> None:
    mutations = Mutations()
    mutations.delete(Family.STATE, b"a")
    store.write(mutations)
    assert store.get(Family.STATE, b"a") is None


def test_families_do_not_see_each_other(store: OrderedStore) -> None:
    for family in Family:
        put(store, b"", b"\x00", family.encode(), b"\xff\xff", family=family)
    for family in Family:
        expected = sorted([b"", b"\x00", family.encode(), b"\xff\xff"])
        assert keys(store.scan(family)) == expected
        assert keys(store.scan(family, reverse=True)) == expected[::-1]
        assert store.get(family, family.encode()) == b"of " + family.encode()


def test_an_empty_value_is_a_value(store: OrderedStore) -> None:
    mutations = Mutations()
    mutations.put(Family.META, b"k", b"")
    store.write(mutations)
    assert store.get(Family.META, b"k") == b""


def test_a_scan_gives_the_keys_of_its_prefix_in_order(store: OrderedStore) -> None:
    put(store, b"b/2", b"a", b"b/1", b"b", b"b/", b"b0", b"c")
    assert list(store.scan(Family.STATE, b"b/")) == [(b"b/", b"of b/"), (b"b/1", b"of b/1"), (b"b/2", b"of b/2")]
    assert keys(store.scan(Family.STATE, b"b/", reverse=True)) == [b"b/2", b"b/1", b"b/"]


def test_a_scan_from_a_start_includes_it(store: OrderedStore) -> None:
    put(store, b"b/1", b"b/2", b"b/3", b"c")
    assert keys(store.scan(Family.STATE, b"b/", start=b"b/2")) == [b"b/2", b"b/3"]
    assert keys(store.scan(Family.STATE, b"b/", start=b"b/2", reverse=True)) == [b"b/2", b"b/1"]
    assert keys(store.scan(Family.STATE, b"b/", start=b"b/15")) == [b"b/2", b"b/3"]
    assert keys(store.scan(Family.STATE, b"b/", start=b"b/15", reverse=True)) == [b"b/1"]


def test_a_start_outside_of_the_prefix_yields_no_foreign_key(store: OrderedStore) -> None:
    put(store, b"a", b"b/1", b"c")
    assert keys(store.scan(Family.STATE, b"b/", start=b"a")) == [b"b/1"]
    assert keys(store.scan(Family.STATE, b"b/", start=b"c")) == []
    assert keys(store.scan(Family.STATE, b"b/", start=b"c", reverse=True)) == [b"b/1"]
    assert keys(store.scan(Family.STATE, b"b/", start=b"a", reverse=True)) == []


def test_a_long_scan_gives_each_key_once_in_both_directions(store: OrderedStore) -> None:
    expected = [b"%05d" % number for number in range(2_000)]
    put(store, *expected)
    assert keys(store.scan(Family.STATE)) == expected
    assert keys(store.scan(Family.STATE, reverse=True)) == expected[::-1]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_continues_while_what_it_reads_is_deleted(store: OrderedStore, reverse: bool) -> None:
    expected = [b"%05d" % number for number in range(2_000)]
    put(store, *expected)
    seen = []
    for key, _ in store.scan(Family.STATE, reverse=reverse):
        seen.append(key)
        mutations = Mutations()
        mutations.delete(Family.STATE, key)
        store.write(mutations)
    assert sorted(seen) == expected
    assert list(store.scan(Family.STATE)) == []


def test_a_scan_in_steps_gives_what_a_scan_gives(store: OrderedStore) -> None:
    put(store, b"a", *(b"b/%05d" % number for number in range(2_000)), b"c")
    for prefix, start in ((b"", None), (b"b/", None), (b"b/", b"a"), (b"b/", b"b/01234"), (b"b/", b"c"), (b"d", None)):
        steps = store.scan_in_steps(Family.STATE, prefix, start=start)
        assert [item for item in steps if item] == list(store.scan(Family.STATE, prefix, start=start))


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    st.lists(st.binary(max_size=3), max_size=40),
    st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 1500), st.integers(0, 40))),
    st.binary(max_size=2),
)
def test_a_scan_in_steps_finds_keys_between_many_deleted_ones(
    store: OrderedStore, left: list[bytes], deleted: list[tuple[bytes, int, int]], prefix: bytes
) -> None:
    """One step has to end within a range that it cannot see, and must neither lose nor repeat a key of it."""
    mutations = Mutations()
    for before, count, after_bytes in deleted:
        for number in range(count):
            mutations.delete(Family.CURSORS, before + number.to_bytes(2, "big") + bytes(after_bytes))
    for key in left:
        mutations.put(Family.CURSORS, key, b"v")
    store.write(mutations)
    found = [item[0] for item in store.scan_in_steps(Family.CURSORS, prefix) if item is not None]
    assert found == keys(store.scan(Family.CURSORS, prefix))
    assert set(found) >= {key for key in left if key.startswith(prefix)}


def test_a_scan_in_steps_continues_while_what_it_reads_is_deleted(store: OrderedStore) -> None:
    expected = [b"%05d" % number for number in range(2_000)]
    put(store, *expected)
    seen = []
    for item in store.scan_in_steps(Family.STATE):
        if item is not None:
            seen.append(item[0])
            mutations = Mutations()
            mutations.delete(Family.STATE, item[0])
            store.write(mutations)
    assert seen == expected
    assert not [item for item in store.scan_in_steps(Family.STATE) if item is not None]


def test_a_scan_left_half_way_does_not_keep_the_store_from_closing(open_store: OpenStore) -> None:
    store = open_store()
    put(store, *(b"%05d" % number for number in range(2_000)))
    scan = store.scan(Family.STATE)
    next(scan)
    store.close()
    open_store()
    with pytest.raises(StorageFailedError):
        list(scan)


def test_a_closed_store_says_so(store: OrderedStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StorageFailedError, match="closed"):
        store.get(Family.STATE, b"a")
    with pytest.raises(StorageFailedError, match="closed"):
        store.write(Mutations())
    with pytest.raises(StorageFailedError, match="closed"):
        store.flush()
    with pytest.raises(StorageFailedError, match="closed"):
        next(store.scan(Family.STATE))


@pytest.mark.parametrize("open_store", LASTING, indirect=True)
def test_what_was_flushed_is_there_after_reopening(open_store: OpenStore) -> None:
    store = open_store()
    for family in Family:
        put(store, b"kept", b"gone", family=family)
    mutations = Mutations()
    for family in Family:
        mutations.delete(family, b"gone")
    store.write(mutations)
    store.flush()
    store.close()
    store = open_store()
    for family in Family:
        assert list(store.scan(family)) == [(b"kept", b"of kept")]


short_keys = st.lists(st.sampled_from([0, 1, 0x61, 0xFE, 0xFF]), max_size=4).map(bytes)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(present=st.sets(short_keys), prefix=short_keys, start=st.none() | short_keys, reverse=st.booleans())
def test_a_scan_equals_filtering_and_sorting(
    store: OrderedStore, present: set[bytes], prefix: bytes, start: bytes | None, reverse: bool
) -> None:
    mutations = Mutations()
    for key in keys(store.scan(Family.CURSORS)):
        mutations.delete(Family.CURSORS, key)
    for key in present:
        mutations.put(Family.CURSORS, key, key)
    store.write(mutations)
    expected = sorted(key for key in present if key.startswith(prefix))
    if start is not None:
        expected = [key for key in expected if (key <= start if reverse else key >= start)]
    found = keys(store.scan(Family.CURSORS, prefix, start=start, reverse=reverse))
    assert found == (expected[::-1] if reverse else expected)


@given(prefix=st.binary(max_size=4), key=st.binary(max_size=6))
def test_the_end_of_a_prefix_parts_its_keys_from_the_higher_ones(prefix: bytes, key: bytes) -> None:
    end = prefix_end(prefix)
    if key.startswith(prefix):
        assert end is None or key < end
    elif key > prefix:
        assert end is not None
        assert key >= end
