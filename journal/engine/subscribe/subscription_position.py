"""The position of a subscription in one shard, and reading the next push there."""

from __future__ import annotations

from journal.engine.read.reader import Reader
from shards.errors import OffsetOutOfRangeError
from shards.format.batch import gap_batch
from shards.segments.read_slices import Place
from shards.segments.shard import Shard
from shards.subscriptions.events import Push
from shards.subscriptions.fair_queue import QueuedPosition


class SubscriptionPosition(QueuedPosition):
    """The position of a subscription that pushes records.

    Attributes:
        reference: The subscription's number for the shard.
        place: Where the reader stopped, so that it continues without a search.
        announced: The receiver was sent the reference.
        is_listening: The subscription is notified of the shard's next publish.
    """

    __slots__ = ("announced", "is_listening", "place", "reference", "shard")

    def __init__(self, shard: Shard, reference: int, offset: int | None) -> None:
        super().__init__(shard.shard_id, offset)
        self.shard = shard
        self.reference = reference
        self.place: Place | None = None
        self.announced = False
        self.is_listening = False


async def read_push(reader: Reader, position: SubscriptionPosition, limit: int | None, max_bytes: int) -> Push | None:
    """The next records of a shard, up to about ``max_bytes`` and below the offset ``limit``; None if there are none.

    Cancelling it changes nothing.

    Raises:
        StorageError: The shard was deleted, is stopped, or is damaged at this position.
    """
    shard, offset = position.shard, position.offset
    assert offset is not None  # the caller has found where it begins
    if offset < shard.start_offset and not shard.damage:
        # Retention has trimmed records before they were read: report which ones will not be delivered.
        next_offset = shard.start_offset if limit is None else min(shard.start_offset, limit)
        if next_offset <= offset:
            return None
        gap = gap_batch(offset, next_offset, shard.published_lsn, 0)
        position.offset, position.place = next_offset, None
        return Push(position.reference, offset, next_offset, [gap], len(gap))
    if limit is not None and offset >= limit:
        shard.check_usable()
        return None
    try:
        extent = await reader.read(shard, offset, max_bytes, position.place)
    except OffsetOutOfRangeError:
        if offset < shard.start_offset:
            return await read_push(reader, position, limit, max_bytes)
        raise
    if not extent.size_bytes:
        return None
    # Records may have been published while a file was being read.
    next_offset = extent.next_offset if limit is None else min(extent.next_offset, limit)
    position.offset = next_offset
    position.place = extent.place if next_offset == extent.next_offset else None
    return Push(position.reference, offset, next_offset, extent.buffers, extent.size_bytes)
