"""Which producers are registered and under which epoch, as a view over an ordered store.

Opening a name again raises its epoch; batches under an older one are refused everywhere, in shards that the new holder
never wrote to as well. Family ``producers``: key = b"n" + name, value = version (u8, 1), producer id (u64), epoch
(u32), big-endian; and key = b"i" + producer id, value = epoch (u32), name.
"""

from __future__ import annotations

import struct

from shards.errors import CorruptionError, FormatVersionError, UnknownProducerError
from shards.model import ProducerIdentity
from shards.store import Family, Mutations, OrderedStore

_BY_NAME = struct.Struct(">BQI")
_ID = struct.Struct(">cQ")
_EPOCH = struct.Struct(">I")
_VERSION = 1
_MOST_CACHED = 100_000


class Producers:
    """The registered producers of a store.

    Attributes:
        epochs: Newest epoch by producer id, of those asked for lately; to be read only.
    """

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self.epochs: dict[int, int] = {}

    def get(self, name: str) -> ProducerIdentity | None:
        """Identity under a name, None if it was never opened."""
        value = self._store.get(Family.PRODUCERS, b"n" + name.encode())
        if value is None:
            return None
        return decode_identity(value)

    def epoch(self, producer_id: int) -> int:
        """Newest epoch of a producer id.

        Raises:
            UnknownProducerError: Nobody opened it.
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
        """Make sure that an id was opened under a name that begins like this.

        Raises:
            UnknownProducerError: It was not; that it was opened under another is not told.
        """
        value = self._store.get(Family.PRODUCERS, _ID.pack(b"i", producer_id))
        if value is None or not decode_name(value).startswith(beginning):
            raise _unknown(producer_id)

    def fold_open(self, mutations: Mutations, name: str, producer_id: int, epoch: int) -> None:
        """The name has this id and epoch."""
        mutations.put(Family.PRODUCERS, b"n" + name.encode(), _BY_NAME.pack(_VERSION, producer_id, epoch))
        mutations.put(Family.PRODUCERS, _ID.pack(b"i", producer_id), _EPOCH.pack(epoch) + name.encode())
        self.epochs[producer_id] = epoch


def decode_identity(value: bytes) -> ProducerIdentity:
    """Read what is stored under a name.

    Raises:
        CorruptionError: It is damaged.
        FormatVersionError: A newer program wrote it.
    """
    if value[:1] != bytes((_VERSION,)):
        raise FormatVersionError(
            f"a producer is stored in format {value[:1].hex() or 'none'}, this program reads format {_VERSION}; "
            f"use the program version that wrote it"
        )
    if len(value) != _BY_NAME.size:
        raise CorruptionError("a producer", 0, f"the value has {len(value)} bytes, expected {_BY_NAME.size}")
    _, producer_id, epoch = _BY_NAME.unpack(value)
    return ProducerIdentity(producer_id, epoch)


def decode_epoch(value: bytes) -> int:
    """Read what is stored under an id.

    Raises:
        CorruptionError: It is damaged.
    """
    if len(value) < _EPOCH.size:
        raise CorruptionError("the epoch of a producer", 0, f"{len(value)} bytes, expected at least {_EPOCH.size}")
    epoch: int = _EPOCH.unpack_from(value)[0]
    return epoch


def decode_name(value: bytes) -> str:
    """Read the name that is stored under an id; empty if a program that did not store it wrote the value.

    Raises:
        CorruptionError: It is damaged.
    """
    try:
        return value[_EPOCH.size :].decode()
    except UnicodeDecodeError as error:
        raise CorruptionError("the name of a producer", error.start, f"no UTF-8: {error.reason}") from error


def _unknown(producer_id: int) -> UnknownProducerError:
    return UnknownProducerError(
        f"producer id {producer_id} was never opened on this node; open a producer by name first"
    )
