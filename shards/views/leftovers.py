"""The entries that a deleted shard leaves in the views; they are removed in small steps after its deletion.

The fold of a deletion removes the shard from the catalogue and records, in the same write, that the rest has to be
removed; so a crash in between loses no part of the work. The rest can never become visible: ids of shards are never
assigned again, and cursors, producers and indexes are found only by id.

Each step records in the same write the key at which the rest begins. So a start after a crash does not have to skip all
entries that were removed and not compacted yet.

Family ``meta``: key = b"leftovers", shard id (u64, big-endian); value = shard id (u64, big-endian); if something was
removed already, then the number of the key space (u8), and the key in it at which the rest begins.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, TypeAlias

from shards.seams.store import Family, Mutations, OrderedStore

_KEY = b"leftovers"
_BY_SHARD = ((Family.CURSORS, b""), (Family.PRODUCERS, b"s"), (Family.PRODUCERS, b"f"), (Family.KEY_INDEX, b""))

Place: TypeAlias = tuple[int, bytes]
"""The next key space, and the key at which to continue."""

BEGINNING: Final[Place] = (0, b"")
_NUMBER_BYTES: Final = 8


def note(mutations: Mutations, shard_id: int) -> None:
    """Record that a deleted shard may have left entries."""
    number = _number(shard_id)
    mutations.put(Family.META, _KEY + number, number)


def noted(store: OrderedStore) -> Iterator[tuple[int, Place]]:
    """Ids of the deleted shards that may have left entries, and where to continue with each."""
    for key, value in store.scan(Family.META, _KEY):
        place = (value[_NUMBER_BYTES], value[_NUMBER_BYTES + 1 :]) if len(value) > _NUMBER_BYTES else BEGINNING
        yield int.from_bytes(key[len(_KEY) :], "big"), place


def remove_some(
    store: OrderedStore, mutations: Mutations, shard_id: int, limit: int, place: Place = BEGINNING
) -> tuple[int, Place | None]:
    """Remove up to ``limit`` of the keys that a shard left.

    Args:
        place: Where to continue. A restart from the beginning would skip all deleted and uncompacted keys each time.

    Returns:
        The number of removed keys, and where to continue; None when all are removed: then the record is removed, too.
    """
    number = _number(shard_id)
    removed = 0
    at, start = place
    while at < len(_BY_SHARD):
        family, kind = _BY_SHARD[at]
        prefix = kind + number
        for key, _ in itertools.islice(store.scan(family, prefix, start=start or prefix), limit - removed):
            mutations.delete(family, key)
            removed += 1
            start = key + b"\x00"
        if removed == limit:
            mutations.put(Family.META, _KEY + number, number + bytes((at,)) + start)
            return removed, (at, start)
        at, start = at + 1, b""
    mutations.delete(Family.META, _KEY + number)
    return removed, None


def _number(shard_id: int) -> bytes:
    return shard_id.to_bytes(8, "big")
