"""Subscriptions and feeds of a client, and which shards the server has stopped delivering to them."""

from __future__ import annotations

import logging
from typing import Self

from journal.client.receiver import Delivery, Receiver
from journal.protocol import frames
from journal.protocol.messages import SubscribeReply
from shards.errors import StorageError
from shards.position import Start
from shards.subscriptions.events import Progress
from shards.subscriptions.unreadable_ranges import UnreadableRanges

_log = logging.getLogger(__name__)


class Subscription(Receiver):
    """Async iterator of deliveries. Created by `Client.subscribe`."""

    def __init__(
        self,
        number: int,
        start: Start,
        *,
        shard: str | None,
        topic_filter: str | None,
        group: str | None,
        credit_bytes: int,
    ) -> None:
        super().__init__(
            number,
            start,
            shard=shard,
            topic_filter=topic_filter,
            group=group,
            until_lsn=None,
            credit_bytes=credit_bytes,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery; calling it also releases the credit of the one before.

        Raises:
            StorageError: The subscription has ended, e.g. its shard was deleted.
        """
        item = await self._next()
        assert isinstance(item, Delivery)  # a subscription has no end and reports no progress
        return item

    def acknowledge(self, delivery: Delivery) -> bool:
        """Acknowledge to the group that a delivery was processed.

        Returns:
            False if the connection on which it was received is lost: it will be delivered again.
        """
        if self._send is None or delivery.epoch != self._epoch or self._group is None:
            return self._group is None
        self._send(
            frames.build_acknowledge(self.number, delivery.reference, delivery.first_offset, delivery.next_offset)
        )
        return True


class Feed(Receiver):
    """Async iterator of deliveries and progress. Created by `Client.follow`.

    Attributes:
        start_lsn: All matching records with a higher lsn are delivered.
    """

    def __init__(
        self, number: int, topic_filter: str, after_lsn: int | None, until_lsn: int | None, credit_bytes: int
    ) -> None:
        super().__init__(
            number,
            None if after_lsn is None else Start.lsn(after_lsn + 1),
            shard=None,
            topic_filter=topic_filter,
            group=None,
            until_lsn=until_lsn,
            credit_bytes=credit_bytes,
        )
        self.start_lsn = -1 if after_lsn is None else after_lsn
        self._told_lsn: int | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery | Progress:
        """Wait for the next item; calling it also releases the credit of the delivery before.

        Raises:
            StorageError: The feed has ended before its last lsn, e.g. because the client was closed.
        """
        item = await self._next()
        if item is None:
            raise StopAsyncIteration
        return item

    def established(self, reply: SubscribeReply) -> None:
        """Note that the server has accepted."""
        if self.start_lsn < 0:
            self.start_lsn = reply.lsn
        super().established(reply)

    def restart(self) -> None:
        """Begin again at lsn 1: another server answers, with another history."""
        super().restart()
        self.start_lsn = 0
        self._told_lsn = None

    def _reached(self, lsn: int) -> None:
        lsn = max(lsn, self.start_lsn)
        told_lsn = self.start_lsn if self._told_lsn is None else self._told_lsn
        # The end is reported even without new records. Reports may be repeated over a new connection.
        if lsn > told_lsn or (self.is_over and self._told_lsn is None):
            self._told_lsn = lsn
            if self._queue and isinstance(self._queue[-1], Progress):
                self._queue.pop()
            self._queue.append(Progress(lsn))
            self._event.set()


class FailedShards:
    """Records which shards the server has stopped delivering, across connections.

    Attributes:
        count: Number of shards that are not delivered to at least one subscription now.
        ranges: The ranges of records that were not delivered.
    """

    def __init__(self) -> None:
        self._lacking: dict[str, set[int]] = {}
        self._told: set[str] = set()
        self.ranges = UnreadableRanges()

    @property
    def count(self) -> int:
        return len(self._lacking)

    def failed(self, name: str, error: StorageError, subscription: int) -> None:
        """Note that a subscription gets nothing more of a shard; logged once for a connection, and for each range."""
        self._lacking.setdefault(name, set()).add(subscription)
        if self.ranges.note(name, error) or name not in self._told:
            self._told.add(name)
            _log.error("shard %r is not delivered any more, other shards are: %s", name, error)

    def delivered(self, name: str, subscription: int) -> None:
        """Note that a subscription gets the shard again, or that the shard was deleted."""
        lacking = self._lacking.get(name)
        if lacking is not None:
            lacking.discard(subscription)
            if not lacking:
                del self._lacking[name]

    def ended(self, subscription: int) -> None:
        """Note that a subscription has ended."""
        for name in list(self._lacking):
            self.delivered(name, subscription)

    def connected(self) -> None:
        """Note a new connection: every shard is subscribed again, and logged again if it still fails."""
        self._told.clear()
