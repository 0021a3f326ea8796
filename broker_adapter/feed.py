"""The result of `StorageAdapter.follow`: a feed of deliveries and, between them, of the lsn reached so far."""

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

    It ends without an error after its ``until_lsn``, and when the adapter or the feed is closed. Deliveries of one
    shard come in offset order, each record once. A deleted shard delivers nothing more. A shard whose stored data is
    damaged is skipped from there on (the engine logs it). Where a trim or retention removed records before they were
    delivered, a `Gap` stands in their place.

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
