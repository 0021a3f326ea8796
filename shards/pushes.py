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
    """News about one shard of a subscription: ``added`` before its first push, ``removed`` or ``error`` at its end."""

    event: str
    reference: int
    name: str
    offset: int
    error: StorageError | None
