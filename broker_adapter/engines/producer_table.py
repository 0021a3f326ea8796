"""Producers of a key-value store: names, epochs, and which batches of theirs are stored already.

A producer numbers the records that it sends to a shard from 0, anew after its epoch rose. What is decided here is
written in the same `Mutations` as the batch, so both are there after a crash, or neither.

    PRODUCERS  "n" name                 -> producer id, epoch
    PRODUCERS  "i" producer_id          -> epoch
    PRODUCERS  "s" producer_id shard_id -> epoch, then the newest batches: first sequence, count, base offset
    META       "next_producer_id"
"""

from __future__ import annotations

import struct

from shards.batch import MAX_SEQUENCE, BatchHeader
from shards.errors import SequenceGapError, StaleEpochError, UnknownProducerError
from shards.model import ProducerIdentity
from shards.store import Family, Mutations, OrderedStore

_NEXT_ID_KEY = b"next_producer_id"
_ID = struct.Struct(">Q")
_IDENTITY = struct.Struct("<QI")
_EPOCH = struct.Struct("<I")
_SENT = struct.Struct("<IIQ")
_REMEMBERED_BATCHES = 8


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
        sent = self._sent(shard_id, header)
        expected = (sent[-1][0] + sent[-1][1]) % MAX_SEQUENCE if sent else 0
        if header.sequence == expected:
            return None
        for sequence, count, base_offset in sent:
            if (sequence, count) == (header.sequence, header.record_count):
                return base_offset
        if (expected - header.sequence) % MAX_SEQUENCE < MAX_SEQUENCE // 2 and sent:
            return -1
        raise SequenceGapError(
            f"producer {header.producer_id} sent sequence {header.sequence} to shard {shard_name!r}, but {expected} is due: "
            f"send what is missing first, in order"
        )

    def fold_append(self, mutations: Mutations, shard_id: int, header: BatchHeader, base_offset: int) -> None:
        """Remember a batch that is stored by the same mutations."""
        sent = [*self._sent(shard_id, header), (header.sequence, header.record_count, base_offset)]
        packed = b"".join(_SENT.pack(*entry) for entry in sent[-_REMEMBERED_BATCHES:])
        mutations.put(
            Family.PRODUCERS, _sent_key(header.producer_id, shard_id), _EPOCH.pack(header.producer_epoch) + packed
        )

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

    def _sent(self, shard_id: int, header: BatchHeader) -> list[tuple[int, int, int]]:
        stored = self._store.get(Family.PRODUCERS, _sent_key(header.producer_id, shard_id))
        if stored is None or _EPOCH.unpack_from(stored)[0] != header.producer_epoch:
            return []
        return list(_SENT.iter_unpack(memoryview(stored)[_EPOCH.size :]))


def _sent_key(producer_id: int, shard_id: int) -> bytes:
    return b"s" + _ID.pack(producer_id) + _ID.pack(shard_id)
