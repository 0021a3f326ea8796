"""The registered producers and their epochs, as a view over an ordered store.

Opening a name again raises its epoch; batches with an older epoch are refused in every shard, even where the new epoch
has not been used yet. Family ``producers``: key = b"n" + name, value = version (u8, 2), producer id (u64), epoch
(u32), used_us (u64), big-endian, where version 1 lacks the last; and key = b"i" + producer id, value = epoch (u32),
name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import attrs

from shards.errors import CorruptionError, FormatVersionError, UnknownProducerError
from shards.model import ProducerIdentity
from shards.seams.store import Family, Mutations, OrderedStore

_BY_NAME = struct.Struct(">BQIQ")
_BY_NAME_1 = struct.Struct(">BQI")
_ID = struct.Struct(">cQ")
_EPOCH = struct.Struct(">I")
_VERSION = 2
_MOST_CACHED = 100_000


@attrs.frozen(slots=True)
class RegisteredProducer:
    """A producer as it is stored.

    Attributes:
        name: Its name.
        identity: Its id and newest epoch.
        used_us: When it was last opened or known to be in use, in microseconds since the epoch; 0 if not recorded.
    """

    name: str
    identity: ProducerIdentity
    used_us: int


def count_of(name: str) -> str:
    """Prefix under which a name is counted: up to the first colon, which ends the name of a principal."""
    beginning, colon, _ = name.partition(":")
    return beginning + colon if colon else ""


class Producers:
    """The registered producers of a store.

    Attributes:
        epochs: Newest epoch by producer id, of those used recently; read-only for others.
        counts: Number of names by prefix, see `count_of`; valid once all of them were counted.
    """

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self.epochs: dict[int, int] = {}
        self.counts: dict[str, int] = {}

    def count(self, beginning: str) -> int:
        """Number of names that are counted under a prefix; all names for an empty one."""
        return self.counts.get(beginning, 0) if beginning else sum(self.counts.values())

    def registered(self) -> Iterator[RegisteredProducer | None]:
        """All producers, sorted by name.

        There may be millions: the caller can pause between them, and at each None, which is returned for a step without
        a result.
        """
        for item in self._store.scan_in_steps(Family.PRODUCERS, b"n"):
            if item is None:
                yield None
                continue
            key, value = item
            yield RegisteredProducer(key[1:].decode(), decode_identity(value), decode_used(value))

    def find(self, name: str) -> RegisteredProducer | None:
        """The producer with a name, None if it was never opened."""
        value = self._store.get(Family.PRODUCERS, b"n" + name.encode())
        return None if value is None else RegisteredProducer(name, decode_identity(value), decode_used(value))

    def is_registered(self, producer_id: int) -> bool:
        """Whether an id belongs to a producer."""
        return producer_id in self.epochs or self._store.get(Family.PRODUCERS, _ID.pack(b"i", producer_id)) is not None

    def get(self, name: str) -> ProducerIdentity | None:
        """Identity of the producer with a name, None if it was never opened."""
        value = self._store.get(Family.PRODUCERS, b"n" + name.encode())
        if value is None:
            return None
        return decode_identity(value)

    def epoch(self, producer_id: int) -> int:
        """Newest epoch of a producer id.

        Raises:
            UnknownProducerError: It was never opened, or has expired.
        """
        epoch = self.epochs.get(producer_id)
        if epoch is None:
            value = self._store.get(Family.PRODUCERS, _ID.pack(b"i", producer_id))
            if value is None:
                raise _unknown(producer_id)
            if len(self.epochs) >= _MOST_CACHED:
                self.epochs.clear()
            epoch = decode_epoch(value)
            self.epochs[producer_id] = epoch
        return epoch

    def check_name_begins(self, producer_id: int, beginning: str) -> None:
        """Check that an id was opened under a name with this prefix.

        Raises:
            UnknownProducerError: It was not; the error does not reveal whether it was opened under another name.
        """
        value = self._store.get(Family.PRODUCERS, _ID.pack(b"i", producer_id))
        if value is None or not decode_name(value).startswith(beginning):
            raise _unknown(producer_id)

    def fold_use(self, mutations: Mutations, name: str, producer_id: int, epoch: int, used_us: int) -> None:
        """The name has this id and epoch, and was in use at this time."""
        key = b"n" + name.encode()
        if mutations.get(self._store, Family.PRODUCERS, key) is None:
            self._add_to_count(name, 1)
        mutations.put(Family.PRODUCERS, key, _BY_NAME.pack(_VERSION, producer_id, epoch, used_us))
        mutations.put(Family.PRODUCERS, _ID.pack(b"i", producer_id), _EPOCH.pack(epoch) + name.encode())
        if len(self.epochs) >= _MOST_CACHED:
            self.epochs.clear()
        self.epochs[producer_id] = epoch

    def fold_delete(self, mutations: Mutations, name: str, producer_id: int) -> None:
        """The producer with this name was deleted; its id is never assigned again."""
        key = b"n" + name.encode()
        if mutations.get(self._store, Family.PRODUCERS, key) is not None:
            self._add_to_count(name, -1)
        mutations.delete(Family.PRODUCERS, key)
        mutations.delete(Family.PRODUCERS, _ID.pack(b"i", producer_id))
        self.epochs.pop(producer_id, None)

    def _add_to_count(self, name: str, change: int) -> None:
        beginning = count_of(name)
        self.counts[beginning] = self.counts.get(beginning, 0) + change


def decode_identity(value: bytes) -> ProducerIdentity:
    """Decode the value stored under a name.

    Raises:
        CorruptionError: It is damaged.
        FormatVersionError: A newer program wrote it.
    """
    version = value[0] if value else 0
    if version not in (1, _VERSION):
        raise FormatVersionError(
            f"a producer is stored in format {value[:1].hex() or 'none'}, this program reads formats 1 and {_VERSION}; "
            f"use the program version that wrote it"
        )
    expected = _BY_NAME_1.size if version == 1 else _BY_NAME.size
    if len(value) != expected:
        raise CorruptionError("a producer", 0, f"the value has {len(value)} bytes, expected {expected}")
    _, producer_id, epoch = _BY_NAME_1.unpack_from(value)
    return ProducerIdentity(producer_id, epoch)


def decode_used(value: bytes) -> int:
    """When a producer was last known to be in use, from a valid value; 0 if it was not recorded."""
    used_us: int = _BY_NAME.unpack(value)[3] if len(value) == _BY_NAME.size else 0
    return used_us


def decode_epoch(value: bytes) -> int:
    """Decode the value stored under an id.

    Raises:
        CorruptionError: It is damaged.
    """
    if len(value) < _EPOCH.size:
        raise CorruptionError("the epoch of a producer", 0, f"{len(value)} bytes, expected at least {_EPOCH.size}")
    epoch: int = _EPOCH.unpack_from(value)[0]
    return epoch


def decode_name(value: bytes) -> str:
    """Decode the name that is stored under an id; empty in values of older versions, which did not store it.

    Raises:
        CorruptionError: It is damaged.
    """
    try:
        return value[_EPOCH.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError("the name of a producer", error.start, f"not UTF-8: {error.reason}") from error


def _unknown(producer_id: int) -> UnknownProducerError:
    return UnknownProducerError(
        f"producer id {producer_id} was never opened on this node, or has expired; open a producer by name first"
    )
