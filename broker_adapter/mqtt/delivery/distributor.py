"""Delivers published messages to the sessions that are connected to this broker.

Live feeds (`tail`) are read once for all sessions. For a session that was away or is too slow the store is read
separately (`catchup`) until it reaches the tails again; memberships of groups and replays have feeds of their own. So
every inbox is bounded, a slow session delays no other, and stored messages are delivered without gaps or duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain, islice
from typing import Final

import attrs
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.mqtt.delivery.catchup import Catchup
from broker_adapter.mqtt.delivery.current_position import CurrentPosition
from broker_adapter.mqtt.delivery.inbox import Inbox, State
from broker_adapter.mqtt.delivery.limits import DeliveryLimits, DeliveryStatistics
from broker_adapter.mqtt.delivery.live_delivery import LiveDelivery, UnstoredAudience, notify_sessions, put_now
from broker_adapter.mqtt.delivery.members import GroupMember
from broker_adapter.mqtt.delivery.opening import EarlyRuns
from broker_adapter.mqtt.delivery.private_feed import PrivateFeed
from broker_adapter.mqtt.delivery.replays import Replay
from broker_adapter.mqtt.delivery.shared_tails import SharedTails
from broker_adapter.mqtt.delivery.subscribers import Subscribed, Subscriber
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position, ReachedLsn
from broker_adapter.mqtt.model.storage_rules import LIVE_PREFIX, LIVE_TARGET, live_topic_of
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from broker_adapter.mqtt.model.topics import is_system
from broker_adapter.topic_mapping import TopicMapping
from shards.position import Start
from shards.seams.clock import Clock, SystemClock

_LIVE_SHARDS: Final = f"{LIVE_PREFIX}/"


class Distributor:
    """Delivers messages to inboxes; see the module.

    Args:
        adapter: The store.
        mapping: The shards of topics.
        keeps_offline: Whether a topic's messages are kept for sessions that are away.
        limits: Limits of delivery.
        clock: Tells what has expired.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        mapping: TopicMapping,
        *,
        keeps_offline: Callable[[str], bool] = lambda _topic: True,
        limits: DeliveryLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._adapter = adapter
        self._mapping = mapping
        self._keeps_offline = keeps_offline
        self._limits = limits or DeliveryLimits()
        self._clock = clock or SystemClock()
        self._delivery = LiveDelivery(self._limits.max_queued_count, self._clock, self._wake_waiting, self.topic_of)
        self._subscribers, self._replaying = self._delivery.subscribers, self._delivery.replaying
        self._subscribed: dict[Inbox, Subscribed] = {}
        self._members: dict[tuple[Inbox, str, str], GroupMember] = {}
        self._replays: dict[tuple[Inbox, str], tuple[Subscriber, list[PrivateFeed]]] = {}
        self._dropped_before = 0
        self._progress = trio.lowlevel.ParkingLot()
        self.delays = self._delivery.delays
        self._parts: _Parts | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; `task_status` is notified when subscriptions may be made."""
        async with background_tasks() as tasks:
            limits = self._limits
            tails = SharedTails(
                self._adapter, self._delivery, tasks, max_count=limits.max_tails, linger_s=limits.linger_s
            )
            catching_up = Catchup(
                self._adapter,
                tails,
                self._subscribed.__getitem__,
                tasks,
                keeps_offline=self._keeps_offline,
                topic_of=self.topic_of,
                limits=limits,
                on_gap=self._delivery.note_gap,
                ask_position=self.current_position,
                on_progress=self._wake_waiting,
            )
            live = SharedTails(
                self._adapter,
                UnstoredAudience(self._delivery),
                tasks,
                max_count=1,
                linger_s=limits.linger_s,
                resumes=False,
            )
            self._parts = _Parts(tasks, tails, live, CurrentPosition(self._adapter, LIVE_TARGET, tasks), catching_up)
            tasks.start_soon(tails.run)
            tasks.start_soon(live.run)
            task_status.started()
            await trio.sleep_forever()

    @property
    def _running(self) -> _Parts:
        assert self._parts is not None, "the distributor must run first"
        return self._parts

    def topic_of(self, shard: str, named: str) -> str:
        """The topic of a record; see `TopicMapping.topic_of`."""
        if shard.startswith(_LIVE_SHARDS):
            return live_topic_of(shard, named)
        return self._mapping.topic_of(shard, named)

    @property
    def position(self) -> Position:
        """The newest position that the store has returned; the store may be further."""
        parts = self._running
        return max(parts.tails.position, parts.live.position)

    async def current_position(self) -> Position:
        """The position of the store: everything committed after this call is behind it.

        Raises:
            StorageError: The store does not answer.
        """
        position = await self._running.current_position.ask()
        self._running.tails.note(position)
        return position

    def statistics(self) -> DeliveryStatistics:
        """Counters and gauges of delivery now."""
        parts = self._running
        return DeliveryStatistics(
            inboxes=len(self._subscribed),
            behind=sum(inbox.is_behind for inbox in self._subscribed),
            queued=sum(inbox.queued_count for inbox in self._subscribed),
            dropped=self._dropped_before + sum(inbox.dropped_count for inbox in self._subscribed),
            tails=len(parts.tails) + len(parts.live),
            catching_up=parts.catching_up.reading_count,
            members=len(self._members),
            replays=len(self._replays),
            gaps=self._delivery.gap_count + self._adapter.unreadable_range_count,
        )

    # Inboxes

    def open_inbox(self, client_id: str, *, position_lsn: ReachedLsn | None, on_ready: Callable[[], None]) -> Inbox:
        """Open an inbox for a session that is connected here. It has no task, and needs little memory while empty.

        Args:
            client_id: Client of the session.
            position_lsn: All matching messages up to this lsn were taken earlier; None for a new session.
            on_ready: Called when there is something to take, once for many messages; must not block.
        """
        parts = self._running
        subscribed = Subscribed(parts.tails)
        inbox = Inbox(
            client_id,
            self.position.lsn if position_lsn is None else position_lsn,
            on_ready=on_ready,
            on_behind=parts.catching_up.add,
            reach=subscribed,
            limits=self._limits,
            clock=self._clock,
        )
        self._subscribed[inbox] = subscribed
        return inbox

    def close_inbox(self, inbox: Inbox) -> None:
        """The session is disconnected: close its inbox. The position that the inbox reports stays valid."""
        subscribed = self._subscribed.get(inbox)
        if subscribed is None:
            return
        for key in [key for key in self._members if key[0] is inbox]:
            self._members.pop(key).end()
        for topic_filter in [topic_filter for one, topic_filter in self._replays if one is inbox]:
            self._end_replay(inbox, topic_filter)
        inbox.close()
        self._dropped_before += inbox.dropped_count
        for subscriber in subscribed.by_filter.values():
            self._forget(subscriber)
        del self._subscribed[inbox]
        self._wake_waiting()

    async def wait_reached(self, inbox: Inbox, position: Position) -> None:
        """Return when everything up to a position of the store was put into an inbox, or it is closed."""
        await trio.lowlevel.checkpoint()
        while inbox.position_lsn < position.lsn and inbox.state is not State.CLOSED:
            await self._progress.park()

    def _wake_waiting(self) -> None:
        """Wake waiting calls of `wait_reached`: an inbox may have advanced, or is closed."""
        self._progress.unpark_all()

    # Subscriptions

    async def subscribe(self, inbox: Inbox, topic_filter: str, options: SubscriptionOptions) -> Position:
        """Add a subscription, or replace the options of one.

        Everything behind the returned position is delivered, and nothing before it. Records that the store commits
        after this call has returned are behind it.

        Returns:
            The position from which the subscription applies.

        Raises:
            StorageError: It is refused, or the store does not answer; the subscription is not made then.
        """
        if (since := self._replace_options(inbox, topic_filter, options)) is not None:
            return since
        subscriber = Subscriber(inbox, topic_filter, options)
        await self._need_targets(subscriber)
        try:
            with self._delivery.opening.keep(topic_filter) as early:
                await self.current_position()
                while early.has_overflowed:
                    early.restart()
                    await self.current_position()
        except BaseException:
            self._release(subscriber)
            raise
        since = self._replace_options(inbox, topic_filter, options)
        if since is not None or inbox.state is State.CLOSED:
            self._release(subscriber)
            return since or self.position
        # All that is handed out from now on, and all of `early` behind this position, is for the subscription. The
        # watermark of the inbox is no higher: it is only raised to positions that the store returned.
        since = self.position
        subscriber.options = attrs.evolve(options, since=since)
        self._add(subscriber)
        self._deliver_early(subscriber, early)
        self._skip_uncounted(inbox)
        return since

    def _deliver_early(self, subscriber: Subscriber, early: EarlyRuns) -> None:
        """Deliver the records that came while a subscription was opened, unless another one of the session did."""
        inbox = subscriber.inbox
        touched: dict[Inbox, None] = {}
        for run, (arrivals, arrivals_bytes) in early.arrivals_for(
            subscriber, self._subscribed[inbox].by_filter.values()
        ):
            if not run.is_kept:
                put_now(inbox, arrivals, touched)
            elif inbox.wants_live(run.records[0].lsn) and inbox.put_live(run.shard, arrivals, arrivals_bytes):
                touched[inbox] = None
        notify_sessions(touched)

    async def restore(self, inbox: Inbox, subscriptions: Mapping[str, SubscriptionOptions]) -> None:
        """Restore the subscriptions of a session: it gets what it missed since its position, then new messages.

        Raises:
            StorageError: The store does not answer; nothing was restored then.
        """
        if not subscriptions:
            return
        restored: list[Subscriber] = []
        try:
            wanted = [Subscriber(inbox, topic_filter, options) for topic_filter, options in subscriptions.items()]
            await self._need_targets(*wanted)
            restored = wanted
            offline_until = await self.current_position()
        except BaseException:
            for subscriber in restored:
                self._release(subscriber)
            raise
        # First: the place of the tails says nothing about what this session got for these subscriptions.
        inbox.fall_behind(offline_until.lsn)
        for subscriber in restored:
            if inbox.state is State.CLOSED or subscriber.topic_filter in self._subscribed[inbox].by_filter:
                self._release(subscriber)
            else:
                self._add(subscriber)
        self._skip_uncounted(inbox)

    async def unsubscribe(self, inbox: Inbox, topic_filter: str) -> None:
        """End a subscription; messages that wait in the inbox stay there."""
        await trio.lowlevel.checkpoint()
        subscribed = self._subscribed.get(inbox)
        if subscribed is None:
            return
        subscriber = subscribed.by_filter.get(topic_filter)
        if subscriber is not None:
            inbox.note_reached()
            self._forget(subscriber)
            subscribed.remove(subscriber)

    def _replace_options(self, inbox: Inbox, topic_filter: str, options: SubscriptionOptions) -> Position | None:
        """Replace the options of a subscription; return the position from which it applies, None if there is none."""
        subscribed = self._subscribed.get(inbox)
        subscriber = subscribed.by_filter.get(topic_filter) if subscribed is not None else None
        if subscribed is None or subscriber is None:
            return None
        subscriber.options = attrs.evolve(options, since=subscriber.options.since)
        self._subscribers.changed()
        subscribed.changed()
        return subscriber.options.since

    async def _need_targets(self, *subscribers: Subscriber) -> None:
        """Have the tails read what new subscriptions need."""
        parts = self._running
        stored = [each for each in subscribers if not is_system(each.topic_filter)]
        targets = [list(self._mapping.shards_for(each.topic_filter)) for each in stored]
        try:
            for subscriber, live_need in zip(stored, await parts.live.need([LIVE_TARGET] * len(stored)), strict=True):
                subscriber.live_need = live_need
            needs = iter(await parts.tails.need(chain.from_iterable(targets)))
            for subscriber, own in zip(stored, targets, strict=True):
                subscriber.needs.extend(islice(needs, len(own)))
        except BaseException:
            for subscriber in stored:
                self._release(subscriber)
            raise

    def _add(self, subscriber: Subscriber) -> None:
        self._subscribed[subscriber.inbox].add(subscriber)
        self._subscribers.add(subscriber)

    def _skip_uncounted(self, inbox: Inbox) -> None:
        """No message from before all subscriptions is for this inbox: it need not be read."""
        subscribed = self._subscribed.get(inbox)
        if subscribed is not None and (since := subscribed.oldest_since) is not None:
            inbox.watermark.raise_to(since.lsn)

    def _forget(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)
        self._release(subscriber)

    def _release(self, subscriber: Subscriber) -> None:
        parts = self._running
        for need in subscriber.needs:
            parts.tails.release(need)
        subscriber.needs.clear()
        if subscriber.live_need is not None:
            parts.live.release(subscriber.live_need)
            subscriber.live_need = None

    def deliver_local(self, message: Message) -> None:
        """Deliver a message that is in no shard to the sessions of this broker that are subscribed to it."""
        self._delivery.deliver_local(message)

    # Shared subscriptions and replay

    async def join_group(
        self, inbox: Inbox, group: str, topic_filter: str, options: SubscriptionOptions, *, after: Position
    ) -> None:
        """Make a session a member of a group: each message goes to one of its members, at any broker.

        A message whose `Arrival.acknowledge` was not called goes to another member when this one leaves.

        Args:
            inbox: Inbox of the member.
            group: Name of the group in the store, another one for each filter.
            topic_filter: Filter of the shared subscription.
            options: Options of the member.
            after: Where the group has no cursor yet, it gets records after this position.

        Raises:
            StorageError: It is refused, or the store does not answer; the session is not a member then.
        """
        await self.leave_group(inbox, group, topic_filter)
        if inbox.state is State.CLOSED:
            return
        member = GroupMember(
            inbox,
            topic_filter,
            options,
            topic_of=self.topic_of,
            max_unacknowledged=self._limits.max_unacknowledged,
        )
        self._members[inbox, group, topic_filter] = member
        try:
            starts = [(target, Start.lsn(after.lsn + 1)) for target in self._mapping.shards_for(topic_filter)]
            for target, start in (*starts, (LIVE_TARGET, Start.latest())):
                if member.has_ended:
                    return
                await self._start(member.add(target, group, start, after))
        except BaseException:
            self._leave(inbox, group, topic_filter, member)
            raise

    async def leave_group(self, inbox: Inbox, group: str, topic_filter: str) -> None:
        """Leave a group; unacknowledged messages go to the other members."""
        await trio.lowlevel.checkpoint()
        member = self._members.get((inbox, group, topic_filter))
        if member is not None:
            self._leave(inbox, group, topic_filter, member)

    def _leave(self, inbox: Inbox, group: str, topic_filter: str, member: GroupMember) -> None:
        member.end()
        if self._members.get((inbox, group, topic_filter)) is member:
            del self._members[inbox, group, topic_filter]

    async def replay(self, inbox: Inbox, topic_filter: str, start: Start, options: SubscriptionOptions) -> None:
        """Deliver stored records from a position on, in order in each shard, and then new ones, until it is stopped.

        It is as fast as the inbox is emptied. Where records were dropped already it begins with the first that is left.

        Raises:
            StorageError: It cannot begin there, or the store does not answer; the replay is not started then.
        """
        await self.stop_replay(inbox, topic_filter)
        if inbox.state is State.CLOSED:
            return
        subscriber = Subscriber(inbox, topic_filter, options)
        feeds: list[PrivateFeed] = []
        key = inbox, topic_filter
        parts = self._replays[key] = subscriber, feeds
        try:
            [subscriber.live_need] = await self._running.live.need([LIVE_TARGET])
            targets = self._mapping.shards_for(topic_filter)
            for at, target in enumerate(targets):
                if self._replays.get(key) is not parts:
                    return
                feed = Replay(
                    inbox,
                    topic_filter,
                    options,
                    target,
                    topic_of=self.topic_of,
                    earlier=targets[:at],
                    start=start,
                )
                feeds.append(feed)
                await self._start(feed)
        except BaseException:
            self._end_replay(inbox, topic_filter)
            raise
        if self._replays.get(key) is parts:
            # Messages that are not kept are only delivered from now on.
            self._replaying.add(subscriber)
        else:
            self._release(subscriber)

    async def stop_replay(self, inbox: Inbox, topic_filter: str) -> None:
        """Stop a replay."""
        await trio.lowlevel.checkpoint()
        self._end_replay(inbox, topic_filter)

    def _end_replay(self, inbox: Inbox, topic_filter: str) -> None:
        subscriber, feeds = self._replays.pop((inbox, topic_filter), (None, []))
        for feed in feeds:
            feed.end()
        if subscriber is not None:
            self._replaying.discard(subscriber)
            self._release(subscriber)

    async def _start(self, feed: PrivateFeed) -> None:
        await self._running.tasks.start(feed.run, self._adapter)


@attrs.frozen(slots=True)
class _Parts:
    """The parts of a distributor that exist while it runs."""

    tasks: trio.Nursery
    tails: SharedTails
    live: SharedTails
    current_position: CurrentPosition
    catching_up: Catchup
