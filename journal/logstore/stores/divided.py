"""A log in one store, and the files that its entries name in another: a database beside an object store."""

from __future__ import annotations

from typing import Final

from journal.logstore.keys import file_folder
from journal.logstore.store import Created, LogStore


class DividedLogStore:
    """Pieces of files go to a store of their own; everything else goes to the store of the log.

    Args:
        log: The store of the log. Closed with this one.
        root: What its keys begin with.
        objects: The store of the files. Closed with this one.
        objects_root: What its keys begin with.
    """

    def __init__(self, log: LogStore, root: str, objects: LogStore, objects_root: str) -> None:
        self._log: Final = log
        self._objects: Final = objects
        self._ours: Final = file_folder(root)
        self._theirs: Final = file_folder(objects_root)

    def create(self, key: str, data: bytes) -> Created:
        store, there = self._place(key)
        return store.create(there, data)

    def get(self, key: str) -> bytes | None:
        store, there = self._place(key)
        return store.get(there)

    def list_after(self, key: str) -> list[str]:
        store, there = self._place(key)
        found = store.list_after(there)
        if store is self._log:
            return found
        return [self._ours + name.removeprefix(self._theirs) for name in found]

    def delete(self, key: str) -> None:
        store, there = self._place(key)
        store.delete(there)

    def close(self) -> None:
        self._log.close()
        self._objects.close()

    def _place(self, key: str) -> tuple[LogStore, str]:
        """The store in which a key lies, and the key there."""
        if key.startswith(self._ours):
            return self._objects, self._theirs + key.removeprefix(self._ours)
        return self._log, key
