"""The result of `StorageAdapter.subscribe`: a subscription, and the deliveries of it and of a `Feed`.

The engines implement subscriptions. A `Feed`, in `broker_adapter.feed`, also reports the lsn that it has reached.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import Self

import attrs

from shards.format.record import Gap, StoredRecord


async def _nothing_to_acknowledge() -> None:
    """Default for a delivery outside of groups."""


@attrs.frozen(slots=True)
class Delivery:
    """Records that a subscription received: some of one shard, in offset order.

    Attributes:
        shard: Name of the shard.
        records: Records and gaps. In a group it may be empty: all records in the range had expired.
        next_offset: Offset after the delivered range.
    """

    shard: str
    records: list[StoredRecord | Gap]
    next_offset: int
    _acknowledge: Callable[[], Awaitable[None]] = attrs.field(default=_nothing_to_acknowledge, repr=False, eq=False)

    async def acknowledge(self) -> None:
        """Acknowledge this range for the group, so that no other member gets it. Without a group it does nothing.

        The group's position (cursor ``group/<name>`` of the shard) moves when all lower offsets are acknowledged too.
        It is stored soon, not necessarily before this returns: after a crash the last ranges may be delivered again.
        """
        await self._acknowledge()


class Subscription(abc.ABC):
    """An endless async iterator of deliveries. One task iterates it at a time.

    It ends without an error when the adapter or the subscription is closed. It raises `ShardNotFoundError` when its one
    shard is deleted. A deleted shard that a filter matched delivers nothing more. Where a trim or retention removed
    records before they were delivered, a `Gap` stands in their place.
    """

    def __aiter__(self) -> Self:
        return self

    @abc.abstractmethod
    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""
