"""Cursors, which are named durable offsets, as a view over an ordered store.

Decisions (compare-and-set, whether the shard exists) are made elsewhere; folding never refuses, and folding the same
commits again in order changes nothing.

Family ``cursors``:

- key: shard id (u64, big-endian, so that a shard's cursors are adjacent), then the name in UTF-8;
- value: format version (u8, 1), offset (u64), version (u64), big-endian.
"""

from __future__ import annotations

import builtins
import struct
from collections.abc import Iterator
from itertools import islice

from shards.errors import CorruptionError, FormatVersionError
from shards.model import Cursor
from shards.seams.store import Family, Mutations, OrderedStore

_SHARD_ID = struct.Struct(">Q")
_VALUE = struct.Struct(">BQQ")
_FORMAT_VERSION = 1


class Cursors:
    """The cursors of all shards of one store."""

    def __init__(self, store: OrderedStore) -> None:
        self._store = store

    def get(self, shard_id: int, name: str) -> Cursor | None:
        """Return a cursor, None if it does not exist."""
        value = self._store.get(Family.CURSORS, _key(shard_id, name))
        return None if value is None else decode_cursor(shard_id, name, value)

    def list(self, shard_id: int, after: str = "", limit: int | None = None) -> builtins.list[Cursor]:
        """Return the cursors of a shard, sorted by the bytes of their names.

        Args:
            shard_id: The shard.
            after: Only names that sort after this one, which need not exist.
            limit: Largest number of cursors.
        """
        prefix = _SHARD_ID.pack(shard_id)
        start = prefix + after.encode() + b"\0" if after else None
        found = self._store.scan(Family.CURSORS, prefix, start=start)
        return [decode_cursor(shard_id, _decode_name(shard_id, key), value) for key, value in islice(found, limit)]

    def all(self) -> Iterator[tuple[int, str, int] | None]:
        """(shard id, name, offset) of every cursor; those of one shard are adjacent.

        There may be millions: the caller can pause between them, and at each None, which is returned for a step without
        a result. Unreadable cursors are left out; `get` reports them.
        """
        for item in self._store.scan_in_steps(Family.CURSORS):
            if item is None:
                yield None
                continue
            key, value = item
            if len(key) >= _SHARD_ID.size and len(value) == _VALUE.size and value[0] == _FORMAT_VERSION:
                name = key[_SHARD_ID.size :].decode(errors="replace")
                yield _SHARD_ID.unpack_from(key)[0], name, _VALUE.unpack(value)[1]

    def fold_commit(self, mutations: Mutations, shard_id: int, name: str, offset: int, version: int) -> None:
        """Set a cursor. `version` is the lsn of the commit."""
        mutations.put(Family.CURSORS, _key(shard_id, name), _VALUE.pack(_FORMAT_VERSION, offset, version))

    def fold_delete(self, mutations: Mutations, shard_id: int, name: str) -> None:
        """Remove a cursor; a missing one is not an error."""
        mutations.delete(Family.CURSORS, _key(shard_id, name))


def _key(shard_id: int, name: str) -> bytes:
    return _SHARD_ID.pack(shard_id) + name.encode()


def _decode_name(shard_id: int, key: bytes) -> str:
    try:
        return key[_SHARD_ID.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(
            f"name of a cursor of shard {shard_id}", error.start, f"not UTF-8: {error.reason}"
        ) from error


def decode_cursor(shard_id: int, name: str, value: bytes) -> Cursor:
    """Decode a stored cursor.

    Raises:
        CorruptionError: It is damaged.
        FormatVersionError: A newer program wrote it.
    """
    if value[:1] != bytes((_FORMAT_VERSION,)):
        raise FormatVersionError(
            f"cursor {name!r} of shard {shard_id} is stored in format {value[:1].hex() or 'none'}, "
            f"this program reads format {_FORMAT_VERSION}; use the program version that wrote it"
        )
    if len(value) != _VALUE.size:
        raise CorruptionError(
            f"cursor {name!r} of shard {shard_id}", 0, f"the value has {len(value)} bytes, expected {_VALUE.size}"
        )
    _, offset, version = _VALUE.unpack(value)
    return Cursor(name=name, offset=offset, version=version)
