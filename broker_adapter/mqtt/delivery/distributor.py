"""Brings what is published to the sessions of this broker.

Each live tail is read once for all of them; whoever cannot keep up, or has been away, reads the store until it has
caught up, and joins the tails again. So an inbox is bounded, and nothing that is stored is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from broker_adapter.adapter import Delivery, StorageAdapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.filter_overlap import covers, overlap
from broker_adapter.mqtt.delivery.catching_up import CatchingUp
from broker_adapter.mqtt.delivery.inbox import Inbox, InboxLimits, State, ready_all
from broker_adapter.mqtt.delivery.members import GroupMember, Replay
from broker_adapter.mqtt.delivery.tail import Tail
from broker_adapter.mqtt.delivery.targets import EVERYTHING, widened
from broker_adapter.mqtt.message import Message, message_of
from broker_adapter.mqtt.subscription import SubscriptionOptions
from broker_adapter.topic_mapping import TopicMapping
from shards.filter_index import FilterIndex
from shards.position import Start
from shards.record import Gap

LIVE_TARGET: Final = "$mqtt/live/+"
"""Shards of messages that are not stored: only live tails read them."""

_MAX_TAILS: Final = 200


@attrs.frozen(slots=True)
class DeliveryStatistics:
    """The delivery side at one moment.

    Attributes:
        inboxes: Sessions that are connected here.
        behind: Those that are being filled from the store.
        queued: Arrivals that wait in all of them.
        dropped: Messages not given to inboxes that were full, since the start.
        tails: Live feeds.
        reading: Inboxes that the store is read for at this moment.
        groups: Members of shared subscriptions here.
        replays: Replays under way.
    """

    inboxes: int
    behind: int
    queued: int
    dropped: int
    tails: int
    reading: int
    groups: int
    replays: int


class Distributor:
    """See the module.

    Args:
        adapter: The store.
        mapping: Tells in which shards topics lie.
        keeps_offline: Whether a topic's messages are kept for sessions that are away.
        limits: Bounds of each inbox.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        mapping: TopicMapping,
        *,
        keeps_offline: Callable[[str], bool] = lambda _topic: True,
        limits: InboxLimits | None = None,
    ) -> None:
        self._adapter = adapter
        self._mapping = mapping
        self._limits = limits or InboxLimits()
        self._catching_up = CatchingUp(adapter, mapping, keeps_offline)
        self._filters: FilterIndex[Inbox] = FilterIndex()
        self._inboxes: set[Inbox] = set()
        self._tails: dict[str, Tail] = {}
        self._members: dict[tuple[Inbox, str, str], GroupMember] = {}
        self._replays: dict[tuple[Inbox, str], Replay] = {}
        self._dropped_count = 0
        self._live = Tail(LIVE_TARGET, self._hand_out_live, lambda _tail: None)
        self._tasks: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled."""
        async with background_tasks() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._live.run, self._adapter)
            task_status.started()
            await trio.sleep_forever()

    def _start_soon(self, work: Callable[..., object], *arguments: object) -> None:
        assert self._tasks is not None, "the distributor runs"
        self._tasks.start_soon(work, *arguments)  # type: ignore[arg-type]

    @property
    def newest_lsn(self) -> int:
        """The newest lsn that any tail knows of; there may be newer ones."""
        return max(tail.handed_lsn for tail in (self._live, *self._tails.values()))

    async def current_lsn(self) -> int:
        """The newest lsn of the store: everything published from now on has a higher one.

        Raises:
            StorageError: The store does not answer.
        """
        async with self._adapter.follow(LIVE_TARGET) as feed:
            return feed.start_lsn

    def statistics(self) -> DeliveryStatistics:
        """How it stands."""
        return DeliveryStatistics(
            inboxes=len(self._inboxes),
            behind=sum(inbox.is_behind for inbox in self._inboxes),
            queued=sum(inbox.queued_count for inbox in self._inboxes),
            dropped=self._dropped_count,
            tails=len(self._tails) + 1,
            reading=self._catching_up.reading_count,
            groups=len(self._members),
            replays=len(self._replays),
        )

    # Inboxes

    def open_inbox(self, client_id: str, *, position_lsn: int | None, on_ready: Callable[[], None]) -> Inbox:
        """An inbox for a session that has connected here.

        Args:
            client_id: Whose.
            position_lsn: Everything that matches up to here was taken earlier; None for a new session.
            on_ready: Called when there is something to take; must not block.
        """
        inbox = Inbox(client_id, position_lsn or 0, on_ready=on_ready, limits=self._limits)
        self._inboxes.add(inbox)
        return inbox

    def close_inbox(self, inbox: Inbox) -> None:
        """The session is not connected here any more."""
        if inbox not in self._inboxes:
            return
        # Where it has got to is told from its tails, so it is noted before they go.
        inbox.advance(inbox.position_lsn)
        inbox.close()
        self._inboxes.discard(inbox)
        for topic_filter in inbox.filters:
            self._filters.discard(topic_filter, inbox)
        for tail in list(inbox.floors):
            self._detach(inbox, tail)
        for key in [key for key in self._members if key[0] is inbox]:
            self._members.pop(key).end()
        for replay_key in [key for key in self._replays if key[0] is inbox]:
            self._replays.pop(replay_key).end()

    # Subscriptions

    async def subscribe(self, inbox: Inbox, topic_filter: str, options: SubscriptionOptions) -> int:
        """Add a subscription, or replace the options of one; everything that is published after this returned comes.

        Returns:
            The lsn since which it counts.
        """
        if (old := inbox.filters.get(topic_filter)) is not None:
            inbox.set_filter(topic_filter, attrs.evolve(options, since_lsn=old.since_lsn))
            return old.since_lsn
        tails = await self._established(inbox, topic_filter)
        if inbox.is_in(State.CLOSED):
            return 0
        # Never below the position: that would count as delivered what this subscription brings late.
        since_lsn = max(self._live.handed_lsn, inbox.position_lsn, *(tail.handed_lsn for tail in tails))
        self._attach(inbox, topic_filter, tails, since_lsn)
        inbox.set_filter(topic_filter, attrs.evolve(options, since_lsn=since_lsn))
        self._filters.add(topic_filter, inbox)
        return since_lsn

    async def restore(self, inbox: Inbox, subscriptions: Mapping[str, SubscriptionOptions]) -> None:
        """Bring back the subscriptions of a session: it catches up from its position, and goes on live."""
        if not subscriptions:
            return
        needed = {one: await self._established(inbox, one) for one in subscriptions}
        inbox.offline_until_lsn = await self.current_lsn()
        if inbox.is_in(State.CLOSED):
            return
        # First, so that its position is not taken from tails that it has not joined.
        inbox.become(State.BEHIND)
        for topic_filter, options in subscriptions.items():
            self._attach(inbox, topic_filter, needed[topic_filter], 0)
            inbox.set_filter(topic_filter, options)
            self._filters.add(topic_filter, inbox)
        self._start_soon(self._catch_up, inbox)

    async def unsubscribe(self, inbox: Inbox, topic_filter: str) -> None:
        """End a subscription; what waits in the inbox stays."""
        await trio.lowlevel.checkpoint()
        if topic_filter not in inbox.filters:
            return
        inbox.remove_filter(topic_filter)
        self._filters.discard(topic_filter, inbox)
        for tail in inbox.tails_of.pop(topic_filter, ()):
            needed = any(tail in others for others in inbox.tails_of.values())
            # A tail may bring shards that another filter asks for: while it may, it stays.
            if not needed and not any(overlap(tail.target, one) for one in self._targets(inbox)):
                self._detach(inbox, tail)

    def _targets(self, inbox: Inbox) -> list[str]:
        return [target for one in inbox.filters for target in self._mapping.shards_for(one)]

    # Tails

    async def _established(self, inbox: Inbox, topic_filter: str) -> tuple[Tail, ...]:
        """The tails that bring what a filter matches, all of them established at this moment."""
        tails = tuple(dict.fromkeys(self._tail_for(inbox, one) for one in self._mapping.shards_for(topic_filter)))
        for tail in tails:
            # From now on it does not end for want of somebody who needs it.
            tail.inboxes.add(inbox)
        while not all(tail.is_established for tail in (self._live, *tails)):
            for tail in (self._live, *tails):
                await tail.wait_established()
        return tails

    def _tail_for(self, inbox: Inbox, target: str) -> Tail:
        for tail in (*inbox.floors, *self._tails.values()):
            if tail.target == target or covers(tail.target, target):
                return tail
        if len(self._tails) >= _MAX_TAILS:
            target = widened(target)
            if target not in self._tails and len(self._tails) >= 2 * _MAX_TAILS and not target.startswith("$"):
                target = EVERYTHING
        if target not in self._tails:
            tail = self._tails[target] = Tail(target, self._hand_out, self._tail_broke)
            self._start_soon(tail.run, self._adapter)
        return self._tails[target]

    def _attach(self, inbox: Inbox, topic_filter: str, tails: tuple[Tail, ...], floor_lsn: int) -> None:
        inbox.tails_of[topic_filter] = tails
        for tail in tails:
            tail.inboxes.add(inbox)
            # At the end: shards that another tail brings go on coming from there.
            inbox.floors.setdefault(tail, floor_lsn)

    def _detach(self, inbox: Inbox, tail: Tail) -> None:
        inbox.advance(inbox.position_lsn)
        inbox.floors.pop(tail, None)
        tail.inboxes.discard(inbox)
        if not tail.inboxes:
            tail.end()
            if self._tails.get(tail.target) is tail:
                del self._tails[tail.target]

    def _tail_broke(self, tail: Tail) -> None:
        for inbox in list(tail.inboxes):
            if tail in inbox.floors:
                self._fall_behind(inbox)

    def _hand_out(self, tail: Tail, delivery: Delivery) -> None:
        shard = delivery.shard
        touched: dict[Inbox, None] = {}
        topic: str | None = None
        matched: list[Inbox] = []
        for record in delivery.records:
            if isinstance(record, Gap):
                continue
            lsn = record.lsn
            tail.handed_lsn = max(tail.handed_lsn, lsn)
            message = message_of(shard, record)
            if message.topic != topic:
                topic = message.topic
                matched = self._matching(topic)
            for inbox in matched:
                floor_lsn = inbox.floors.get(tail)
                if floor_lsn is None or lsn <= floor_lsn or not inbox.brings(tail, shard):
                    continue
                if self._put(inbox, message):
                    touched[inbox] = None
        ready_all(touched)

    def _matching(self, topic: str) -> list[Inbox]:
        found = self._filters.match(topic)
        return list(dict.fromkeys(found)) if len(found) > 1 else found

    def _put(self, inbox: Inbox, message: Message) -> bool:
        """Give a stored message from a tail to an inbox; whether it may be taken now."""
        if inbox.is_in(State.BEHIND):
            return False
        arrival = inbox.arrival(message)
        if arrival is None:
            return False
        if inbox.is_full:
            if arrival.qos:
                self._fall_behind(inbox)
            else:
                self._drop(inbox)
                inbox.note_put(message.shard, message.offset + 1, message.lsn)
            return False
        if inbox.is_in(State.CATCHING_UP):
            inbox.hold(arrival)
            return False
        inbox.put(arrival)
        inbox.note_put(message.shard, message.offset + 1, message.lsn)
        return True

    def _drop(self, inbox: Inbox) -> None:
        inbox.dropped_count += 1
        self._dropped_count += 1

    # What is not stored

    def _hand_out_live(self, tail: Tail, delivery: Delivery) -> None:
        for record in delivery.records:
            if not isinstance(record, Gap):
                tail.handed_lsn = max(tail.handed_lsn, record.lsn)
                self._deliver(message_of(delivery.shard, record))

    def deliver_local(self, message: Message) -> None:
        """Give a message that lies in no shard to the sessions of this broker."""
        self._deliver(message)

    def _deliver(self, message: Message) -> None:
        for inbox in self._matching(message.topic):
            arrival = inbox.arrival(message)
            if arrival is None:
                continue
            if inbox.is_full:
                self._drop(inbox)
                continue
            # It has no place in the session's position: it is here now or never.
            message_here = attrs.evolve(message, lsn=0)
            arrival.message = message_here
            inbox.put(arrival)
            inbox.ready()

    # Catching up

    def _fall_behind(self, inbox: Inbox) -> None:
        """Have an inbox filled from the store, from its position on, until it has caught up."""
        state = inbox.state
        if state is State.CLOSED:
            return
        inbox.advance(inbox.position_lsn)
        inbox.drop_held()
        inbox.become(State.BEHIND)
        if state is State.LIVE:
            self._start_soon(self._catch_up, inbox)

    async def _catch_up(self, inbox: Inbox) -> None:
        while inbox.is_in(State.BEHIND):
            # The long way without the tails, and then, with what they bring meanwhile held back, the short rest.
            await self._catching_up.read_up_to(inbox, await self._joinable_lsn(inbox))
            floor_lsn = await self._joinable_lsn(inbox)
            if not inbox.is_in(State.BEHIND):
                continue
            for tail in inbox.floors:
                inbox.floors[tail] = floor_lsn
            inbox.become(State.CATCHING_UP)
            await self._catching_up.read_up_to(inbox, floor_lsn)
            if inbox.is_in(State.CATCHING_UP):
                inbox.release_held()
                inbox.become(State.LIVE)
                inbox.ready()

    async def _joinable_lsn(self, inbox: Inbox) -> int:
        """An lsn above which all tails of an inbox bring everything, from this moment on."""
        while not all(tail.is_established for tail in inbox.floors):
            for tail in list(inbox.floors):
                await tail.wait_established()
        return max((tail.handed_lsn for tail in inbox.floors), default=inbox.position_lsn)

    # Shared subscriptions and replay

    async def join_group(
        self,
        inbox: Inbox,
        group: str,
        topic_filter: str,
        options: SubscriptionOptions,
        *,
        start_lsn: int,
    ) -> None:
        """Take a share of what a group gets: each message goes to one of its members, at any broker.

        Args:
            inbox: The member's.
            group: Name of the store's group.
            topic_filter: What it gets.
            options: The member's.
            start_lsn: The group gets what lies above, if it has no position yet.
        """
        await self.leave_group(inbox, group, topic_filter)
        if inbox.is_in(State.CLOSED):
            return
        member = GroupMember(inbox, topic_filter, options)
        self._members[inbox, group, topic_filter] = member
        for target in self._mapping.shards_for(topic_filter):
            self._start_soon(member.run, self._adapter, target, group, Start.lsn(start_lsn + 1))
        self._start_soon(member.run, self._adapter, LIVE_TARGET, group, Start.latest())
        await member.wait_joined()

    async def leave_group(self, inbox: Inbox, group: str, topic_filter: str) -> None:
        """Leave; what was not acknowledged goes to the other members."""
        await trio.lowlevel.checkpoint()
        member = self._members.pop((inbox, group, topic_filter), None)
        if member is not None:
            member.end()

    async def replay(self, inbox: Inbox, topic_filter: str, start: Start, options: SubscriptionOptions) -> None:
        """Bring what is stored from a position on, in order, and then what comes, until it is stopped.

        Raises:
            StorageError: It cannot begin there.
        """
        await self.stop_replay(inbox, topic_filter)
        if inbox.is_in(State.CLOSED):
            return
        replay = self._replays[inbox, topic_filter] = Replay(inbox, topic_filter, options)
        for target in self._mapping.shards_for(topic_filter):
            self._start_soon(replay.run, self._adapter, target, start)
        self._start_soon(replay.run, self._adapter, LIVE_TARGET, Start.latest())

    async def stop_replay(self, inbox: Inbox, topic_filter: str) -> None:
        """Bring no more of it."""
        await trio.lowlevel.checkpoint()
        replay = self._replays.pop((inbox, topic_filter), None)
        if replay is not None:
            replay.end()
