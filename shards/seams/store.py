"""The ordered key-value seam under all views: families, atomic mutations, the `OrderedStore` protocol.

The implementations are `shards.seams.memory_store` and `shards.seams.rocks_store`; every one passes
`tests/shards/test_store_contract.py`. What keys and values mean is the business of the views (`shards.views.cursors`,
`shards.views.state_store`, ...), never of a store.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Protocol


class Family(enum.StrEnum):
    """A key space of its own. Keys are ordered within a family; a `Mutations` may touch several."""

    META = "meta"
    CATALOGUE = "catalogue"
    SEGMENTS = "segments"
    CURSORS = "cursors"
    STATE = "state"
    PRODUCERS = "producers"
    KEY_INDEX = "key_index"


class Mutations:
    """Puts and deletes that `OrderedStore.write` carries out together, all or none. The last one on a key wins."""

    __slots__ = ("_by_family",)

    def __init__(self) -> None:
        self._by_family: dict[Family, dict[bytes, bytes | None]] = {family: {} for family in Family}

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set a key."""
        self._by_family[family][key] = value

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a key; one that is not there is no error."""
        self._by_family[family][key] = None

    def clear(self) -> None:
        """Forget all of them."""
        for pending in self._by_family.values():
            pending.clear()

    def update(self, later: Mutations) -> None:
        """Add what others put and delete, as if it came after this."""
        for family, pending in later._by_family.items():
            self._by_family[family].update(pending)

    def get(self, store: OrderedStore, family: Family, key: bytes) -> bytes | None:
        """Return what `store` would hold under a key had these mutations been written."""
        pending = self._by_family[family]
        return pending[key] if key in pending else store.get(family, key)

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values. Keep one batch under a few MiB: a large one stalls every thread."""
        return sum(len(key) + len(value or b"") for _, key, value in self)

    def __len__(self) -> int:
        """Return the number of keys that change."""
        return sum(map(len, self._by_family.values()))

    def __iter__(self) -> Iterator[tuple[Family, bytes, bytes | None]]:
        """Yield each changing key once as (family, key, value); a value of None deletes."""
        for family, pending in self._by_family.items():
            for key, value in pending.items():
                yield family, key, value


class OrderedStore(Protocol):
    """An ordered map of bytes to bytes per family.

    All methods but `flush` are quick and may be called from one thread (the event loop's). `flush` blocks on the disk
    without holding the interpreter lock: call it in a thread; reads and writes may go on meanwhile.

    Raises:
        CorruptionError: By any method, when stored bytes are damaged.
        StorageFailedError: By any method, when the disk failed or the store is closed. A failure of the disk is final
            until the store is opened anew.
    """

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of a key, None if it is not there."""
        ...

    def scan(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) of the keys that begin with `prefix`, in lexicographic order.

        The store may be written while a scan is under way. What is written then behind the scan's place is not seen,
        what is written ahead of it may be; no key comes twice.

        Args:
            start: Begin at this key, inclusive (in a reverse scan: at it or the next lower one). It need not exist
                nor begin with the prefix; keys without the prefix are never yielded.
            reverse: Go from the highest key to the lowest.
        """
        ...

    def scan_in_steps(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes] | None]:
        """The same in order, in steps of bounded work: None after a step that found nothing, so the caller can pause.

        Deleted keys that the store has not reclaimed yet cost a `scan` time although it yields nothing of them: with
        many in a row, the call that looks for the next key blocks for as long as it takes to pass over all of them.
        """
        ...

    def write(self, mutations: Mutations) -> None:
        """Carry out all mutations or none. They are visible at once and durable after the next `flush`.

        After a crash the store holds exactly what was written up to some point at or after the last flush: never a
        part of one `Mutations`, never a later one without every earlier one, the same point for all families.
        """
        ...

    @property
    def queued_bytes(self) -> int:
        """Memory taken by what was written and waits in front of the store, which is busy or has no space.

        It is visible, and bounded only if callers hold back: let them call `catch_up`, in a thread.
        """
        ...

    def catch_up(self) -> None:
        """Return when the store has taken everything that was written before the call; blocks like `flush`.

        Raises:
            DiskFullError: It has no space for it, or had none at the last flush. Nothing is lost; call it again later.
        """
        ...

    def flush(self) -> None:
        """Return only when everything written before the call is durable.

        Raises:
            DiskFullError: There is no space for it. Nothing is lost; call it again later.
        """
        ...

    def close(self) -> None:
        """Release the store and its lock; closing again does nothing. It is no substitute for `flush`."""
        ...


class DirectoryStore(OrderedStore, Protocol):
    """An `OrderedStore` that lies in a directory of its own."""

    def copy_to(self, path: str) -> None:
        """Make another store in a directory that is not there yet, with what this one holds at one moment.

        Everything written before this call is in it; of what is written meanwhile, a prefix. Files that never change
        may be shared with this store, so it costs little time and space. It is not durable by itself.

        Raises:
            StorageFailedError: The disk refused. This store is none the worse for it.
        """
        ...


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the lowest key above all keys that begin with `prefix`; None if there is none."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes((trimmed[-1] + 1,)) if trimmed else None
