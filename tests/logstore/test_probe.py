"""The probe refuses what a log cannot lie in."""

from __future__ import annotations

import pytest
import trio

from journal.logstore.errors import StoreCredentialsError, UnfitStoreError
from journal.logstore.probe import probe
from journal.logstore.store import Created
from journal.logstore.stores.memory import MemoryLogStore


class Replacing(MemoryLogStore):
    """Ignores the condition, as some object stores do."""

    def create(self, key: str, data: bytes) -> Created:
        self.delete(key)
        return super().create(key, data)


class ReplacingLater(MemoryLogStore):
    """Ignores it when nobody else creates the same object at the same time."""

    def create(self, key: str, data: bytes) -> Created:
        if data == b"later":
            self.delete(key)
        return super().create(key, data)


class AnsweringAll(MemoryLogStore):
    """Keeps the first object and tells every rival that it won."""

    def create(self, key: str, data: bytes) -> Created:
        super().create(key, data)
        return Created.OURS


class Stale(MemoryLogStore):
    """Reads come from a replica that lags behind."""

    def get(self, key: str) -> bytes | None:
        return None if key.endswith("/2") else super().get(key)


class ListingLate(MemoryLogStore):
    """Listings lag behind."""

    def list_after(self, key: str) -> list[str]:
        return [name for name in super().list_after(key) if not name.endswith("/2")]


class ReadOnly(MemoryLogStore):
    """Refuses to write."""

    def create(self, key: str, data: bytes) -> Created:
        raise StoreCredentialsError(f"create of {key}: not allowed")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Replacing, r"\d+ of 32 rivals were told that they created one object|a second create replaced"),
        (ReplacingLater, r"a second create replaced root/probe/token/1: it holds b'later', not b'\d+ of token'"),
        (AnsweringAll, "32 of 32 rivals were told that they created one object, not 1: the store does not support"),
        (Stale, "was not found right after it was created"),
        (ListingLate, r"a listing after root/probe/token/1 right after the creates has \[\], not"),
    ],
)
def test_the_probe_refuses(kind: type[MemoryLogStore], message: str) -> None:
    store = kind()
    with pytest.raises(UnfitStoreError, match=message):
        trio.run(probe, store, "root", "token")
    assert MemoryLogStore.list_after(store, "root/probe/token/") == []


class RefusingAll(ReadOnly):
    """Does not know the key."""

    def delete(self, key: str) -> None:
        raise StoreCredentialsError(f"delete of {key}: not allowed")


@pytest.mark.parametrize("kind", [ReadOnly, RefusingAll])
def test_the_probe_says_what_the_store_refuses(kind: type[MemoryLogStore]) -> None:
    """Of a wrong key it said that what it had not created could not be deleted."""
    with pytest.raises(StoreCredentialsError, match=r"create of .*: not allowed"):
        trio.run(probe, kind(), "root", "token")
