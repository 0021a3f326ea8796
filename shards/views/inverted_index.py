"""The optional index of a shard by key or tag: a view with the offsets of each word, folded after the commit.

Keys of the store: shard id (8 bytes), b"k" or b"t", the word after its length (2 bytes), offset (8 bytes), all
big-endian, so that a scan of one word returns its offsets in order. A word longer than 1 KiB is indexed by its checksum
and length; the reader compares the records anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, TypeAlias

from shards.errors import CorruptionError
from shards.format.batch import keys, tags
from shards.format.batch import word_count as count
from shards.format.checksum import crc32c
from shards.format.columns import Column
from shards.model import ShardConfig
from shards.seams.store import Family, Mutations, OrderedStore

By: TypeAlias = Literal["key", "tag"]
Words: TypeAlias = list[tuple[int, bytes]]
"""(record number in its batch, indexed word after its kind and length)."""

LONGEST_WORD_BYTES = 1024
_KINDS: dict[By, bytes] = {"key": b"k", "tag": b"t"}
_SHARD = struct.Struct(">Q")
_OFFSET = struct.Struct(">Q")
_WORD = struct.Struct(">H")
_HASHED = struct.Struct(">HIQ")
_IS_HASHED = 0xFFFF
"""Used in place of the length of a word that is too long."""


def word_count(config: ShardConfig, batch: memoryview) -> int:
    """The number of words of a batch for the index, before any of them is decoded.

    Raises:
        BatchError: The key or tag column is malformed.
    """
    wanted = (Column.KEY if config.index_keys else 0) | (Column.TAGS if config.index_tags else 0)
    return count(batch, wanted=wanted) if wanted else 0


def words_of(config: ShardConfig, batch: memoryview) -> Words:
    """The words of a batch for the index.

    Raises:
        BatchError: The key or tag column is malformed.
    """
    found: Words = []
    if config.index_keys:
        found += [(number, _encoded("key", key)) for number, key in enumerate(keys(batch)) if key]
    if config.index_tags:
        found += [(number, _encoded("tag", tag.encode())) for number, words in enumerate(tags(batch)) for tag in words]
    return found


def _encoded(by: By, word: bytes) -> bytes:
    if len(word) <= LONGEST_WORD_BYTES:
        return _KINDS[by] + _WORD.pack(len(word)) + word
    return _KINDS[by] + _HASHED.pack(_IS_HASHED, crc32c(word), len(word))


class InvertedIndex:
    """Reads and folds the index of all shards of a store."""

    def __init__(self, store: OrderedStore) -> None:
        self._store = store

    def fold(self, mutations: Mutations, shard_id: int, base_offset: int, words: Words) -> None:
        """Add the words of a committed batch; repeating it changes nothing."""
        shard = _SHARD.pack(shard_id)
        for number, word in words:
            mutations.put(Family.KEY_INDEX, shard + word + _OFFSET.pack(base_offset + number), b"")

    def offsets(self, shard_id: int, by: By, word: bytes, from_offset: int) -> Iterator[int]:
        """Offsets from ``from_offset`` on of records with the word, in order."""
        prefix = _SHARD.pack(shard_id) + _encoded(by, word)
        for key, _ in self._store.scan(Family.KEY_INDEX, prefix, start=prefix + _OFFSET.pack(from_offset)):
            if len(key) == len(prefix) + _OFFSET.size:
                yield _OFFSET.unpack_from(key, len(prefix))[0]

    def newest_first(self, shard_id: int, by: By, word: bytes) -> Iterator[int]:
        """Offsets of records with the word, the highest first. Some of these records may be trimmed."""
        prefix = _SHARD.pack(shard_id) + _encoded(by, word)
        for key, _ in self._store.scan(Family.KEY_INDEX, prefix, reverse=True):
            if len(key) == len(prefix) + _OFFSET.size:
                yield _OFFSET.unpack_from(key, len(prefix))[0]

    def drop_below(
        self, mutations: Mutations, shard_id: int, start_offset: int, limit: int, after: bytes
    ) -> bytes | None:
        """Visit ``limit`` entries and remove those of trimmed records; returns the key to continue at, or None."""
        prefix = _SHARD.pack(shard_id)
        for visited, (key, _) in enumerate(self._store.scan(Family.KEY_INDEX, prefix, start=after or prefix)):
            if visited == limit:
                return key
            if _OFFSET.unpack_from(key, len(key) - _OFFSET.size)[0] < start_offset:
                mutations.delete(Family.KEY_INDEX, key)
        return None


def decode_index_key(key: bytes) -> tuple[int, bytes, int]:
    """Decode a key of the index: shard id, word after its kind and length, and offset.

    Raises:
        CorruptionError: It is malformed.
    """
    head = _SHARD.size + 1 + _WORD.size
    size = _WORD.unpack_from(key, _SHARD.size + 1)[0] if len(key) >= head else 0
    wanted = head + (_HASHED.size - _WORD.size if size == _IS_HASHED else size) + _OFFSET.size
    if len(key) != wanted or key[_SHARD.size : _SHARD.size + 1] not in _KINDS.values():
        raise CorruptionError("key index", 0, f"malformed key {key.hex()}, expected {wanted} bytes")
    return (
        _SHARD.unpack_from(key)[0],
        key[_SHARD.size : -_OFFSET.size],
        _OFFSET.unpack_from(key, len(key) - _OFFSET.size)[0],
    )
