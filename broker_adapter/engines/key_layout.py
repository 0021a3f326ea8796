"""How the key-value engines lay shards out in an `OrderedStore`: every key and stored value that is theirs alone.

Numbers in keys are big-endian, so that their order as bytes is their order as numbers.

    CATALOGUE  name (UTF-8)                      -> CatalogueEntry (MessagePack)
    SEGMENTS   "b" shard_id base_offset          -> the record batch, whole
    SEGMENTS   "p" shard_id base_offset          -> Placement: what is asked of batches without reading them
    KEY_INDEX  shard_id "k"|"t" word base_offset -> empty: that batch holds a record with that key or tag
    META       "lsn", "next_shard_id", "open", "garbage/" shard_id
    PRODUCERS  see `broker_adapter.engines.producer_table`
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple, Self

import attrs
import msgspec

from shards.model import ShardConfig

LSN_KEY = b"lsn"
NEXT_SHARD_ID_KEY = b"next_shard_id"
OPEN_KEY = b"open"
"""Present while an engine has the store open; found at opening it says that the last run did not end in order."""
GARBAGE_PREFIX = b"garbage/"
"""Shards that are deleted but not yet swept out."""

NUMBER = struct.Struct(">Q")
_PLACE = struct.Struct(">cQQ")
_PLACE_PREFIX = struct.Struct(">cQ")
_PLACEMENT = struct.Struct("<IIQQQQ")
_LONGEST_INDEXED_WORD_BYTES = 64


@attrs.frozen(slots=True)
class CatalogueEntry:
    """What is kept of a shard beside its records.

    Attributes:
        start_offset: First offset that is still there.
        reserved_offset: Offsets below it may have been given out in memory mode and lost with the node.
        last_lsn: lsn of the newest batch at the time of writing; it counts only when no batch is left.
        gaps: Ranges of offsets (the first, the one behind the last) without records, because these were lost with the
            node or the offsets were reserved and never given out; in order, with batches behind each.
    """

    shard_id: int
    config: ShardConfig
    created_us: int
    start_offset: int = 0
    reserved_offset: int = 0
    last_lsn: int = 0
    gaps: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        """As stored."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, stored: bytes) -> Self:
        """The inverse of `encode`."""
        return msgspec.msgpack.decode(stored, type=cls)


class Placement(NamedTuple):
    """A batch as lookups, retention and statistics see it.

    Attributes:
        total_bytes: Size of this and all batches ever appended before it in its shard, so that a range's size is a
            subtraction.
    """

    base_offset: int
    size_bytes: int
    record_count: int
    lsn: int
    append_time_us: int
    max_timestamp_us: int
    total_bytes: int

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.base_offset + self.record_count

    def encode(self) -> bytes:
        """As stored; the base offset is in the key."""
        return _PLACEMENT.pack(*self[1:])

    @classmethod
    def decode(cls, key: bytes, stored: bytes) -> Self:
        """The inverse of `encode`."""
        return cls(NUMBER.unpack_from(key, len(key) - NUMBER.size)[0], *_PLACEMENT.unpack(stored))


def batch_key(shard_id: int, base_offset: int) -> bytes:
    """Where a batch lies in SEGMENTS."""
    return _PLACE.pack(b"b", shard_id, base_offset)


def placement_key(shard_id: int, base_offset: int) -> bytes:
    """Where its placement lies in SEGMENTS."""
    return _PLACE.pack(b"p", shard_id, base_offset)


def placement_prefix(shard_id: int) -> bytes:
    """What all placements of a shard begin with."""
    return _PLACE_PREFIX.pack(b"p", shard_id)


def index_prefix(shard_id: int, kind: bytes, word: bytes) -> bytes:
    """What all index entries of a word begin with; ``kind`` is ``b"k"`` for keys, ``b"t"`` for tags.

    A long word is stored as its digest: the reader compares the records themselves anyway.
    """
    if len(word) > _LONGEST_INDEXED_WORD_BYTES:
        word = b"\xff" + hashlib.blake2b(word, digest_size=32).digest()
        return NUMBER.pack(shard_id) + kind + bytes((0xFF,)) + word
    return NUMBER.pack(shard_id) + kind + bytes((len(word),)) + word


def index_key(shard_id: int, kind: bytes, word: bytes, base_offset: int) -> bytes:
    """One index entry: that word is in that batch."""
    return index_prefix(shard_id, kind, word) + NUMBER.pack(base_offset)
