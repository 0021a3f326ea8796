"""What a store delivers: to a subscription (`StorageAdapter.subscribe`) and to a feed (`StorageAdapter.follow`).

Between deliveries a feed also reports the lsn that it has reached. The engines implement both.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import Self

from shards.errors import InvalidRequestError
from shards.format.record import Gap, StoredRecord
from shards.subscriptions.events import Progress
from shards.topics.topic_filters import validate_filter


async def _nothing_to_acknowledge() -> None:
    """Default for a delivery outside of groups."""


class Delivery:
    """Records that a subscription received: some of one shard, in offset order.

    A feed does not decode batches of which all records are delivered: `records` does that when it is read for the first
    time. So a consumer that needs only the shard and `last_lsn` decodes nothing.

    Args:
        shard: Name of the shard.
        records: The records, or what decodes them; the latter needs the two arguments after ``next_offset``.
        next_offset: Offset after the delivered range.
        last_lsn: Highest lsn of a record in it; None: that of the last record in ``records``.
        names_topics: False: no record names a topic, and none is a gap.
        acknowledge: Acknowledges the range to the group.

    Attributes:
        shard: Name of the shard.
        next_offset: Offset after the delivered range.
        names_topics: False: all of it are records of the shard's own topic, without a gap.
    """

    __slots__ = ("_acknowledge", "_decode", "_last_lsn", "_records", "names_topics", "next_offset", "shard")

    def __init__(
        self,
        shard: str,
        records: list[StoredRecord | Gap] | Callable[[], list[StoredRecord | Gap]],
        next_offset: int,
        *,
        last_lsn: int | None = None,
        names_topics: bool = True,
        acknowledge: Callable[[], Awaitable[None]] = _nothing_to_acknowledge,
    ) -> None:
        self.shard = shard
        self.next_offset = next_offset
        self.names_topics = names_topics
        self._last_lsn = last_lsn
        self._acknowledge = acknowledge
        self._records: list[StoredRecord | Gap] | None = None
        self._decode: Callable[[], list[StoredRecord | Gap]] | None = None
        if isinstance(records, list):
            self._records = records
        else:
            self._decode = records

    def __repr__(self) -> str:
        return f"<Delivery of {self.shard!r} up to offset {self.next_offset - 1}>"

    @property
    def is_decoded(self) -> bool:
        """Whether `records` was decoded. If not, it has at least one record, and no gap."""
        return self._records is not None

    @property
    def records(self) -> list[StoredRecord | Gap]:
        """Records and gaps. In a group it may be empty: all records in the range had expired.

        Raises:
            BatchError: A batch is damaged.
        """
        if self._records is None:
            assert self._decode is not None
            self._records = self._decode()
            # The bytes are not needed any more.
            self._decode = None
        return self._records

    @property
    def last_lsn(self) -> int:
        """No record in it has a higher lsn; 0 if there is no record."""
        if self._last_lsn is None:
            lsns = (record.lsn for record in reversed(self.records) if isinstance(record, StoredRecord))
            self._last_lsn = next(lsns, 0)
        return self._last_lsn

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
