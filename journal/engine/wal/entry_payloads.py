"""Payloads of the entries that are not batches: small attrs values, encoded as MessagePack maps.

Field names are part of the journal format. A decision records the result, not the request: folding it needs no check,
and folding it twice has the same result as once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import attrs
import msgspec

from journal.engine.wal.entry import Kind
from shards.model import Mode, Retention, ShardConfig


@attrs.frozen(slots=True)
class ShardCreated:
    """A shard was created; its id is the lsn of this entry."""

    name: str
    config: ShardConfig
    created_us: int


@attrs.frozen(slots=True)
class ShardDeleted:
    """The shard was deleted with all its data."""

    name: str


@attrs.frozen(slots=True)
class ShardConfigured:
    """The shard has this configuration from now on (its mode changes only by `Rolled`)."""

    retention: Retention
    segment_bytes: int


@attrs.frozen(slots=True)
class Rolled:
    """The active segment was closed at this offset; the next one has this mode."""

    base_offset: int
    mode: Mode
    created_us: int


@attrs.frozen(slots=True)
class Trimmed:
    """Records below the offset were removed."""

    start_offset: int


class ConvertedFile(NamedTuple):
    """A shared file, encoded as an array.

    Attributes:
        day: Days since 1970 of the appends in it.
        file_id: Its number; a file is known by both.
        size_bytes: Size of the file.
        record_count: Number of records in it.
        digest: SHA-256 of the whole file.
    """

    day: int
    file_id: int
    size_bytes: int
    record_count: int
    digest: bytes


class ConvertedPart(NamedTuple):
    """A segment in a shared file, encoded as an array.

    Attributes:
        shard_id: Its shard.
        file: Index of the file among those of the decision.
        first_row: Row of its first record in the file.
        size_bytes: Its share of the file's bytes.
        created_us: When the log segment was opened.
    """

    shard_id: int
    base_offset: int
    next_offset: int
    file: int
    first_row: int
    size_bytes: int
    created_us: int
    newest_append_us: int
    last_lsn: int
    newest_us: int


@attrs.frozen(slots=True)
class FilesConverted:
    """Segments of many shards are in these shared files from now on; the segments that they replace are not needed.

    Attributes:
        files: The files, which are durably in their places.
        parts: The segments, sorted by shard id and offset. Those of one shard that follow each other without a gap
            replace the segments of the same range, in whatever files these are.
    """

    files: tuple[ConvertedFile, ...]
    parts: tuple[ConvertedPart, ...]


@attrs.frozen(slots=True)
class OffsetsReserved:
    """Offsets below this one are never assigned again, even if the memory with their records is lost."""

    up_to: int


@attrs.frozen(slots=True)
class LsnsReserved:
    """The same for lsns of memory-mode batches."""

    up_to: int


@attrs.frozen(slots=True)
class CursorCommitted:
    """The cursor has this offset; its version is the entry's lsn."""

    name: str
    offset: int


@attrs.frozen(slots=True)
class CursorDeleted:
    """The cursor was deleted."""

    name: str


@attrs.frozen(slots=True)
class StatePut:
    """The key has this value; its version is the entry's lsn."""

    key: bytes
    value: bytes
    expires_at_us: int


@attrs.frozen(slots=True)
class StateDeleted:
    """The key was deleted."""

    key: bytes


@attrs.frozen(slots=True)
class ProducerOpened:
    """The producer with this name has this id and epoch; older epochs are fenced. Read, but no longer written."""

    name: str
    producer_id: int
    epoch: int


@attrs.frozen(slots=True)
class ProducerUsed:
    """The producer with this name has this id and epoch, and was in use at this time; older epochs are fenced."""

    name: str
    producer_id: int
    epoch: int
    used_us: int


@attrs.frozen(slots=True)
class ProducerDeleted:
    """The producer with this name was deleted; its id is never assigned again."""

    name: str
    producer_id: int


Decision: TypeAlias = (
    ShardCreated
    | ShardDeleted
    | ShardConfigured
    | Rolled
    | Trimmed
    | FilesConverted
    | OffsetsReserved
    | LsnsReserved
    | CursorCommitted
    | CursorDeleted
    | StatePut
    | StateDeleted
    | ProducerOpened
    | ProducerUsed
    | ProducerDeleted
)

KINDS: dict[type[Decision], Kind] = {
    ShardCreated: Kind.CREATE_SHARD,
    ShardDeleted: Kind.DELETE_SHARD,
    ShardConfigured: Kind.CONFIGURE_SHARD,
    Rolled: Kind.ROLL,
    Trimmed: Kind.TRIM,
    FilesConverted: Kind.CONVERT_FILES,
    OffsetsReserved: Kind.RESERVE_OFFSETS,
    LsnsReserved: Kind.RESERVE_LSNS,
    CursorCommitted: Kind.COMMIT_CURSOR,
    CursorDeleted: Kind.DELETE_CURSOR,
    StatePut: Kind.PUT_STATE,
    StateDeleted: Kind.DELETE_STATE,
    ProducerOpened: Kind.OPEN_PRODUCER,
    ProducerUsed: Kind.USE_PRODUCER,
    ProducerDeleted: Kind.DELETE_PRODUCER,
}


def runs_of_parts(parts: Iterable[ConvertedPart]) -> Iterator[tuple[int, list[ConvertedPart]]]:
    """Yield the parts of one shard that follow each other without a gap, with the shard's id."""
    run: list[ConvertedPart] = []
    for part in parts:
        if run and (part.shard_id, part.base_offset) != (run[-1].shard_id, run[-1].next_offset):
            yield run[0].shard_id, run
            run = []
        run.append(part)
    if run:
        yield run[0].shard_id, run


_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(decision) for decision, kind in KINDS.items()}


def encode_payload(decision: Decision) -> bytes:
    """Encode a decision as the payload of an entry."""
    return _encoder.encode(decision)


def decode_payload(kind: int, payload: memoryview) -> Decision:
    """Decode the decision in an entry's payload.

    Raises:
        ValueError: Unknown kind (a newer program wrote it) or an invalid payload.
    """
    decoder = _decoders.get(Kind(kind))
    if decoder is None:
        raise ValueError(f"entry kind {kind} carries no decision")
    try:
        decision: Decision = decoder.decode(payload)
    except RecursionError as error:
        raise ValueError(f"the payload of entry kind {kind} is nested too deeply") from error
    return decision
