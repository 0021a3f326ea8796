"""Versioned values with expiry (sessions, retained messages, bridge positions), as a view over an ordered store.

Decisions (compare-and-set, limits) are made elsewhere; folding never refuses, and folding the same changes again in
order changes nothing. An expired value is hidden from every reader at once; its bytes are removed when the owner of the
journal deletes the keys that `StateStore.expired` returns.

Family ``state``:

- a value: key ``v`` + the user's key; value: format version (u8, 1), version (u64), expires_at_us (u64), big-endian,
  then the user's value;
- its entry in the expiry index, if it expires: key ``x`` + expires_at_us (u64, big-endian, so that the earliest comes
  first) + the user's key; value empty.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

from shards.errors import CorruptionError, FormatVersionError
from shards.model import StateValue
from shards.seams.store import Family, Mutations, OrderedStore

_VALUE_HEADER = struct.Struct(">BQQ")
_EXPIRY = struct.Struct(">Q")
_FORMAT_VERSION = 1
VALUE_PREFIX = b"v"
EXPIRY_PREFIX = b"x"
_ABOVE_ALL_EXPIRIES = b"y"


class StateStore:
    """The state in one store.

    REQUIRES of the folds: one `Mutations` at a time, written before the next is begun. A fold searches the store and
    the given mutations for the index entry that it replaces.
    """

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        # There is nothing before it in the index of expiries. Skipping deleted entries takes time until they are
        # compacted, so only the first scan begins at the beginning.
        self._first_expiry = EXPIRY_PREFIX
        # Entries that were put during a scan may be before its position.
        self._lowest_put = _ABOVE_ALL_EXPIRIES

    def get(self, key: bytes, now_us: int) -> StateValue | None:
        """Return a value, None if it does not exist or has expired at `now_us`."""
        stored = self._store.get(Family.STATE, VALUE_PREFIX + key)
        value = None if stored is None else decode_value(key, stored)
        return None if value is None or _is_expired(value, now_us) else value

    def scan(self, prefix: bytes, now_us: int, *, after: bytes | None = None, limit: int) -> list[StateValue]:
        """Return up to `limit` unexpired values whose keys begin with `prefix`, sorted by key.

        Args:
            after: Begin after this key, which need not exist: the last one of the page before.
            limit: Largest number of values; fewer mean that there are no more.
        """
        start = None if after is None else VALUE_PREFIX + after + b"\x00"
        items = self._store.scan(Family.STATE, VALUE_PREFIX + prefix, start=start)
        values = (decode_value(key[1:], stored) for key, stored in items)
        return list(itertools.islice((value for value in values if not _is_expired(value, now_us)), limit))

    def scan_in_steps(self, prefix: bytes, now_us: int, *, after: bytes | None = None) -> Iterator[StateValue | None]:
        """Yield the unexpired values whose keys begin with `prefix`, sorted by key, in steps of bounded work.

        None is returned for a step without a result, so that the caller can pause: there may be many values that have
        expired or were recently removed.
        """
        start = None if after is None else VALUE_PREFIX + after + b"\x00"
        for item in self._store.scan_in_steps(Family.STATE, VALUE_PREFIX + prefix, start=start):
            value = None if item is None else decode_value(item[0][1:], item[1])
            yield None if value is None or _is_expired(value, now_us) else value

    def fold_put(self, mutations: Mutations, key: bytes, value: bytes, version: int, expires_at_us: int) -> None:
        """Set a key. `version` is the lsn of the put; `expires_at_us` 0 means never."""
        self._forget_expiry(mutations, key)
        mutations.put(
            Family.STATE, VALUE_PREFIX + key, _VALUE_HEADER.pack(_FORMAT_VERSION, version, expires_at_us) + value
        )
        if expires_at_us:
            index_key = expiry_key(expires_at_us, key)
            mutations.put(Family.STATE, index_key, b"")
            self._first_expiry = min(self._first_expiry, index_key)
            self._lowest_put = min(self._lowest_put, index_key)

    def fold_delete(self, mutations: Mutations, key: bytes) -> None:
        """Remove a key; a missing one is not an error."""
        self._forget_expiry(mutations, key)
        mutations.delete(Family.STATE, VALUE_PREFIX + key)

    def expired(self, now_us: int, limit: int) -> list[bytes]:
        """Return up to `limit` keys whose values have expired, sorted by the time of expiry.

        A key may be put again before its deletion is decided: use the version found then.
        """
        keys = (key for key in self.expired_in_steps(now_us) if key is not None)
        return list(itertools.islice(keys, limit))

    def expired_in_steps(self, now_us: int) -> Iterator[bytes | None]:
        """The same without a limit, in steps of bounded work: None after a step without a result.

        Entries that were removed since the last scan are skipped, those that were removed before are not read.

        REQUIRES: one such scan at a time.
        """
        is_first = True
        self._lowest_put = _ABOVE_ALL_EXPIRIES
        for item in self._store.scan_in_steps(Family.STATE, EXPIRY_PREFIX, start=self._first_expiry):
            if item is None:
                yield None
                continue
            index_key, _ = item
            if is_first:
                is_first, self._first_expiry = False, min(index_key, self._lowest_put)
            expires_at_us, key = decode_expiry_key(index_key)
            if expires_at_us > now_us:
                return
            yield key
        if is_first:
            self._first_expiry = self._lowest_put

    def is_expired(self, key: bytes, now_us: int) -> bool:
        """Whether there is a value that has expired."""
        stored = self._store.get(Family.STATE, VALUE_PREFIX + key)
        return stored is not None and _is_expired(decode_value(key, stored), now_us)

    def _forget_expiry(self, mutations: Mutations, key: bytes) -> None:
        stored = mutations.get(self._store, Family.STATE, VALUE_PREFIX + key)
        if stored is not None and (expires_at_us := decode_value(key, stored).expires_at_us):
            mutations.delete(Family.STATE, expiry_key(expires_at_us, key))


def expiry_key(expires_at_us: int, key: bytes) -> bytes:
    """Key of the expiry index entry of a value."""
    return EXPIRY_PREFIX + _EXPIRY.pack(expires_at_us) + key


def decode_expiry_key(index_key: bytes) -> tuple[int, bytes]:
    """Decode an entry of the expiry index: expiry and state key.

    Raises:
        CorruptionError: It is truncated.
    """
    if len(index_key) < 1 + _EXPIRY.size:
        raise CorruptionError(
            "index of expiries", 0, f"a key has {len(index_key)} bytes, expected {1 + _EXPIRY.size} or more"
        )
    return _EXPIRY.unpack_from(index_key, 1)[0], index_key[1 + _EXPIRY.size :]


def _is_expired(value: StateValue, now_us: int) -> bool:
    return 0 < value.expires_at_us <= now_us


def decode_value(key: bytes, stored: bytes) -> StateValue:
    """Decode a stored value.

    Raises:
        CorruptionError: It is damaged.
        FormatVersionError: A newer program wrote it.
    """
    if stored[:1] != bytes((_FORMAT_VERSION,)):
        raise FormatVersionError(
            f"state of key {key!r} is stored in format {stored[:1].hex() or 'none'}, "
            f"this program reads format {_FORMAT_VERSION}; use the program version that wrote it"
        )
    if len(stored) < _VALUE_HEADER.size:
        raise CorruptionError(
            f"state of key {key!r}", 0, f"the value has {len(stored)} bytes, expected {_VALUE_HEADER.size} or more"
        )
    _, version, expires_at_us = _VALUE_HEADER.unpack_from(stored)
    return StateValue(key=key, value=stored[_VALUE_HEADER.size :], version=version, expires_at_us=expires_at_us)
