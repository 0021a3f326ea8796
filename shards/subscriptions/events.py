"""What a subscription delivers: batches of a shard, notices about a shard, progress. Plain values."""

from __future__ import annotations

import attrs

from shards.errors import StorageError
from shards.segments.chunks import Readable


@attrs.frozen(slots=True)
class Push:
    """Records of one shard.

    Attributes:
        reference: The subscription's number for the shard.
        first_offset: First record of the push; the first batch may begin below it.
        next_offset: First offset of the next push of this shard.
        buffers: Whole batches as they are stored; gap batches are in place of lost records.
        size_bytes: Length of all buffers.
    """

    reference: int
    first_offset: int
    next_offset: int
    buffers: list[Readable]
    size_bytes: int


@attrs.define(slots=True, eq=False)  # one is made for each delivery; a frozen one takes twice as long
class Batches:
    """Whole record batches of one shard, as the reader of a subscription gets them.

    Attributes:
        shard: Name of the shard.
        first_offset: First offset that they deliver; the first batch may begin below it: the reader skips up to here.
        next_offset: First offset of the next delivery of this shard.
        batches: Batches back to back; may be kept.
        reference: The subscription's number for the shard.
    """

    shard: str
    first_offset: int
    next_offset: int
    batches: Readable
    reference: int = 0


@attrs.frozen(slots=True)
class Notice:
    """A notice of a subscription.

    Attributes:
        event: ``added`` before a shard's first push, ``removed`` or ``error`` at its end; ``progress`` when everything
            up to ``lsn`` was delivered; ``end`` when, in addition, nothing more follows.
        reference: The subscription's number for the shard, 0 with ``progress`` and ``end``.
        shard_id: Id of the shard.
        name: Name of the shard.
        offset: Position of the subscription in the shard.
        lsn: With ``progress`` and ``end``, and with ``removed`` that of the deletion. 0 if it is not known.
        error: With ``error``.
    """

    event: str
    reference: int = 0
    shard_id: int = 0
    name: str = ""
    offset: int = -1
    lsn: int = 0
    error: StorageError | None = None


@attrs.frozen(slots=True)
class Progress:
    """All matching records with an lsn from the feed's ``start_lsn`` (exclusive) up to this one were delivered.

    Records that have expired, were trimmed or deleted count as delivered.
    """

    lsn: int
