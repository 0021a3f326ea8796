"""What the views keep of the producers of a shard: their sequence states, and that some were forgotten.

Family ``producers``: key = b"s", shard id, producer id (u64 each, big-endian), value as in
`shards.idempotence.producer_state`; and key = b"f", shard id (u64, big-endian), value empty: states of registered
producers of this shard were forgotten.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Callable, Iterator

from shards.errors import CorruptionError
from shards.idempotence.producer_state import ProducerState
from shards.seams.store import Family, Mutations, OrderedStore
from shards.segments.shard import Shard

_STATE = struct.Struct(">cQQ")
_FORGOTTEN = struct.Struct(">cQ")
STATE_PREFIX = b"s"
FORGOTTEN_PREFIX = b"f"

PRODUCERS_REMEMBERED = 4096
"""Most producers that a shard keeps the states of, beside those that may return: what it holds must not grow with all
that ever wrote."""


def load_producers(store: OrderedStore, shard: Shard) -> dict[int, ProducerState]:
    """Give a shard the states of all its producers that the store has.

    Raises:
        CorruptionError: A record is damaged.
        FormatVersionError: A newer program wrote it.
    """
    shard.has_forgotten_producers = store.get(Family.PRODUCERS, _FORGOTTEN.pack(b"f", shard.shard_id)) is not None
    prefix = STATE_PREFIX + shard.shard_id.to_bytes(8, "big")
    shard.producers = {
        decode_state_key(key)[1]: ProducerState.decode(value) for key, value in store.scan(Family.PRODUCERS, prefix)
    }
    return shard.producers


def decode_state_key(key: bytes) -> tuple[int, int]:
    """Shard id and producer id of the key of a state.

    Raises:
        CorruptionError: It has another length.
    """
    if len(key) != _STATE.size:
        raise CorruptionError("a producer of a shard", 0, f"the key has {len(key)} bytes, expected {_STATE.size}")
    _, shard_id, producer_id = _STATE.unpack(key)
    return shard_id, producer_id


def delete_state(mutations: Mutations, shard_id: int, producer_id: int) -> None:
    """Remove a state."""
    mutations.delete(Family.PRODUCERS, _STATE.pack(b"s", shard_id, producer_id))


def save_changed(
    mutations: Mutations, shard: Shard, safe_offset: int, may_return: Callable[[int], bool]
) -> Iterator[None]:
    """Record the states that changed since they were recorded, and forget those that have not appended for longest.

    A state is recorded as it was below the safe offset: batches on their way to the disk may never get there, and sent
    again they must not be taken for repeated ones. It may be newer than the head that is recorded of the shard: what
    the journal repeats makes the same of it.

    Args:
        mutations: Takes the records; the caller may write and clear it at each step.
        shard: The shard.
        safe_offset: Its `shard_records.safe_offset`, or what that was before.
        may_return: Whether a producer may send again what it has sent before, so that its state has to stay.

    Yields:
        After each producer that was looked at, so that the caller can write and pause.
    """
    producers = shard.producers
    if not producers:
        return
    for producer_id in _idle(producers, may_return):
        if may_return(producer_id):
            # It has come back in a pause.
            continue
        del producers[producer_id]
        shard.has_forgotten_producers = True
        mutations.put(Family.PRODUCERS, _FORGOTTEN.pack(b"f", shard.shard_id), b"")
        delete_state(mutations, shard.shard_id, producer_id)
        yield
    for producer_id, state in list(producers.items()):
        if state.saved_sequence != state.next_sequence:
            kept = state.before(safe_offset)
            state.saved_sequence = kept.next_sequence
            mutations.put(Family.PRODUCERS, _STATE.pack(b"s", shard.shard_id, producer_id), kept.encode())
        yield


def _idle(producers: dict[int, ProducerState], may_return: Callable[[int], bool]) -> list[int]:
    """Those to be forgotten: beyond the most that are remembered, the ones whose last record lies furthest back."""
    if len(producers) <= PRODUCERS_REMEMBERED:
        return []
    idle = [(state.last_offset, producer_id) for producer_id, state in producers.items() if not may_return(producer_id)]
    return [producer_id for _, producer_id in heapq.nsmallest(len(idle) - PRODUCERS_REMEMBERED, idle)]
