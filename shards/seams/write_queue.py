"""Writes that wait for a store, in order, and their values for readers in the meantime."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from sortedcontainers import SortedDict

Batch = Sequence[tuple[bytes, bytes | None]]
"""Puts and deletes (a value of None) that are written together."""

_ENTRY_BYTES = 200
"""Approximate memory of an entry in addition to key and value."""


class WriteQueue:
    """Batches that wait for a store that is not accepting writes now. Threads may share it.

    Attributes:
        size_bytes: Approximate memory that it uses.
        taken: Number of batches that were added since the start.
        written: Number of these that were written to the store.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[int, Batch]] = deque()
        self._newest: SortedDict[bytes, tuple[int, bytes | None]] = SortedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0
        self.taken = 0
        self.written = 0

    def __bool__(self) -> bool:
        return bool(self._batches)

    def put_behind(self, batch: Batch) -> bool:
        """Add a batch if others wait already, which it must not overtake; False if none do."""
        with self._lock:
            if not self._batches:
                return False
            self._append(batch)
            return True

    def put(self, batch: Batch) -> None:
        """Add a batch that the store refused."""
        with self._lock:
            self._append(batch)

    def _append(self, batch: Batch) -> None:
        self.taken += 1
        self._batches.append((self.taken, batch))
        for key, value in batch:
            self._newest[key] = (self.taken, value)
        self.size_bytes += _size_bytes(batch)

    def write_next(self, write: Callable[[Batch], None]) -> bool:
        """Write the oldest batch; False if there is none. Errors of ``write`` are raised, and the batch stays.

        Nothing can be added in the meantime, so that nothing is overtaken.
        """
        with self._lock:
            if not self._batches:
                return False
            number, batch = self._batches[0]
            write(batch)
            self._batches.popleft()
            for key, _ in batch:
                newest = self._newest.get(key)
                if newest is not None and newest[0] == number:
                    # Readers check the queue first, and find it in the store from now on.
                    del self._newest[key]
            self.size_bytes -= _size_bytes(batch)
            self.written = number
            return True

    def get(self, key: bytes) -> tuple[int, bytes | None] | None:
        """(batch number, value) if a waiting batch has the key; a value of None if it deletes the key."""
        return self._newest.get(key)

    def between(self, low: bytes, high: bytes) -> dict[bytes, bytes | None]:
        """The waiting values of the keys from ``low`` to ``high``, both included."""
        with self._lock:
            return {key: self._newest[key][1] for key in self._newest.irange(low, high)}


def _size_bytes(batch: Batch) -> int:
    return sum(len(key) + len(value or b"") + _ENTRY_BYTES for key, value in batch)
