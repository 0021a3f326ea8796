"""The stored states of the producers of a shard, and the record that some were dropped.

Family ``producers``: key = b"s", shard id, producer id (u64 each, big-endian), value as in
`shards.idempotence.producer_state`; and key = b"f", shard id (u64, big-endian), value empty: states of registered
producers of this shard were dropped.
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
"""Largest number of producer states that a shard keeps, in addition to those of producers that may return; otherwise
its memory would grow with all producers that ever appended."""


def load_producers(store: OrderedStore, shard: Shard) -> dict[int, ProducerState]:
    """Load the states of all producers of a shard from the store into the shard.

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
    """Decode the key of a state: shard id and producer id.

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
    """Record changed states, and drop those of the producers that have not appended for longest.

    A state is recorded as it was below the safe offset: later batches may never become durable, and must not be taken
    for repeated ones when they are sent again. It may be newer than the recorded head of the shard: replaying the
    journal has the same result.

    Args:
        mutations: Receives the records; the caller may write and clear it at each step.
        shard: The shard.
        safe_offset: Its `shard_records.safe_offset`, or an earlier value of it.
        may_return: Whether a producer may repeat batches that it has sent before, so that its state must be kept.

    Yields:
        After each examined producer, so that the caller can write and pause.
    """
    producers = shard.producers
    if not producers:
        return
    for producer_id in _idle(producers, may_return):
        if may_return(producer_id):
            # The producer has returned during a pause.
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
    """The states to drop: beyond the limit, those whose last record is the oldest."""
    if len(producers) <= PRODUCERS_REMEMBERED:
        return []
    idle = [(state.last_offset, producer_id) for producer_id, state in producers.items() if not may_return(producer_id)]
    return [producer_id for _, producer_id in heapq.nsmallest(len(idle) - PRODUCERS_REMEMBERED, idle)]
