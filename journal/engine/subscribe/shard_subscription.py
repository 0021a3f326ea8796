"""A subscription to one shard, from an offset on.

On a follower it may begin after the end that the shard has there, where the client has been on another server. It
waits, and delivers nothing before its start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from journal.engine.read.read_failures import ReadRetries
from journal.engine.read.reader import Reader
from journal.engine.state.committed_lsns import CommittedLsns
from journal.engine.subscribe.subscription import Subscription
from journal.engine.subscribe.subscription_position import SubscriptionPosition, read_push
from shards.errors import StorageError
from shards.position import Start
from shards.segments.shard import Shard
from shards.subscriptions.events import Notice, Push


class ShardSubscription(Subscription):
    """See the module.

    Args:
        reader: Reads the pushed records.
        retries: Retries reads that failed because of a shortage.
        lsns: Tells whether this is a follower.
        shard: The shard.
        start: Where it begins; the lsn, if the offset is not known yet.
        offset: The same as an offset; None if the shard has no record yet with that lsn or a later one.
        on_ready: Called (on the event loop, must not block) when `take` may return something after it returned None.
        on_closed: Called when it has ended.
    """

    def __init__(
        self,
        reader: Reader,
        retries: ReadRetries,
        lsns: CommittedLsns,
        shard: Shard,
        start: Start,
        offset: int | None,
        on_ready: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        self._reader = reader
        self._retries = retries
        self._lsns = lsns
        self._start = start
        self._on_ready = on_ready
        self._on_closed = on_closed
        self._position: SubscriptionPosition | None = SubscriptionPosition(shard, 1, offset)
        self._notices: deque[Notice] = deque()
        if offset is not None:
            self._announce(shard, offset)
        self._has_unread = False
        self._is_listening = False
        self._look_again(self._position)

    def _announce(self, shard: Shard, offset: int) -> None:
        # As soon as it is known: a client that loses its connection before the first push resumes at this offset.
        self._notices.append(Notice("added", 1, shard.shard_id, shard.name, offset))

    def _listen(self) -> None:
        """Listen to the next publish, once: until its records are taken, no further notification is needed."""
        assert self._position is not None  # it has not ended
        self._is_listening = True
        self._position.shard.add_listener(self._published)

    def _stop_listening(self, shard: Shard) -> None:
        if self._is_listening:
            self._is_listening = False
            shard.remove_listener(self._published)

    def _published(self, shard: Shard) -> None:
        self._stop_listening(shard)
        self._has_unread = True
        self._on_ready()

    @property
    def has_more(self) -> bool:
        return bool(self._notices) or self._has_unread

    async def take(self, max_bytes: int) -> Push | Notice | None:
        position = self._position
        while not self._notices and position is not None and self._has_unread:
            self._has_unread = False
            try:
                if position.offset is not None and position.offset <= position.shard.published_offset:
                    push = await read_push(self._reader, position, None, max_bytes)
                else:
                    push = await self._read_ahead(position, max_bytes)
            except StorageError as error:
                if error.retriable:
                    self._retries.later(error, self._try_again)
                    return None
                self._stop()
                shard = position.shard
                event, lsn = ("removed", shard.deleted_lsn) if shard.deleted else ("error", 0)
                return Notice(event, 1, shard.shard_id, shard.name, position.offset or 0, lsn, error)
            except trio.Cancelled:
                # Nothing was read: without this the shard would be checked only after its next append.
                self._has_unread = True
                raise
            if self._position is not None:
                self._look_again(position)
            if push is not None:
                return push
        return self._notices.popleft() if self._notices else None

    async def _read_ahead(self, position: SubscriptionPosition, max_bytes: int) -> Push | None:
        """Like `read_push`, for a position after the end of the shard, or one that is not known yet."""
        shard = position.shard
        if position.offset is None:
            if shard.published_lsn < self._start.value and not shard.damage:
                return None
            position.offset = await self._reader.find_offset(shard, self._start)
            if self._position is not None:
                self._announce(shard, position.offset)
            return None
        if self._lsns.is_followed and not shard.damage:
            # The owner has it, or this server is about to get it.
            return None
        return await read_push(self._reader, position, None, max_bytes)

    def _try_again(self) -> None:
        if self._position is not None:
            self._has_unread = True
            self._on_ready()

    def _look_again(self, position: SubscriptionPosition) -> None:
        """After a read: note that there is more, or that the shard was stopped or deleted, or listen to the shard."""
        shard = position.shard
        if position.offset is None:
            has_more = shard.published_lsn >= self._start.value
        else:
            has_more = position.offset < shard.published_offset
        self._has_unread = has_more or bool(shard.damage)
        if not self._has_unread:
            self._listen()

    def _stop(self) -> None:
        position, self._position = self._position, None
        self._has_unread = False
        if position is not None:
            self._stop_listening(position.shard)

    def close(self) -> None:
        self._stop()
        self._notices.clear()
        self._on_closed()
