"""A subscription for its reader: deliveries in order, over any number of connections."""

from __future__ import annotations

from typing import Self

from journal.client.receiver import Delivery, Receiver
from journal.protocol import frames
from shards.position import Start


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
            StorageError: The subscription has ended, e.g. its shard was deleted, or its position was trimmed.
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
