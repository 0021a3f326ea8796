"""Counts of the requests to a log store. Object stores in a cloud charge for each request."""

from __future__ import annotations

import threading
from typing import Final

import attrs

from journal.logstore.store import Created, LogStore


@attrs.define(slots=True)
class RequestCounts:
    """Requests since the start, whatever their outcome.

    A listing counts as one, although a store may answer it in pages of a thousand keys. A create that is sent again
    because its outcome was unknown counts again.

    Attributes:
        creates: Objects that were to be created.
        gets: Objects that were read, also those that did not exist.
        lists: Listings.
        deletes: Objects that were deleted.
        sent_bytes: Bytes of the objects that were to be created.
        received_bytes: Bytes of the objects that were read.
    """

    creates: int = 0
    gets: int = 0
    lists: int = 0
    deletes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0

    def add(self, others: RequestCounts) -> None:
        """Add other requests to these."""
        self.creates += others.creates
        self.gets += others.gets
        self.lists += others.lists
        self.deletes += others.deletes
        self.sent_bytes += others.sent_bytes
        self.received_bytes += others.received_bytes

    def by_kind(self) -> dict[str, int]:
        """The numbers of requests, by their kinds."""
        return {"create": self.creates, "delete": self.deletes, "get": self.gets, "list": self.lists}


class CountedLogStore:
    """Passes every call to a store, and counts it.

    Args:
        store: The store. Closed with this one.

    Attributes:
        requests: The counts. They are changed by the threads that call.
    """

    def __init__(self, store: LogStore) -> None:
        self._store: Final = store
        self._counting: Final = threading.Lock()
        self.requests: Final = RequestCounts()

    def add(self, others: RequestCounts) -> None:
        """Count requests that another process made for this one."""
        with self._counting:
            self.requests.add(others)

    def take(self) -> RequestCounts:
        """The requests since the last call, for another process that counts them."""
        with self._counting:
            taken = attrs.evolve(self.requests)
            for name in (field.name for field in attrs.fields(RequestCounts)):
                setattr(self.requests, name, 0)
            return taken

    def create(self, key: str, data: bytes) -> Created:
        with self._counting:
            self.requests.creates += 1
            self.requests.sent_bytes += len(data)
        return self._store.create(key, data)

    def get(self, key: str) -> bytes | None:
        with self._counting:
            self.requests.gets += 1
        found = self._store.get(key)
        if found is not None:
            with self._counting:
                self.requests.received_bytes += len(found)
        return found

    def list_after(self, key: str) -> list[str]:
        with self._counting:
            self.requests.lists += 1
        return self._store.list_after(key)

    def delete(self, key: str) -> None:
        with self._counting:
            self.requests.deletes += 1
        self._store.delete(key)

    def close(self) -> None:
        self._store.close()
