"""What a deleted shard leaves in the views, which goes in small steps after its deletion is committed.

The fold of a deletion removes what makes the shard be there and notes, in the same write, that the rest has to go; so a
crash in between loses no part of the work. Nothing of it can reappear: the number of a shard is never given out again,
and cursors, producers and indexes are found by number alone.

Each removal notes in the same write from which key on the rest lies. So a start after a crash does not pass over all
that was removed and is not compacted yet.

Family ``meta``: key = b"leftovers", shard id (u64, big-endian); value = shard id (u64, big-endian); when something was
removed already, then the number of the key space (u8), and the key in it from which on the rest lies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, TypeAlias

from shards.seams.store import Family, Mutations, OrderedStore

_KEY = b"leftovers"
_BY_SHARD = ((Family.CURSORS, b""), (Family.PRODUCERS, b"s"), (Family.PRODUCERS, b"f"), (Family.KEY_INDEX, b""))

Place: TypeAlias = tuple[int, bytes]
"""Which of the key spaces comes next, and from which key on."""

BEGINNING: Final[Place] = (0, b"")
_NUMBER_BYTES: Final = 8


def note(mutations: Mutations, shard_id: int) -> None:
    """A deleted shard may have left something."""
    number = _number(shard_id)
    mutations.put(Family.META, _KEY + number, number)


def noted(store: OrderedStore) -> Iterator[tuple[int, Place]]:
    """Numbers of the deleted shards that may have left something, and where to go on with each."""
    for key, value in store.scan(Family.META, _KEY):
        place = (value[_NUMBER_BYTES], value[_NUMBER_BYTES + 1 :]) if len(value) > _NUMBER_BYTES else BEGINNING
        yield int.from_bytes(key[len(_KEY) :], "big"), place


def remove_some(
    store: OrderedStore, mutations: Mutations, shard_id: int, limit: int, place: Place = BEGINNING
) -> tuple[int, Place | None]:
    """Remove up to so many of the keys that a shard left.

    Args:
        place: Where to go on. Beginning anew each time would pass over all that is deleted and not compacted yet.

    Returns:
        How many, and where to go on; None when that was all: then the note goes, too.
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
