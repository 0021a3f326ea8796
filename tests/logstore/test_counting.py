"""Requests to a log store are counted by kind, also those that fail: object stores charge for each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from journal.logstore.counting import CountedLogStore, RequestCounts
from journal.logstore.errors import StoreUnreachableError
from journal.logstore.store import Created
from journal.logstore.stores.memory import MemoryLogStore


class Unreachable(MemoryLogStore):
    def create(self, key: str, data: bytes) -> Created:
        raise StoreUnreachableError(f"create {key}: no route")


def test_each_request_and_its_bytes_are_counted() -> None:
    store = CountedLogStore(MemoryLogStore())
    assert store.create("a/1", b"four") is Created.OURS
    assert store.create("a/1", b"other") is Created.EXISTS
    assert (store.get("a/1"), store.get("a/2")) == (b"four", None)
    assert store.list_after("a/") == ["a/1"]
    store.delete("a/1")
    store.delete("a/2")
    store.get("a/1")
    assert store.requests == RequestCounts(creates=2, gets=3, lists=1, deletes=2, sent_bytes=9, received_bytes=4)
    assert store.requests.by_kind() == {"create": 2, "delete": 2, "get": 3, "list": 1}


def test_a_request_that_fails_was_a_request() -> None:
    store = CountedLogStore(Unreachable())
    for _ in range(3):
        with pytest.raises(StoreUnreachableError):
            store.create("a/1", b"four")
    assert (store.requests.creates, store.requests.sent_bytes) == (3, 12)


def test_requests_of_several_threads_are_all_counted() -> None:
    store = CountedLogStore(MemoryLogStore())
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: store.create(f"a/{number}", b"x"), range(1000)))
    assert (store.requests.creates, store.requests.sent_bytes) == (1000, 1000)
