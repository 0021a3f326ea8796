"""The interface of the ordered key-value store under all views: families, atomic mutations, `OrderedStore`.

The implementations are `shards.seams.memory_store` and `shards.seams.rocks_store`; both pass
`tests/shards/test_store_contract.py`. The views (`shards.views.cursors`, `shards.views.state_store`, ...) define the
keys and values.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Protocol


class Family(enum.StrEnum):
    """A separate key space. Keys are ordered within a family; a `Mutations` may change several."""

    META = "meta"
    CATALOGUE = "catalogue"
    SEGMENTS = "segments"
    CURSORS = "cursors"
    STATE = "state"
    PRODUCERS = "producers"
    KEY_INDEX = "key_index"
    FILES = "files"


class Mutations:
    """Puts and deletes that `OrderedStore.write` applies atomically. The last one of a key wins."""

    __slots__ = ("_by_family",)

    def __init__(self) -> None:
        self._by_family: dict[Family, dict[bytes, bytes | None]] = {family: {} for family in Family}

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set a key."""
        self._by_family[family][key] = value

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a key; a missing one is not an error."""
        self._by_family[family][key] = None

    def clear(self) -> None:
        """Remove all mutations."""
        for pending in self._by_family.values():
            pending.clear()

    def update(self, later: Mutations) -> None:
        """Add the puts and deletes of another `Mutations`, as if they came after these."""
        for family, pending in later._by_family.items():
            self._by_family[family].update(pending)

    def get(self, store: OrderedStore, family: Family, key: bytes) -> bytes | None:
        """Return the value that `store` would have for a key if these mutations were written."""
        pending = self._by_family[family]
        return pending[key] if key in pending else store.get(family, key)

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values. Keep one batch below a few MiB: a large one blocks every thread."""
        return sum(len(key) + len(value or b"") for _, key, value in self)

    def __len__(self) -> int:
        """Return the number of changed keys."""
        return sum(map(len, self._by_family.values()))

    def __iter__(self) -> Iterator[tuple[Family, bytes, bytes | None]]:
        """Yield each changed key once as (family, key, value); a value of None deletes."""
        for family, pending in self._by_family.items():
            for key, value in pending.items():
                yield family, key, value


class OrderedStore(Protocol):
    """An ordered map of bytes to bytes per family.

    All methods but `flush` are fast and may be called from one thread (the event loop's). `flush` blocks on the disk
    without holding the interpreter lock: call it in a thread; reads and writes may continue in the meantime.

    Raises:
        CorruptionError: By any method, if stored bytes are damaged.
        StorageFailedError: By any method, if the disk has failed or the store is closed. A failure of the disk is final
            until the store is opened again.
    """

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of a key, None if it does not exist."""
        ...

    def scan(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the keys that begin with `prefix`, in lexicographic order.

        The store may be written during a scan. Later writes before the scan's position are not seen, those after it may
        be; no key is returned twice.

        Args:
            start: Begin at this key, inclusive (in a reverse scan: at it or the next lower one). It need not exist
                nor begin with the prefix; keys without the prefix are never yielded.
            reverse: Go from the highest key to the lowest.
        """
        ...

    def scan_in_steps(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes] | None]:
        """The same, in order, in steps of bounded work: None after a step that found nothing, so the caller can pause.

        Deleted keys that the store has not removed yet cost a `scan` time although it does not return them: if there
        are many in a row, the call that searches the next key blocks until it has skipped all of them.
        """
        ...

    def write(self, mutations: Mutations) -> None:
        """Apply all mutations atomically. They are visible at once and durable after the next `flush`.

        After a crash the store contains exactly the writes up to some point at or after the last flush: never a part of
        one `Mutations`, never a later one without every earlier one, the same point for all families.
        """
        ...

    @property
    def queued_bytes(self) -> int:
        """Memory of writes that wait because the store is busy or has no space.

        They are visible, and bounded only if callers stop writing: let them call `catch_up`, in a thread.
        """
        ...

    def catch_up(self) -> None:
        """Return when the store has accepted everything that was written before the call; blocks like `flush`.

        Raises:
            DiskFullError: It has no space, or had none at the last flush. Nothing is lost; call it again later.
        """
        ...

    def check_directory(self) -> None:
        """Check that the directory of the store is where it was when it was opened.

        Raises:
            StorageFailedError: It was unmounted, moved or replaced. The store takes nothing more; nothing is lost.
        """
        ...

    def flush(self) -> None:
        """Return when everything that was written before the call is durable.

        Raises:
            DiskFullError: There is no space. Nothing is lost; call it again later.
        """
        ...

    def close(self) -> None:
        """Release the store and its lock; a second call does nothing. It does not replace `flush`."""
        ...


class DirectoryStore(OrderedStore, Protocol):
    """An `OrderedStore` in a directory of its own."""

    def copy_to(self, path: str) -> None:
        """Create another store in a directory that does not exist yet, with the content of this one at one moment.

        Everything that was written before this call is in it, and a prefix of the writes in the meantime. Immutable
        files may be shared with this store, so it costs little time and space. It is not durable by itself.

        Raises:
            StorageFailedError: The disk refused. This store is not affected.
        """
        ...


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the lowest key above all keys that begin with `prefix`; None if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else None
