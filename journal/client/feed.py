"""A feed for its reader: deliveries of all shards that match a filter, and its progress."""

from __future__ import annotations

from typing import Self

from journal.client.receiver import Delivery, Receiver
from journal.protocol.messages import SubscribeReply
from shards.position import Start
from shards.subscriptions.events import Progress


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
