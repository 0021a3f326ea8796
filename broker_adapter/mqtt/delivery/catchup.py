"""Catch-up: reads from the store what sessions missed that were away or are too slow, until they reach the tails.

An inbox that is behind is filled in windows of lsns, so that its position moves on however many shards it reads from,
and only as fast as it is emptied. During the last window, messages that tails bring beyond it are held back; they
follow after it. An inbox that is not emptied has no task and no feed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Final

import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.errors import StorageError
from broker_adapter.mqtt.delivery.inbox import Inbox, State
from broker_adapter.mqtt.delivery.limits import DeliveryLimits
from broker_adapter.mqtt.delivery.outgoing_message import total_bytes
from broker_adapter.mqtt.delivery.record_group import Arrivals, Run, runs_of
from broker_adapter.mqtt.delivery.shared_tails import SharedTails
from broker_adapter.mqtt.delivery.subscribers import Subscribed, Subscriber, Subscribers
from broker_adapter.mqtt.delivery.tail_targets import covering
from broker_adapter.mqtt.model.limits import STORE_BACK_OFF
from broker_adapter.mqtt.model.position import Position, ReachedLsn
from broker_adapter.subscription import Delivery, Progress
from broker_adapter.topic_mapping import TopicOf
from shards.format.record import Gap

_log = logging.getLogger(__name__)

_MAX_TARGETS: Final = 64
_CREDIT_BYTES: Final = 256 << 10

_FIRST_WINDOW: Final = 4
"""First estimate of lsns for each record of a window."""
_WIDEST_WINDOW_LSNS: Final = 1 << 60
"""More than there are lsns: a restore leaves a gap of more than 2**40 in them, which takes few windows to pass."""


class _SlowClientError(Exception):
    """The inbox was not emptied for too long."""


class Catchup:
    """The inboxes that are behind; a bounded number of them is read for at a time.

    Args:
        adapter: The store.
        tails: The live feeds that inboxes join in the end.
        subscribed: Returns an inbox's subscriptions.
        tasks: Nursery of the reading tasks.
        keeps_offline: Whether a topic's messages are kept for sessions that are away.
        topic_of: Tells the topics of records.
        limits: Limits of delivery.
        on_gap: Called for records that are gone.
        ask_position: Asks the store for its position.
        on_progress: Called when an inbox has advanced.
    """

    def __init__(
        self,
        adapter: StorageAdapter,
        tails: SharedTails,
        subscribed: Callable[[Inbox], Subscribed],
        tasks: trio.Nursery,
        *,
        keeps_offline: Callable[[str], bool],
        topic_of: TopicOf,
        limits: DeliveryLimits,
        on_gap: Callable[[Gap], None],
        ask_position: Callable[[], Awaitable[Position]],
        on_progress: Callable[[], None],
    ) -> None:
        self._adapter = adapter
        self._tails = tails
        self._subscribed = subscribed
        self._tasks = tasks
        self._keeps_offline = keeps_offline
        self._topic_of = topic_of
        self._limits = limits
        self._on_gap = on_gap
        self._ask_position = ask_position
        self._on_progress = on_progress
        self._waiting: deque[Inbox] = deque()
        self.reading_count = 0

    def add(self, inbox: Inbox) -> None:
        """An inbox has fallen behind: queue it, to be read for when it has room."""
        inbox.when_room(self._enqueue)

    def _enqueue(self, inbox: Inbox) -> None:
        self._waiting.append(inbox)
        if self.reading_count < self._limits.max_catching_up:
            self.reading_count += 1
            self._tasks.start_soon(self._work)

    async def _work(self) -> None:
        try:
            while self._waiting:
                inbox = self._waiting.popleft()
                if inbox.is_behind:
                    await self._catch_up(inbox)
        except trio.ClosedResourceError:
            _log.debug("catch-up ends because the store is being closed")
        finally:
            self.reading_count -= 1

    async def _catch_up(self, inbox: Inbox) -> None:
        """Read for one inbox until it is live, closed or full for too long."""
        reading = _Reading(
            inbox, self._subscribed(inbox), self._keeps_offline, self._topic_of, self._limits, self._on_gap
        )
        width = _FIRST_WINDOW * self._limits.window_records
        attempt = 0
        while inbox.is_behind:
            subscribers = set(reading.subscribed.by_filter.values())
            # Everything up to the end of a window is read from the store, so it may be the lsn of a record.
            goal_lsn = ReachedLsn(max(self._tails.position.lsn, self._tails.handed_out_lsn, inbox.watermark.lsn))
            until_lsn = min(goal_lsn, ReachedLsn(inbox.watermark.lsn + width))
            if until_lsn == goal_lsn:
                inbox.begin_joining(goal_lsn)
            try:
                found = await self._read_window(reading, until_lsn)
                if self._tails.position.lsn < until_lsn:
                    # A watermark is never beyond a position that the store returned.
                    await self._ask_position()
            except _SlowClientError:
                inbox.give_up_joining()
                self.add(inbox)
                return
            except StorageError as error:
                log = _log.debug if attempt else _log.warning
                log("catch-up of client %r was interrupted and is tried again: %s", inbox.client_id, error)
                inbox.give_up_joining()
                await trio.sleep(STORE_BACK_OFF.delay_s(attempt))
                attempt += 1
                continue
            attempt = 0
            if inbox.state is State.CLOSED:
                return
            if any(not one.options.since.covers_record(until_lsn) for one in reading.added_since(subscribers)):
                # A subscription was added that applies to records of this window; they were not read for it.
                inbox.give_up_joining()
                continue
            inbox.watermark.raise_to(until_lsn)
            is_live = inbox.join()
            self._on_progress()
            if is_live:
                inbox.ready()
            elif found > self._limits.window_records:
                width = max(1, width // 2)
            elif 4 * found < self._limits.window_records:
                width = min(_WIDEST_WINDOW_LSNS, width * 4)

    async def _read_window(self, reading: _Reading, until_lsn: ReachedLsn) -> int:
        """Read everything from an inbox's position up to an lsn into it; return the number of records read."""
        after_lsn = reading.inbox.watermark.lsn
        before = reading.records_count
        await trio.lowlevel.checkpoint()
        if after_lsn < until_lsn:
            for target in covering(reading.targets(), _MAX_TARGETS):
                opened = self._adapter.follow(target, after_lsn, until_lsn=until_lsn, credit_bytes=_CREDIT_BYTES)
                reached_lsn = after_lsn
                async with opened as feed:
                    async for item in feed:
                        if not reading.inbox.is_behind:
                            return 0
                        if isinstance(item, Progress):
                            reached_lsn = Position(item.lsn).lsn
                        else:
                            await reading.put(item)
                if reached_lsn < until_lsn:
                    raise trio.ClosedResourceError("the feed ended before the end of the window")
        return reading.records_count - before


