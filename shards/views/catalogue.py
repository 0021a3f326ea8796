"""The catalogue: all shards and their configurations, as a view over an ordered store.

Names and ids are in memory (a topic filter has to be compared with all of them); everything else of an unused shard
stays in the store.

Family ``catalogue``: key = shard id (u64, big-endian), value = format version (u8, 1), then MessagePack of
`CatalogueRecord`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import attrs
import msgspec

from shards.errors import CorruptionError, FormatVersionError
from shards.model import ShardConfig
from shards.seams.store import Family, Mutations, OrderedStore
from shards.topics.filter_index import TopicIndex

_ID = struct.Struct(">Q")
_FORMAT_VERSION = b"\x01"


@attrs.frozen(slots=True)
class CatalogueRecord:
    """The stored record of a shard."""

    name: str
    config: ShardConfig
    created_us: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CatalogueRecord)


class Catalogue:
    """All shards of a store, by name, by id and by topic filter.

    Raises:
        CorruptionError: A stored record is damaged (raised when it is read).
    """

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self._ids: dict[str, int] = {}
        for shard_id, record in self.records():
            self._ids[record.name] = shard_id
        self._names = TopicIndex(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def id_of(self, name: str) -> int | None:
        """Id of the shard with this name, None if there is none."""
        return self._ids.get(name)

    def matching(self, topic_filter: str, *, after: str = "", limit: int | None = None) -> list[str]:
        """Up to ``limit`` names after ``after`` that match a topic filter, sorted."""
        return self._names.match(topic_filter, after=after, limit=limit)

    def scan(self, topic_filter: str, after: str, most: int) -> tuple[list[str], str | None]:
        """Matching names among the next ``most`` after ``after``, and the name to continue after; None at the end."""
        return self._names.scan(topic_filter, after, most)

    def count_looked_at(self, topic_filter: str) -> int:
        """How many names `matching` compares with a topic filter, whether they match or not."""
        return self._names.count_looked_at(topic_filter)

    def record(self, shard_id: int) -> CatalogueRecord | None:
        """The stored record of a shard, None if there is none."""
        value = self._store.get(Family.CATALOGUE, _ID.pack(shard_id))
        return None if value is None else decode_record(shard_id, value)

    def records(self) -> Iterator[tuple[int, CatalogueRecord]]:
        """(shard id, record) of every shard, in the order of their creation."""
        for key, value in self._store.scan(Family.CATALOGUE):
            if len(key) != _ID.size:
                raise CorruptionError(
                    f"catalogue record {key!r}", 0, f"the key has {len(key)} bytes, expected {_ID.size}"
                )
            shard_id = _ID.unpack(key)[0]
            yield shard_id, decode_record(shard_id, value)

    def fold_put(self, mutations: Mutations, shard_id: int, record: CatalogueRecord) -> None:
        """The shard exists and has this configuration."""
        mutations.put(Family.CATALOGUE, _ID.pack(shard_id), _FORMAT_VERSION + _encoder.encode(record))
        if self._ids.get(record.name) != shard_id:
            self._ids[record.name] = shard_id
            self._names.add(record.name)

    def fold_delete(self, mutations: Mutations, shard_id: int, name: str) -> None:
        """The shard was deleted; the name may already belong to a newer one."""
        mutations.delete(Family.CATALOGUE, _ID.pack(shard_id))
        if self._ids.get(name) == shard_id:
            del self._ids[name]
            self._names.discard(name)


def decode_record(shard_id: int, value: bytes) -> CatalogueRecord:
    """Decode a stored record.

    Raises:
        CorruptionError: It is damaged.
        FormatVersionError: A newer program wrote it.
    """
    if value[:1] != _FORMAT_VERSION:
        raise FormatVersionError(
            f"shard {shard_id} is stored in catalogue format {value[:1].hex() or 'none'}, this program reads format 1; "
            f"use the program version that wrote it"
        )
    try:
        return _decoder.decode(value[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"catalogue record of shard {shard_id}", 0, str(error)) from error
