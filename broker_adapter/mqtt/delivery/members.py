"""Feeds that belong to one inbox alone: its share of a group, and a replay. Both wait for the inbox."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from broker_adapter.adapter import Delivery, StorageAdapter
from broker_adapter.mqtt.delivery.arrival import Arrival, arrival_of
from broker_adapter.mqtt.delivery.inbox import Inbox, State
from broker_adapter.mqtt.delivery.retrying import pause
from broker_adapter.mqtt.message import message_of
from broker_adapter.mqtt.origin import Origin
from broker_adapter.mqtt.subscription import SubscriptionOptions
from shards.errors import ShardNotFoundError, StorageError
from shards.position import Start
from shards.record import Gap
from shards.topic_filters import matches

_log = logging.getLogger(__name__)

_SHARE_CREDIT_BYTES: Final = 16 << 10
"""Little, so that a member does not hold what others could have."""

_REPLAY_CREDIT_BYTES: Final = 256 << 10


class _PrivateFeed:
    """What both have in common: arrivals for one filter, put in when the inbox has room."""

    def __init__(self, inbox: Inbox, topic_filter: str, options: SubscriptionOptions, origin: Origin) -> None:
        self._inbox = inbox
        self._topic_filter = topic_filter
        self._options = options
        self._origin = origin
        self._ended = trio.Event()

    def end(self) -> None:
        """Bring nothing any more."""
        self._ended.set()

    async def _until_ended(self, work: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:

            async def whole() -> None:
                await work()
                nursery.cancel_scope.cancel()

            nursery.start_soon(whole)
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    def _arrivals(self, delivery: Delivery) -> list[Arrival]:
        arrivals = []
        for record in delivery.records:
            if isinstance(record, Gap):
                continue
            message = message_of(delivery.shard, record)
            if matches(self._topic_filter, message.topic):
                arrival = arrival_of(message, self._inbox.client_id, (self._options,))
                if arrival is not None:
                    arrival.origin = self._origin
                    arrivals.append(arrival)
        return arrivals

    async def _put_all(self, arrivals: list[Arrival]) -> None:
        inbox = self._inbox
        for arrival in arrivals:
            if inbox.is_full:
                inbox.ready()
                await inbox.wait_for_room()
            if inbox.is_in(State.CLOSED):
                return
            inbox.put(arrival)
        inbox.ready()


class GroupMember(_PrivateFeed):
    """One session's share of a group."""

    def __init__(self, inbox: Inbox, topic_filter: str, options: SubscriptionOptions) -> None:
        super().__init__(inbox, topic_filter, options, Origin.GROUP)
        self._unacknowledged = 0
        self._room = trio.Event()
        self._joined = trio.Event()

    async def wait_joined(self) -> None:
        """Return when the store counts this member in."""
        await self._joined.wait()

    async def run(self, adapter: StorageAdapter, target: str, group: str, start: Start) -> None:
        """Receive shares until ended."""
        await self._until_ended(lambda: self._receive(adapter, target, group, start))

    async def _receive(self, adapter: StorageAdapter, target: str, group: str, start: Start) -> None:
        attempt = 0
        while True:
            try:
                async with (
                    adapter.subscribe(target, start, group=group, credit_bytes=_SHARE_CREDIT_BYTES) as subscription,
                    trio.open_nursery() as nursery,
                ):
                    self._joined.set()
                    async for delivery in subscription:
                        attempt = 0
                        await self._wait_for_room()
                        await self._share(delivery, nursery)
                    nursery.cancel_scope.cancel()
            except ShardNotFoundError:
                _log.debug("%r is not there yet; its group waits for it", target)
            except StorageError as error:
                _log.warning("the share of client %r in %r broke off: %s", self._inbox.client_id, group, error)
            else:
                return  # the adapter is being closed
            await pause(attempt)
            attempt += 1

    async def _wait_for_room(self) -> None:
        while self._unacknowledged >= self._inbox.group_count:
            self._room = trio.Event()
            await self._room.wait()

    async def _share(self, delivery: Delivery, nursery: trio.Nursery) -> None:
        arrivals = self._arrivals(delivery)
        if not arrivals:
            await delivery.acknowledge()
            return
        outstanding = len(arrivals)

        def acknowledged() -> None:
            nonlocal outstanding
            outstanding -= 1
            self._unacknowledged -= 1
            self._room.set()
            if not outstanding:
                nursery.start_soon(delivery.acknowledge)

        for arrival in arrivals:
            arrival.acknowledge = acknowledged
        self._unacknowledged += outstanding
        await self._put_all(arrivals)


class Replay(_PrivateFeed):
    """What is stored from a position on, and then what comes."""

    def __init__(self, inbox: Inbox, topic_filter: str, options: SubscriptionOptions) -> None:
        super().__init__(inbox, topic_filter, options, Origin.REPLAY)

    async def run(self, adapter: StorageAdapter, target: str, start: Start) -> None:
        """Replay until ended."""
        await self._until_ended(lambda: self._receive(adapter, target, start))

    async def _receive(self, adapter: StorageAdapter, target: str, start: Start) -> None:
        attempt = 0
        while True:
            try:
                async with adapter.subscribe(target, start, credit_bytes=_REPLAY_CREDIT_BYTES) as subscription:
                    async for delivery in subscription:
                        attempt = 0
                        await self._put_all(self._arrivals(delivery))
                        # Where it goes on if it breaks off.
                        start = self._behind(target, delivery, start)
            except ShardNotFoundError:
                _log.debug("%r is not there yet; its replay waits for it", target)
            except StorageError as error:
                _log.warning("a replay for client %r broke off: %s", self._inbox.client_id, error)
            else:
                return  # the adapter is being closed
            await pause(attempt)
            attempt += 1

    @staticmethod
    def _behind(target: str, delivery: Delivery, start: Start) -> Start:
        return Start.offset(delivery.next_offset) if delivery.shard == target else start
