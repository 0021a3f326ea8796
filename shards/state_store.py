"""Versioned values with expiry (sessions, retained messages, bridge positions), as a view over an ordered store.

Decisions (compare-and-set, limits) are made elsewhere; folding never refuses, and folding the same changes again in
order changes nothing. An expired value is hidden from every reader at once; its bytes go when the owner of the journal
deletes the keys that `StateStore.expired` names.

Family ``state``:

- a value: key ``v`` + the user's key; value: format version (u8, 1), version (u64), expires_at_us (u64), big-endian,
  then the user's value;
- its place in the expiry index, if it expires: key ``x`` + expires_at_us (u64, big-endian, so that what expires first
  comes first) + the user's key; value empty.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator

from shards.errors import CorruptionError, FormatVersionError
from shards.model import StateValue
from shards.store import Family, Mutations, OrderedStore

_VALUE_HEADER = struct.Struct(">BQQ")
_EXPIRY = struct.Struct(">Q")
_FORMAT_VERSION = 1
VALUE_PREFIX = b"v"
EXPIRY_PREFIX = b"x"


class StateStore:
    """The state of one store.

    REQUIRES of the folds: one `Mutations` at a time, written before the next is begun. A fold looks at the store and at
    the mutations it is given to find the index entry it replaces.
    """

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        # Nothing lies before it in the index of expiries. What was deleted there costs a scan time until it is
        # compacted, so none begins at the beginning but the first.
        self._first_expiry = EXPIRY_PREFIX

    def get(self, key: bytes, now_us: int) -> StateValue | None:
        """Return a value, None if it is not there or has expired at `now_us`."""
        stored = self._store.get(Family.STATE, VALUE_PREFIX + key)
        value = None if stored is None else decode_value(key, stored)
        return None if value is None or _is_expired(value, now_us) else value

    def scan(self, prefix: bytes, now_us: int, *, after: bytes | None = None, limit: int) -> list[StateValue]:
        """Return up to `limit` unexpired values whose keys begin with `prefix`, sorted by key.

        Args:
            after: Begin behind this key, which need not exist: the last one of the page before.
            limit: Most values to return; fewer mean that there are no more.
        """
        start = None if after is None else VALUE_PREFIX + after + b"\x00"
        items = self._store.scan(Family.STATE, VALUE_PREFIX + prefix, start=start)
        values = (decode_value(key[1:], stored) for key, stored in items)
        return list(itertools.islice((value for value in values if not _is_expired(value, now_us)), limit))

    def scan_some(
        self, prefix: bytes, now_us: int, *, after: bytes | None, limit: int, looked_at: int, size_bytes: int
    ) -> tuple[list[StateValue], bytes | None]:
        """The same, with a bound on the work: expired values that are not removed yet may be many, or values large.

        Args:
            looked_at: Most values to read, expired ones as well.
            size_bytes: With so many bytes of keys and values the page ends.

        Returns:
            Values, and the key to go on behind; None at the end. There may be no values and yet more to come.
        """
        start = None if after is None else VALUE_PREFIX + after + b"\x00"
        found: list[StateValue] = []
        for key, stored in self._store.scan(Family.STATE, VALUE_PREFIX + prefix, start=start):
            value = decode_value(key[1:], stored)
            looked_at -= 1
            size_bytes -= len(key) + len(stored)
            if not _is_expired(value, now_us):
                found.append(value)
            if len(found) >= limit or looked_at <= 0 or size_bytes <= 0:
                return found, value.key
        return found, None

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

    def fold_delete(self, mutations: Mutations, key: bytes) -> None:
        """Remove a key; one that is not there is no error."""
        self._forget_expiry(mutations, key)
        mutations.delete(Family.STATE, VALUE_PREFIX + key)

    def expired(self, now_us: int, limit: int) -> list[bytes]:
        """Return up to `limit` keys whose values have expired, those that expired first before the others.

        It costs no more than what it returns. A key may be put again before its delete is decided: decide by the
        version found then.
        """
        return list(itertools.islice(self._expired_keys(now_us), limit))

    def _expired_keys(self, now_us: int) -> Iterator[bytes]:
        is_first = True
        for index_key, _ in self._store.scan(Family.STATE, EXPIRY_PREFIX, start=self._first_expiry):
            if is_first:
                is_first, self._first_expiry = False, index_key
            expires_at_us, key = decode_expiry_key(index_key)
            if expires_at_us > now_us:
                return
            yield key

    def _forget_expiry(self, mutations: Mutations, key: bytes) -> None:
        stored = mutations.get(self._store, Family.STATE, VALUE_PREFIX + key)
        if stored is not None and (expires_at_us := decode_value(key, stored).expires_at_us):
            mutations.delete(Family.STATE, expiry_key(expires_at_us, key))


def expiry_key(expires_at_us: int, key: bytes) -> bytes:
    """Key of the expiry index entry of a value."""
    return EXPIRY_PREFIX + _EXPIRY.pack(expires_at_us) + key


def decode_expiry_key(index_key: bytes) -> tuple[int, bytes]:
    """Expiry and state key of an entry of the expiry index.

    Raises:
        CorruptionError: It is cut short.
    """
    if len(index_key) < 1 + _EXPIRY.size:
        raise CorruptionError(
            "index of expiries", 0, f"a key has {len(index_key)} bytes, expected {1 + _EXPIRY.size} or more"
        )
    return _EXPIRY.unpack_from(index_key, 1)[0], index_key[1 + _EXPIRY.size :]


def _is_expired(value: StateValue, now_us: int) -> bool:
    return 0 < value.expires_at_us <= now_us


def decode_value(key: bytes, stored: bytes) -> StateValue:
    """Read a stored value.

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