class _Reading:
    """Reading one window for one inbox.

    Attributes:
        records_count: Number of records read.
    """

    def __init__(
        self,
        inbox: Inbox,
        subscribed: Subscribed,
        keeps_offline: Callable[[str], bool],
        topic_of: TopicOf,
        limits: DeliveryLimits,
        on_gap: Callable[[Gap], None],
    ) -> None:
        self.inbox = inbox
        self.records_count = 0
        self.subscribed = subscribed
        self._keeps_offline = keeps_offline
        self._topic_of = topic_of
        self._patience_s = limits.patience_s
        self._on_gap = on_gap
        self._subscribers = Subscribers()
        self._known_version = -1

    def targets(self) -> list[str]:
        """Shards and filters to read."""
        return self.subscribed.targets()

    def added_since(self, subscribers: AbstractSet[Subscriber]) -> list[Subscriber]:
        """The subscriptions of the inbox that are not among ``subscribers``."""
        return [one for one in self.subscribed.by_filter.values() if one not in subscribers]

    def _look_up_subscribers(self) -> Subscribers:
        if self._known_version != self.subscribed.version:
            self._known_version = self.subscribed.version
            self._subscribers = Subscribers(self.subscribed.by_filter.values())
        return self._subscribers

    async def put(self, delivery: Delivery) -> None:
        """Put the records of a delivery that match into the inbox, waiting for room.

        Raises:
            _SlowClientError: There was no room for too long.
        """
        self.records_count += len(delivery.records)
        for run in runs_of(delivery, topic_of=self._topic_of, on_gap=self._on_gap):
            if not self.inbox.is_behind:
                return
            for match in self._look_up_subscribers().match(run.topic):
                start = self._first_wanted(run)
                if start < len(run.records):
                    await self._put_all(run.shard, run.arrivals(match, start))
        self.inbox.ready()

    def _first_wanted(self, run: Run) -> int:
        records = run.records
        start = self.inbox.watermark.first_new(run.shard, records)
        until_lsn = self.inbox.offline_until_lsn
        if start < len(records) and records[start].lsn <= until_lsn and not self._keeps_offline(run.topic):
            start = next((at for at in range(start, len(records)) if records[at].lsn > until_lsn), len(records))
        return start

    async def _put_all(self, shard: str, found: Arrivals) -> None:
        arrivals, arrivals_bytes = found
        if not arrivals:
            return
        inbox = self.inbox
        if inbox.takes(len(arrivals), arrivals_bytes):
            inbox.put_stored(shard, arrivals, arrivals_bytes)
            return
        while arrivals:
            count = inbox.room_for(arrivals)
            if not count:
                inbox.ready()
                with trio.move_on_after(self._patience_s):
                    await inbox.wait_for_room()
                if not inbox.is_behind:
                    return
                if not inbox.has_room:
                    raise _SlowClientError
                count = inbox.room_for(arrivals) or 1
            some, arrivals = arrivals[:count], arrivals[count:]
            inbox.put_stored(shard, some, total_bytes(some))
