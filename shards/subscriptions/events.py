"""What a subscription gives: records of a shard, news about a shard, how far it is. Plain values."""

from __future__ import annotations

import attrs

from shards.errors import StorageError
from shards.segments.chunks import Readable


@attrs.frozen(slots=True)
class Push:
    """Records of one shard.

    Attributes:
        reference: The subscription's number for the shard.
        first_offset: First record meant; the first batch may begin below it.
        next_offset: Where the subscription goes on in this shard.
        buffers: Whole batches as they are stored; gap batches stand for records that are gone.
        size_bytes: Length of all buffers.
    """

    reference: int
    first_offset: int
    next_offset: int
    buffers: list[Readable]
    size_bytes: int


@attrs.frozen(slots=True)
class Notice:
    """News of a subscription.

    Attributes:
        event: ``added`` before a shard's first push, ``removed`` or ``error`` at its end; ``progress`` when everything
            up to ``lsn`` was given; ``end`` when, besides, nothing more comes.
        reference: The subscription's number for the shard, 0 with ``progress`` and ``end``.
        shard_id: Its id.
        name: Its name.
        offset: Where the subscription stands in it.
        lsn: With ``progress`` and ``end``.
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
    """Everything matching with an lsn from the feed's ``start_lsn`` (exclusive) to this one has been delivered by it.

    What has expired, was trimmed or was deleted counts as delivered.
    """

    lsn: int
