"""Reading for one inbox what lies between its position and the live tails, in steps, as fast as it is emptied."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from broker_adapter.adapter import Delivery, StorageAdapter
from broker_adapter.feed import Progress
from broker_adapter.mqtt.delivery.inbox import Inbox, State
from broker_adapter.mqtt.delivery.retrying import pause
from broker_adapter.mqtt.delivery.targets import covering
from broker_adapter.mqtt.message import message_of
from broker_adapter.topic_mapping import TopicMapping
from shards.errors import StorageError
from shards.record import Gap

_log = logging.getLogger(__name__)

_WINDOW_LSNS: Final = 16_384
"""The position moves on when so many lsns are through, whatever number of shards they lie in."""

_MAX_TARGETS: Final = 64
_CREDIT_BYTES: Final = 256 << 10
_PATIENCE_S: Final = 1.0
"""A consumer that takes nothing for so long gives its place to others."""

_MAX_READING: Final = 64


class CatchingUp:
    """Reads for inboxes, a bounded number of them at a time.

    Args:
        adapter: The store.
        mapping: Tells in which shards topics lie.
        keeps_offline: Whether a topic's messages are kept for sessions that are away.
    """

    def __init__(self, adapter: StorageAdapter, mapping: TopicMapping, keeps_offline: Callable[[str], bool]) -> None:
        self._adapter = adapter
        self._mapping = mapping
        self._keeps_offline = keeps_offline
        self._places = trio.CapacityLimiter(_MAX_READING)

    @property
    def reading_count(self) -> int:
        """Inboxes that are being read for."""
        return self._places.borrowed_tokens

    async def read_up_to(self, inbox: Inbox, goal_lsn: int) -> None:
        """Put in everything that matches from the inbox's position up to an lsn, unless it was put in before."""
        while inbox.position_lsn < goal_lsn and not inbox.is_in(State.CLOSED):
            after_lsn = inbox.position_lsn
            until_lsn = min(goal_lsn, after_lsn + _WINDOW_LSNS)
            targets = [target for one in inbox.filters for target in self._mapping.shards_for(one)]
            for target in covering(targets, _MAX_TARGETS):
                await self._read(inbox, target, after_lsn, until_lsn)
                if inbox.is_in(State.CLOSED):
                    return
            inbox.advance(until_lsn)

    async def _read(self, inbox: Inbox, target: str, after_lsn: int, until_lsn: int) -> None:
        attempt = 0
        while not inbox.is_in(State.CLOSED):
            await inbox.wait_for_room()
            try:
                async with self._places:
                    if await self._read_once(inbox, target, after_lsn, until_lsn):
                        return
                attempt = 0
            except StorageError as error:
                _log.warning("catching up of client %r is interrupted: %s", inbox.client_id, error)
                await pause(attempt)
                attempt += 1

    async def _read_once(self, inbox: Inbox, target: str, after_lsn: int, until_lsn: int) -> bool:
        """Whether it came to the end; if not, the consumer was too slow to wait for it here."""
        feed_context = self._adapter.follow(target, after_lsn, until_lsn=until_lsn, credit_bytes=_CREDIT_BYTES)
        async with feed_context as feed:
            async for item in feed:
                if not isinstance(item, Progress) and not await self._put_all(inbox, item):
                    return False
                if inbox.is_in(State.CLOSED):
                    return True
        return True

    async def _put_all(self, inbox: Inbox, delivery: Delivery) -> bool:
        shard = delivery.shard
        for record in delivery.records:
            if isinstance(record, Gap) or inbox.was_put(shard, record.offset):
                continue
            message = message_of(shard, record)
            arrival = inbox.arrival(message)
            if arrival is None or (record.lsn <= inbox.offline_until_lsn and not self._keeps_offline(message.topic)):
                continue
            if inbox.is_full:
                inbox.ready()
                with trio.move_on_after(_PATIENCE_S):
                    await inbox.wait_for_room()
                if not inbox.has_room:
                    return False
            if inbox.is_in(State.CLOSED):
                return True
            inbox.put(arrival)
            inbox.note_put(shard, record.offset + 1, record.lsn)
        inbox.ready()
        return True
