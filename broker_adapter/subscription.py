"""What a store delivers: to a subscription (`StorageAdapter.subscribe`) and to a feed (`StorageAdapter.follow`).

Between deliveries a feed also reports the lsn that it has reached. The engines implement both.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import Self

import attrs

from shards.errors import InvalidRequestError
from shards.format.record import Gap, StoredRecord
from shards.subscriptions.events import Progress
from shards.topics.topic_filters import validate_filter


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
    records before they were delivered, a `Gap` stands in their place. By filter there may be none if the connection to
    the store was lost meanwhile.
    """

    def __aiter__(self) -> Self:
        return self

    @abc.abstractmethod
    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""


__all__ = ["Feed", "Progress", "check_follow"]


class Feed(abc.ABC):
    """An async iterator of deliveries and progress. One task iterates it at a time.

    It ends without an error after its ``until_lsn``, and when the adapter or the feed is closed. Deliveries of one
    shard come in offset order, each record once. A deleted shard delivers nothing more. A shard whose stored data is
    damaged is skipped from there on (the engine logs it). Where a trim or retention removed records before they were
    delivered, a `Gap` stands in their place, unless the connection to the store was lost meanwhile.

    Attributes:
        start_lsn: All matching records with a higher lsn are delivered.
    """

    start_lsn: int

    def __aiter__(self) -> Self:
        return self

    @abc.abstractmethod
    async def __anext__(self) -> Delivery | Progress:
        """Wait for the next delivery or progress. Cancelling it loses nothing."""


def check_follow(topic_filter: str, after_lsn: int | None, until_lsn: int | None) -> None:
    """Check the arguments of `StorageAdapter.follow`.

    Raises:
        InvalidNameError: The filter is not valid.
        InvalidRequestError: An lsn is negative.
    """
    validate_filter(topic_filter)
    for name, lsn in (("after_lsn", after_lsn), ("until_lsn", until_lsn)):
        if lsn is not None and lsn < 0:
            raise InvalidRequestError(f"{name} is {lsn}; lsns are 0 (before everything) or higher")
