"""Format of values in the state store: one byte of format version, then MessagePack of a msgspec structure. Pure.

The structures are declared by their users: `mqtt.session.stored`, `cache_queue.stored`.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from shards.errors import CorruptionError, FormatVersionError

_FORMAT_VERSION: Final = 1
_FORMAT_PREFIX: Final = bytes((_FORMAT_VERSION,))

Stored = TypeVar("Stored", bound=msgspec.Struct)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.msgpack.Decoder[msgspec.Struct]] = {}


def encode(record: msgspec.Struct) -> bytes:
    """Encode a structure."""
    return _FORMAT_PREFIX + _encoder.encode(record)


def decode(kind: type[Stored], key: bytes, value: bytes) -> Stored:
    """Decode a structure.

    Raises:
        FormatVersionError: The format version is not the one that this program reads.
        CorruptionError: The bytes are not a structure of this kind.
    """
    if value[:1] != _FORMAT_PREFIX:
        raise FormatVersionError(
            f"state {key!r} is stored in format {value[:1].hex() or 'none'}, this broker reads format "
            f"{_FORMAT_VERSION}; use the program version that wrote it"
        )
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        record = decoder.decode(memoryview(value)[1:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(f"state {key!r}", 0, f"not a {kind.__name__}: {error}") from error
    assert isinstance(record, kind)
    return record
