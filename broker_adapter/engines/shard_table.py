"""All shards of one key-value store: the catalogue, shard numbers, lsns and what is left to sweep out.

Like `broker_adapter.engines.stored_shard` it never waits; the engine flushes and yields between the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sortedcontainers import SortedDict

from broker_adapter.engines.key_layout import (
    GARBAGE_PREFIX,
    LSN_KEY,
    NEXT_SHARD_ID_KEY,
    NUMBER,
    OPEN_KEY,
    CatalogueEntry,
    Placement,
    batch_key,
    placement_key,
    placement_prefix,
)
from broker_adapter.engines.stored_shard import StoredShard
from shards.errors import ShardExistsError, ShardNotFoundError
from shards.model import ShardConfig
from shards.seams.store import Family, Mutations, OrderedStore

_LSN_STEP_AFTER_CRASH = 1 << 32
"""More lsns than a run can give out without a flush, so that one lost with the node is never given out again."""

_SWEEP_KEYS = 500


class ShardTable:
    """The shards by name, and the numbers that are given out per store.

    Args:
        store: The store; this table and the views beside it are its only users.

    Attributes:
        on_lsn: Called whenever an lsn is given out; what it is for is not written yet.
    """

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self._shards: SortedDict[str, StoredShard] = SortedDict()
        self._next_shard_id = self._number(NEXT_SHARD_ID_KEY, 1)
        self._lsn = self._number(LSN_KEY, 0)
        self._append_time_us = 0
        self.on_lsn: Callable[[], None] = lambda: None
        for name, stored in store.scan(Family.CATALOGUE):
            self._shards[name.decode()] = StoredShard(store, name.decode(), CatalogueEntry.decode(stored))
        mutations = Mutations()
        if store.get(Family.META, OPEN_KEY) is not None:
            self._lsn += _LSN_STEP_AFTER_CRASH
            mutations.put(Family.META, LSN_KEY, NUMBER.pack(self._lsn))
        mutations.put(Family.META, OPEN_KEY, b"")
        store.write(mutations)

    def __iter__(self) -> Iterator[StoredShard]:
        """All shards, sorted by name."""
        return iter(self._shards.values())

    def __contains__(self, name: str) -> bool:
        return name in self._shards

    def __getitem__(self, name: str) -> StoredShard:
        """Find a shard. Raises `ShardNotFoundError`."""
        try:
            return self._shards[name]
        except KeyError:
            raise ShardNotFoundError(f"there is no shard {name!r}; create it first") from None

    @property
    def newest_lsn(self) -> int:
        """The highest lsn that was given out."""
        return self._lsn

    def next_lsn(self, mutations: Mutations) -> int:
        """Give out an lsn to something that these mutations change."""
        self._lsn += 1
        mutations.put(Family.META, LSN_KEY, NUMBER.pack(self._lsn))
        self.on_lsn()
        return self._lsn

    def append_time_us(self, now_us: int) -> int:
        """The present time as batches are stamped with: it never goes backwards, whatever the clock does."""
        self._append_time_us = max(self._append_time_us, now_us)
        return self._append_time_us

    def create(self, mutations: Mutations, name: str, config: ShardConfig, now_us: int) -> StoredShard:
        """Make an empty shard. Raises `ShardExistsError`."""
        if name in self._shards:
            raise ShardExistsError(f"shard {name!r} exists already; use it, or delete it first")
        shard = StoredShard(self._store, name, CatalogueEntry(self._next_shard_id, config, now_us))
        self._next_shard_id += 1
        shard.change(mutations)
        mutations.put(Family.META, NEXT_SHARD_ID_KEY, NUMBER.pack(self._next_shard_id))
        self._shards[name] = shard
        return shard

    def delete(self, mutations: Mutations, shard: StoredShard) -> None:
        """Take a shard out of the catalogue; its records are garbage from then on, see `sweep`."""
        del self._shards[shard.name]
        shard.deleted = True
        mutations.delete(Family.CATALOGUE, shard.name.encode())
        mutations.put(Family.META, GARBAGE_PREFIX + NUMBER.pack(shard.shard_id), b"")

    def garbage(self) -> list[int]:
        """Numbers of deleted shards whose records are not all swept out."""
        return [
            NUMBER.unpack_from(key, len(GARBAGE_PREFIX))[0] for key, _ in self._store.scan(Family.META, GARBAGE_PREFIX)
        ]

    def sweep(self, mutations: Mutations, shard_id: int) -> bool:
        """Drop some records of a deleted shard; return whether any are left. Safe to be cut short at any step."""
        for key, stored in self._store.scan(Family.SEGMENTS, placement_prefix(shard_id)):
            base_offset = Placement.decode(key, stored).base_offset
            mutations.delete(Family.SEGMENTS, batch_key(shard_id, base_offset))
            mutations.delete(Family.SEGMENTS, placement_key(shard_id, base_offset))
            if len(mutations) >= _SWEEP_KEYS:
                return True
        for key, _ in self._store.scan(Family.KEY_INDEX, NUMBER.pack(shard_id)):
            mutations.delete(Family.KEY_INDEX, key)
            if len(mutations) >= _SWEEP_KEYS:
                return True
        mutations.delete(Family.META, GARBAGE_PREFIX + NUMBER.pack(shard_id))
        return False

    def close(self, mutations: Mutations) -> None:
        """Note that everything was made durable in order: no reservation is needed any more."""
        for shard in self:
            shard.release_reservation(mutations)
        mutations.delete(Family.META, OPEN_KEY)

    def _number(self, key: bytes, default: int) -> int:
        stored = self._store.get(Family.META, key)
        return default if stored is None else NUMBER.unpack(stored)[0]
