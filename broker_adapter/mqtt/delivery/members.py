"""Memberships of groups: what one session gets as a member of a shared subscription.

The store decides which member gets a record, and gives the unacknowledged records of a member that leaves to others. A
member requests few records at a time, so that all members get some.
"""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Final

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.outgoing_message import Arrival
from broker_adapter.mqtt.delivery.private_feed import PrivateFeed
from broker_adapter.mqtt.delivery.record_group import Match, runs_of
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import Origin, SubscriptionOptions
from broker_adapter.subscription import Delivery
from broker_adapter.topic_mapping import TopicOf
from shards.position import Start
from shards.topics.topic_filters import matches

_CREDIT_BYTES: Final = 16 << 10
"""Credit of a member, kept small: other members cannot get what one member has buffered."""

_LEAVING_S: Final = 1.0


class GroupMember:
    """A session's membership of a group, over all targets of its filter.

    Args:
        inbox: Inbox of the session.
        topic_filter: Filter of the shared subscription.
        options: Options of the member.
        topic_of: Tells the topics of records.
        max_unacknowledged: Most arrivals that may be unacknowledged.

    Attributes:
        feeds: Its subscriptions, one for each target.
        has_ended: Whether it has left.
    """

    def __init__(
        self,
        inbox: Inbox,
        topic_filter: str,
        options: SubscriptionOptions,
        *,
        topic_of: TopicOf,
        max_unacknowledged: int,
    ) -> None:
        self.inbox = inbox
        self.topic_filter = topic_filter
        self.options = options
        self.topic_of = topic_of
        self.feeds: list[_Share] = []
        self.has_ended = False
        self._max_unacknowledged = max_unacknowledged
        self._unacknowledged = 0
        self._room: trio.Event | None = None

    def add(self, target: str, group: str, start: Start, after: Position) -> PrivateFeed:
        """Add a target; the caller runs the task of the returned feed."""
        share = _Share(self, target, tuple(one.target for one in self.feeds), group, start, after)
        self.feeds.append(share)
        return share

    def end(self) -> None:
        """Leave. Arrivals that wait in the inbox are removed: another member gets them."""
        self.has_ended = True
        for feed in self.feeds:
            feed.end()
        self.inbox.discard(self._is_of_this)

    def _is_of_this(self, arrival: Arrival) -> bool:
        acknowledge = arrival.acknowledge
        return isinstance(acknowledge, _Outstanding) and acknowledge.share.member is self

    async def wait_for_room(self) -> None:
        """Return when more arrivals may be unacknowledged."""
        while self._unacknowledged >= self._max_unacknowledged:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def put(self, count: int) -> None:
        """``count`` more arrivals are unacknowledged."""
        self._unacknowledged += count

    def acknowledged(self) -> None:
        """One more arrival is acknowledged."""
        self._unacknowledged -= 1
        if self._room is not None and self._unacknowledged < self._max_unacknowledged:
            self._room.set()
            self._room = None


class _Outstanding:
    """Number of unacknowledged arrivals of one delivery; a call acknowledges one."""

    __slots__ = ("count", "delivery", "share")

    def __init__(self, share: _Share, delivery: Delivery, count: int) -> None:
        self.share = share
        self.delivery = delivery
        self.count = count

    def __call__(self) -> None:
        self.count -= 1
        self.share.acknowledged(self)


class _Share(PrivateFeed):
    """The membership's subscription of one target."""

    what: ClassVar[str] = "the share"

    def __init__(
        self, member: GroupMember, target: str, earlier: tuple[str, ...], group: str, start: Start, after: Position
    ) -> None:
        super().__init__(member.inbox, target, after)
        self.member = member
        self.target = target
        self._earlier = earlier
        self._group = group
        self._start = start
        self._done: deque[Delivery] = deque()
        self._is_done = trio.Event()

    def acknowledged(self, outstanding: _Outstanding) -> None:
        """One arrival of a delivery is acknowledged."""
        self.member.acknowledged()
        if not outstanding.count and not self.has_ended:
            self._done.append(outstanding.delivery)
            self._is_done.set()

    async def _receive(self, adapter: StorageAdapter, task_status: trio.TaskStatus[None]) -> None:
        opened = adapter.subscribe(self.target, self._start, group=self._group, credit_bytes=_CREDIT_BYTES)
        async with opened as subscription, background_tasks() as tasks:
            # Acknowledgements of an earlier subscription are not valid in this one.
            self._done.clear()
            tasks.start_soon(self._keep_acknowledging)
            self._began(task_status)
            async for delivery in subscription:
                await self._take(delivery)
                await self.member.wait_for_room()

    async def _keep_acknowledging(self) -> None:
        try:
            while True:
                await self._acknowledge_done()
                self._is_done = trio.Event()
                await self._is_done.wait()
        finally:
            # A client may acknowledge and disconnect at once: no other member may get these messages.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _LEAVING_S):
                await self._acknowledge_done()

    async def _acknowledge_done(self) -> None:
        while self._done:
            await self._done.popleft().acknowledge()

    async def _take(self, delivery: Delivery) -> None:
        if any(matches(target, delivery.shard) for target in self._earlier):
            # Another target brings this shard. This one must not move the group's cursor, so it does not acknowledge.
            return
        arrivals = self._arrivals(delivery)
        if not arrivals:
            await delivery.acknowledge()
            return
        outstanding = _Outstanding(self, delivery, len(arrivals))
        for arrival in arrivals:
            arrival.acknowledge = outstanding
            arrival.store_group = self._group
        self.member.put(len(arrivals))
        await self._put(arrivals)

    def _arrivals(self, delivery: Delivery) -> list[Arrival]:
        match = Match(self._inbox, (self.member.options,))
        return [
            arrival
            for run in runs_of(
                delivery,
                topic_of=self.member.topic_of,
                on_gap=lambda _gap: None,
                origin=Origin.GROUP,
            )
            if matches(self.member.topic_filter, run.topic)
            for arrival in run.arrivals(match)[0]
        ]
