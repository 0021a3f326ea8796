"""An `OrderedStore` in memory: for engines without a disk and for tests. Its content is lost on `close`."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from shards.errors import StorageFailedError
from shards.seams.store import Family, Mutations, prefix_end

_CHUNK_KEYS = 256


class MemoryStore:
    """An `OrderedStore` with one sorted dictionary for each family."""

    def __init__(self) -> None:
        self._families: dict[Family, SortedDict[bytes, bytes]] = {family: SortedDict() for family in Family}
        self._closed = False

    def get(self, family: Family, key: bytes) -> bytes | None:
        self._require_open()
        return self._families[family].get(key)

    def scan(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        low: bytes = prefix
        high = prefix_end(prefix)
        include_low, include_high = True, False
        if start is not None and not reverse:
            low = max(low, start)
        elif start is not None and (high is None or start < high):
            high, include_high = start, True
        # A sorted dictionary must not change during an iteration: each round reads some keys with a new iterator.
        while True:
            self._require_open()
            items = self._families[family]
            if high is not None and high < low:
                return
            keys = items.irange(low, high, inclusive=(include_low, include_high), reverse=reverse)
            chunk = [(key, items[key]) for _, key in zip(range(_CHUNK_KEYS), keys, strict=False)]
            yield from chunk
            if len(chunk) < _CHUNK_KEYS:
                return
            if reverse:
                high, include_high = chunk[-1][0], False
            else:
                low, include_low = chunk[-1][0], False

    def scan_in_steps(
        self, family: Family, prefix: bytes = b"", *, start: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes] | None]:
        # Deleted keys leave nothing behind, so each step finds something.
        return self.scan(family, prefix, start=start)

    def write(self, mutations: Mutations) -> None:
        self._require_open()
        for family, key, value in mutations:
            if value is None:
                self._families[family].pop(key, None)
            else:
                self._families[family][key] = value

    @property
    def queued_bytes(self) -> int:
        return 0

    def catch_up(self) -> None:
        self._require_open()

    def check_directory(self) -> None:
        """Do nothing: it has none."""

    def flush(self) -> None:
        self._require_open()

    def copy_to(self, path: str) -> None:
        """Refuse: a store in memory has no directory beside which another one could be made."""
        raise StorageFailedError(f"a store in memory cannot be copied to {path}")

    def close(self) -> None:
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise StorageFailedError("the store in memory is closed; its content is gone")
