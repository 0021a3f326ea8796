"""Producers of a key-value store: names, epochs, and which batches of theirs are stored already.

The sequence rules are those of `shards.idempotence.producer_state`; the first batch of a producer in a shard, and the
first one after its epoch rose, may begin at any sequence. What is decided here is written in the same `Mutations` as
the batch, so both are there after a crash, or neither.

    PRODUCERS  "n" name                 -> producer id, epoch
    PRODUCERS  "i" producer_id          -> epoch
    PRODUCERS  "s" shard_id producer_id -> ProducerState
    META       "next_producer_id"
"""

from __future__ import annotations

import struct

from shards.errors import SequenceGapError, StaleEpochError, UnknownProducerError
from shards.format.batch import BatchHeader
from shards.idempotence.producer_state import ProducerState
from shards.model import ProducerIdentity
from shards.seams.store import Family, Mutations, OrderedStore

_NEXT_ID_KEY = b"next_producer_id"
_ID = struct.Struct(">Q")
_IDENTITY = struct.Struct("<QI")
_EPOCH = struct.Struct("<I")


class ProducerTable:
    """Decides for each batch of a producer whether it is new."""

    def __init__(self, store: OrderedStore) -> None:
        self._store = store

    def open(self, mutations: Mutations, name: str) -> ProducerIdentity:
        """Register a producer, or raise the epoch of the one that has the name."""
        stored = self._store.get(Family.PRODUCERS, b"n" + name.encode())
        if stored is None:
            known = self._store.get(Family.META, _NEXT_ID_KEY)
            producer_id, epoch = (1 if known is None else _ID.unpack(known)[0]), 1
            mutations.put(Family.META, _NEXT_ID_KEY, _ID.pack(producer_id + 1))
        else:
            producer_id, epoch = _IDENTITY.unpack(stored)
            epoch += 1
        mutations.put(Family.PRODUCERS, b"n" + name.encode(), _IDENTITY.pack(producer_id, epoch))
        mutations.put(Family.PRODUCERS, b"i" + _ID.pack(producer_id), _EPOCH.pack(epoch))
        return ProducerIdentity(producer_id, epoch)

    def find_duplicate(self, shard_name: str, shard_id: int, header: BatchHeader) -> int | None:
        """Return where a batch is stored already (-1: stored, but the place is forgotten), or None if it is new.

        Raises:
            UnknownProducerError: The producer was never opened.
            StaleEpochError: A newer holder has opened its name.
            SequenceGapError: An earlier batch of it is missing.
        """
        self._check_epoch(header)
        state = self._state(shard_id, header)
        if state is None or header.sequence == state.next_sequence:
            return None
        if state.is_repeat(header.sequence):
            return state.offset_of(header.sequence)
        raise SequenceGapError(
            f"producer {header.producer_id} sent sequence {header.sequence} to shard {shard_name!r}, "
            f"but {state.next_sequence} is due: send what is missing first, in order",
            state.next_sequence,
        )

    def fold_append(self, mutations: Mutations, shard_id: int, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that is stored by the same mutations."""
        state = self._state(shard_id, header) or ProducerState(header.producer_epoch, header.sequence)
        state.accept(header.sequence, base_offset, header.record_count)
        mutations.put(Family.PRODUCERS, _state_key(shard_id, header.producer_id), state.encode())

    def sweep(self, mutations: Mutations, shard_id: int) -> None:
        """Forget what producers sent to a deleted shard."""
        for key, _ in self._store.scan(Family.PRODUCERS, b"s" + _ID.pack(shard_id)):
            mutations.delete(Family.PRODUCERS, key)

    def _check_epoch(self, header: BatchHeader) -> None:
        stored = self._store.get(Family.PRODUCERS, b"i" + _ID.pack(header.producer_id))
        if stored is None:
            raise UnknownProducerError(f"producer {header.producer_id} was never opened here; open it by name first")
        epoch: int = _EPOCH.unpack(stored)[0]
        if header.producer_epoch != epoch:
            raise StaleEpochError(
                f"producer {header.producer_id} has epoch {epoch}, the batch has {header.producer_epoch}: "
                f"another process has opened its name since"
            )

    def _state(self, shard_id: int, header: BatchHeader) -> ProducerState | None:
        stored = self._store.get(Family.PRODUCERS, _state_key(shard_id, header.producer_id))
        state = None if stored is None else ProducerState.decode(stored)
        return state if state is not None and state.epoch == header.producer_epoch else None


def _state_key(shard_id: int, producer_id: int) -> bytes:
    return b"s" + _ID.pack(shard_id) + _ID.pack(producer_id)
