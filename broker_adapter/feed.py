"""What `StorageAdapter.follow` gives: a feed of deliveries, and in between how far it is."""

from __future__ import annotations

import abc
from typing import Self

from broker_adapter.subscription import Delivery
from shards.errors import InvalidRequestError
from shards.subscriptions.events import Progress
from shards.topics.topic_filters import validate_filter

__all__ = ["Feed", "Progress", "check_follow"]


class Feed(abc.ABC):
    """An async iterator of deliveries and progress. One task iterates it at a time.

    It ends cleanly (the loop is left) behind its ``until_lsn``, and when the adapter or the feed is closed. Deliveries
    of one shard come in offset order, each record once. A shard that is deleted just delivers no more, and one whose
    stored data is damaged is left out from there on (the engine logs it). Where a trim or retention overtakes the feed
    in a shard, a `Gap` stands for what it took.

    Attributes:
        start_lsn: Everything matching with a higher lsn comes.
    """

    start_lsn: int

    def __aiter__(self) -> Self:
        return self

    @abc.abstractmethod
    async def __anext__(self) -> Delivery | Progress:
        """Wait for the next delivery or progress. Cancelling it loses nothing."""


def check_follow(topic_filter: str, after_lsn: int | None, until_lsn: int | None) -> None:
    """Refuse what cannot be followed.

    Raises:
        InvalidNameError: The filter is not valid.
        InvalidRequestError: An lsn is negative.
    """
    validate_filter(topic_filter)
    for name, lsn in (("after_lsn", after_lsn), ("until_lsn", until_lsn)):
        if lsn is not None and lsn < 0:
            raise InvalidRequestError(f"{name} is {lsn}; lsns are 0 (before everything) or higher")
