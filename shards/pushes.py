"""What a subscription gives: records of a shard, or news about a shard. Plain values."""

from __future__ import annotations

import attrs

from shards.chunks import Readable
from shards.errors import StorageError


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
            up to ``lsn`` was given.
        reference: The subscription's number for the shard, 0 with ``progress``.
        shard_id: Its id.
        name: Its name.
        offset: Where the subscription stands in it.
        lsn: With ``progress``.
        error: With ``error``.
    """

    event: str
    reference: int = 0
    shard_id: int = 0
    name: str = ""
    offset: int = -1
    lsn: int = 0
    error: StorageError | None = None
