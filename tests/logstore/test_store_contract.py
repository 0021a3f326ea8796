"""What every log store does, whatever system it lies in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from journal.logstore import Created, LogStore, drive, run
from journal.logstore.errors import ForeignStoreError
from journal.logstore.probe import RIVALS, identify, probe
from journal.logstore.settling import settle_create
from journal.logstore.stores.directory import DirectoryLogStore
from tests.logstore.stage import ALL, KINDS


@pytest.fixture(params=ALL)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    opened = KINDS[request.param](tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def root() -> str:
    """Stores of one server are shared by the tests of a run."""
    return f"test-{uuid4().hex}"


def test_what_was_created_is_read_and_listed_at_once(store: LogStore, root: str) -> None:
    for number in range(5):
        key = f"{root}/log/{number}"
        assert store.create(key, b"%d" % number) is Created.OURS
        assert store.get(key) == b"%d" % number
        assert sorted(store.list_after(f"{root}/log/")) == [f"{root}/log/{other}" for other in range(number + 1)]


def test_an_object_keeps_its_bytes(store: LogStore, root: str) -> None:
    key = f"{root}/log/1"
    assert store.create(key, b"first") is Created.OURS
    assert store.create(key, b"second") is Created.EXISTS
    assert store.create(key, b"first") is Created.EXISTS
    assert store.get(key) == b"first"


def test_what_does_not_exist_is_none_and_may_be_deleted(store: LogStore, root: str) -> None:
    assert store.get(f"{root}/log/1") is None
    assert store.list_after(f"{root}/log/") == []
    store.delete(f"{root}/log/1")


def test_a_deleted_object_is_gone_and_can_be_created_again(store: LogStore, root: str) -> None:
    key = f"{root}/log/1"
    store.create(key, b"first")
    store.delete(key)
    assert store.get(key) is None
    assert store.list_after(f"{root}/log/") == []
    assert store.create(key, b"second") is Created.OURS


def test_a_listing_has_the_keys_of_one_folder_after_a_key(store: LogStore, root: str) -> None:
    for name in ("log/1", "log/2", "log/3", "log/2/below", "log0/4", "lo/5", "log-2/6"):
        if name != "log/2/below":
            store.create(f"{root}/{name}", b"")
    store.create(f"{root}/log/deeper/1", b"")
    assert sorted(store.list_after(f"{root}/log/")) == [f"{root}/log/{number}" for number in (1, 2, 3)]
    assert sorted(store.list_after(f"{root}/log/1")) == [f"{root}/log/2", f"{root}/log/3"]
    assert store.list_after(f"{root}/log/3") == []


def test_a_listing_is_complete_beyond_one_page(store: LogStore, root: str) -> None:
    # A page of S3 has 1,000 keys. A directory has none, and each create in it waits for the disk.
    count = 50 if isinstance(store, DirectoryLogStore) else 1100
    with ThreadPoolExecutor(8) as creators:
        list(creators.map(lambda number: store.create(f"{root}/log/{number:05}", b""), range(count)))
    found = sorted(store.list_after(f"{root}/log/00009"))
    assert found == [f"{root}/log/{number:05}" for number in range(10, count)]


@pytest.mark.parametrize("size", [0, 1, 65_536, 8 * 1024 * 1024])
def test_bytes_come_back_as_they_were(store: LogStore, root: str, size: int) -> None:
    data = bytes(itertools.islice(itertools.cycle(range(256)), size))
    store.create(f"{root}/log/1", data)
    assert store.get(f"{root}/log/1") == data


@pytest.mark.parametrize("key", ["", "/", "a//b", "../a", "a/..", "a/./b", "a b", "a/b/", "ü", "a\n", "a/" * 300 + "b"])
def test_a_key_of_another_form_is_refused(store: LogStore, key: str) -> None:
    for request in (store.get, store.delete, lambda name: store.create(name, b"")):
        with pytest.raises(ValueError, match="is no key"):
            request(key)


def test_one_of_many_rivals_wins(store: LogStore, root: str) -> None:
    with ThreadPoolExecutor(RIVALS) as rivals:
        for round_number in range(5):
            key = f"{root}/log/{round_number}"
            contents = [b"%d" % number for number in range(RIVALS)]
            answers = list(rivals.map(lambda data, key=key: run(store, settle_create(key, data)), contents))
            winners = [data for data, answer in zip(contents, answers, strict=True) if answer.is_ours]
            assert winners == [store.get(key)]
            assert {answer.found for answer in answers} == set(winners)


def test_the_probe_accepts_it_and_leaves_nothing(store: LogStore, root: str) -> None:
    trio.run(probe, store, root, "token")
    assert store.list_after(f"{root}/probe/token/") == []


def test_a_store_keeps_its_identity(store: LogStore, root: str) -> None:
    first = run(store, identify(root, b"1" * 16, b"a" * 16, b"n" * 16))
    second = run(store, identify(root, b"2" * 16, b"b" * 16, b"m" * 16))
    assert (first.is_new, second.is_new) == (True, False)
    assert first.store_id == second.store_id == b"1" * 16


def test_something_else_in_the_place_of_a_store_is_refused(store: LogStore, root: str) -> None:
    store.create(f"{root}/store", b"notes for the holidays")
    with pytest.raises(ForeignStoreError, match="is no object of a store: it begins with b'notes fo'"):
        run(store, identify(root, b"1" * 16, b"a" * 16, b"n" * 16))


async def test_steps_run_beside_an_event_loop(store: LogStore, root: str) -> None:
    limiter = trio.CapacityLimiter(4)
    contents = [b"%d" % number for number in range(4)]
    won = []

    async def rival(data: bytes) -> None:
        if (await drive(store, settle_create(f"{root}/log/1", data), limiter)).is_ours:
            won.append(data)

    async with trio.open_nursery() as nursery:
        for data in contents:
            nursery.start_soon(rival, data)
    assert won == [store.get(f"{root}/log/1")]
