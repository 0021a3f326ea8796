"""A subscription to all shards that match a filter, including later ones, and its progress.

It reads the shards that have something for it: at the beginning those that a search finds, later those that publish. So
its cost depends on the number of records, not on the number of matching shards. `shards.subscriptions.fair_queue`
decides which shard is next, and computes the lsn up to which everything was delivered.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

import trio

from journal.engine.read.read_failures import ReadRetries
from journal.engine.read.reader import Reader
from journal.engine.state.shard_discovery import Search, ShardDiscovery
from journal.engine.subscribe.subscription import Subscription
from journal.engine.subscribe.subscription_position import SubscriptionPosition, read_push
from journal.engine.subscribe.watermark_timer import WatermarkPolicy, WatermarkTimer
from journal.engine.time_slice import TimeSlice
from shards.errors import StorageError
from shards.position import Start
from shards.segments.shard import Shard
from shards.subscriptions.events import Notice, Push
from shards.subscriptions.fair_queue import FairQueue

_FOUND_AHEAD = 500
_DROPPED_AT_ONCE = 1000


class FilterSubscription(Subscription):
    """See the module.

    Args:
        topic_filter: A valid filter.
        start: Where it begins in each shard; not an offset.
        until_lsn: It delivers nothing above this lsn and ends after it.
        reader: Reads the pushed records.
        retries: Retries reads that failed because of a shortage.
        discovery: Finds shards.
        clock: Wakes it when it has progress to report.
        committed_lsn: Returns the lsn up to which everything is published.
        on_ready: Called (on the event loop, must not block) when `take` may return something after it returned None.
        on_closed: Called when it has ended.
        on_left: Called with it if, after its end, `drop_some` must be called until it has released all its shards.
        may_deliver: See `Subscription.restrict`.
    """

    def __init__(
        self,
        topic_filter: str,
        start: Start,
        until_lsn: int | None,
        *,
        reader: Reader,
        retries: ReadRetries,
        discovery: ShardDiscovery,
        clock: WatermarkTimer,
        committed_lsn: Callable[[], int],
        on_ready: Callable[[], None],
        on_closed: Callable[[], None],
        on_left: Callable[[FilterSubscription], None],
        may_deliver: Callable[[str], bool] | None = None,
    ) -> None:
        self.until_lsn = until_lsn
        self._filter = topic_filter
        self._start = start
        self._reader = reader
        self._retries = retries
        self._discovery = discovery
        self._clock = clock
        self._committed_lsn = committed_lsn
        self._on_ready = on_ready
        self._on_closed = on_closed
        self._on_left = on_left
        self._left: dict[int, SubscriptionPosition] = {}
        # Shards that could not be read. If they were added again, records could be skipped.
        self._failed: set[int] = set()
        self._notices: deque[Notice] = deque()
        # What was read together with the notice that announces its shard.
        self._announced: tuple[SubscriptionPosition, Push] | None = None
        self._may_deliver = may_deliver
        self._step = TimeSlice()
        self._references = 0
        self._is_told = False
        committed = committed_lsn()
        start_lsn = {"latest": committed, "lsn": max(0, start.value - 1)}.get(start.kind, 0)
        # Everything published so far is below the start, or its shard is found by the search.
        self._begins_now = start_lsn <= committed
        self._is_live = until_lsn is None or until_lsn > committed
        self._queue: FairQueue[SubscriptionPosition] = FairQueue(
            start_lsn, until_lsn, committed_lsn, lambda position: position.shard.published_offset
        )
        self._pace = WatermarkPolicy(start_lsn)
        self._search: Search | None = None
        if start.kind != "latest":
            self._search = discovery.search(topic_filter, start_lsn if start.kind == "lsn" else None)
            self._queue.finding = True
        if self._is_live:
            discovery.wait(topic_filter, self)
        clock.add(self)

    def arrives(self, shard: Shard) -> None:
        """Called before a matching shard publishes."""
        if self._wants(shard) and self._attach(shard, self._offset_at_arrival(shard)):
            self.wake()

    def _wants(self, shard: Shard) -> bool:
        return shard.shard_id not in self._queue and shard.shard_id not in self._failed

    def _offset_at_arrival(self, shard: Shard) -> int | None:
        """The first offset to read in a shard, if it is known without a search."""
        if self._start.kind == "lsn":
            has_news = not self._begins_now or shard.published_lsn >= self._start.value
        else:
            has_news = self._start.kind != "latest" and shard.published_offset > 0
        return None if has_news else shard.published_offset

    def _attach(self, shard: Shard, offset: int | None) -> bool:
        self._references += 1
        return self._queue.attach(SubscriptionPosition(shard, self._references, offset))

    def _published(self, shard: Shard) -> None:
        position = self._queue.get(shard.shard_id)
        if position is not None:
            self._stop_listening(position)
            if self._queue.queue(position):
                self.wake()

    def wake(self) -> None:
        """Notify the owner that `take` may return something."""
        self._on_ready()

    @property
    def has_more(self) -> bool:
        if self._notices or self._announced is not None or not self._queue.is_idle:
            return True
        due_at = self.progress_due_at()
        return due_at is not None and due_at <= trio.current_time()

    async def take(self, max_bytes: int) -> Push | Notice | None:
        # Shards are read in turn: one that is damaged, or that has very many records, does not delay others.
        self._clock.taken(self)
        while True:
            if self._notices:
                return self._notices.popleft()
            if (push := self._take_announced()) is not None:
                return push
            if (progress := self._progress()) is not None:
                return progress
            if self._search is not None and self._queue.waiting_count < _FOUND_AHEAD:
                await self._find()
                continue
            position = self._queue.next()
            if position is None:
                if self._queue.is_over:
                    return self._end_of_all()
                if (progress := self._progress()) is not None:
                    return progress
                return None
            push = await self._turn(position, max_bytes)
            if push is None:
                continue
            self._pace.gave()
            if not position.announced:
                position.announced = True
                self._announced = position, push
                return Notice("added", position.reference, position.shard_id, position.shard.name, push.first_offset)
            return push

    def _take_announced(self) -> Push | None:
        if self._announced is None:
            return None
        (position, push), self._announced = self._announced, None
        return push if self._is_delivered(position) else None

    def restrict(self, may_deliver: Callable[[str], bool] | None) -> None:
        self._may_deliver = may_deliver

    def _is_delivered(self, position: SubscriptionPosition) -> bool:
        return self._may_deliver is None or self._may_deliver(position.shard.name)

    async def _find(self) -> None:
        assert self._search is not None  # the caller has checked
        found = await self._search.more()
        if found is None:
            self._search = None
            self._queue.finding = False
            return
        for shard in found:
            if self._wants(shard):
                self._attach(shard, None)

    async def _turn(self, position: SubscriptionPosition, max_bytes: int) -> Push | None:
        """Read the next push of a shard."""
        shard = position.shard
        if not self._is_delivered(position):
            self._leave_out(position)
            # There may be a million of them, one after the other.
            if self._step.is_over:
                await self._step.rest()
            return None
        try:
            if position.offset is None:
                if self._start.kind == "lsn" and shard.published_lsn < self._start.value and not shard.damage:
                    self._done(position, more=False)
                    return None
                position.offset = await self._reader.find_offset(shard, self._start)
            limit = await self._limit(position)
            push = await read_push(self._reader, position, limit, max_bytes)
        except StorageError as error:
            if error.retriable:
                # The shard stays, and no progress is reported for its unread records.
                self._queue.postpone(position)
                self._retries.later(error, partial(self._try_again, position))
            else:
                self._lose(position, error)
            return None
        except trio.Cancelled:
            # Nothing was read: without this the shard would be checked only after its next append.
            self._queue.queue(position)
            raise
        end = shard.published_offset if position.end is None else min(position.end, shard.published_offset)
        self._done(position, more=position.offset < end)
        # The rights may have changed while the read waited.
        return push if self._is_delivered(position) else None

    def _leave_out(self, position: SubscriptionPosition) -> None:
        """Skip what a shard has now: it is not delivered, also if later records are."""
        shard = position.shard
        if shard.damage:
            # Without a notice, which would tell that the shard exists.
            self._remove(position)
            return
        position.offset, position.place = shard.published_offset, None
        self._done(position, more=False)

    def _done(self, position: SubscriptionPosition, *, more: bool) -> None:
        """Finish the read of a shard. Listen to the shard's publishes only if nothing more can be read now.

        While the shard is queued it needs no notification, so publishing costs nothing for subscriptions that
        already have unread records.
        """
        listens = self._is_live and position.end is None and position.shard_id in self._queue
        if listens and position.shard.damage:
            # It was stopped or deleted during the read: the next one reports that.
            more = True
        self._queue.done(position, more=more)
        if listens and not more:
            position.is_listening = True
            position.shard.add_listener(self._published)

    def _try_again(self, position: SubscriptionPosition) -> None:
        if self._queue.resume(position):
            self._clock.look_again()
            self.wake()

    async def _limit(self, position: SubscriptionPosition) -> int | None:
        """The offset up to which a shard's records belong to this subscription; None without a last lsn."""
        shard = position.shard
        if self.until_lsn is None:
            return None
        if position.end is not None:
            return position.end
        if shard.published_lsn <= self.until_lsn:
            return shard.published_offset
        position.end = await self._reader.find_offset(shard, Start.lsn(self.until_lsn + 1))
        return position.end

    def _lose(self, position: SubscriptionPosition, error: StorageError) -> None:
        """End the delivery of a shard that cannot be read."""
        shard = position.shard
        self._remove(position)
        if not self._is_delivered(position):
            return
        event, lsn = ("removed", shard.deleted_lsn) if shard.deleted else ("error", 0)
        offset = -1 if position.offset is None else position.offset
        self._notices.append(Notice(event, position.reference, shard.shard_id, shard.name, offset, lsn, error))

    def _remove(self, position: SubscriptionPosition) -> None:
        self._queue.remove(position)
        self._stop_listening(position)
        if not position.shard.deleted:
            self._failed.add(position.shard_id)

    def _stop_listening(self, position: SubscriptionPosition) -> None:
        if position.is_listening:
            position.is_listening = False
            position.shard.remove_listener(self._published)

    # Progress

    def progress_due_at(self) -> float | None:
        """When progress is to be reported if nothing else is delivered; None if it was reported already."""
        if self._is_told or self._queue.has_postponed:
            return None
        committed_lsn = self._committed_lsn()
        if self.until_lsn is not None and committed_lsn >= self.until_lsn:
            return -math.inf
        return self._pace.due_at(idle=True) if committed_lsn > self._pace.told_lsn else None

    def _progress(self) -> Notice | None:
        now = trio.current_time()
        if now < self._pace.due_at(idle=self._queue.is_idle):
            return None
        lsn = self._queue.reached_lsn()
        if lsn <= self._pace.told_lsn or lsn == self.until_lsn:
            # Nothing new, or the subscription ends soon and reports it then.
            return None
        return Notice("progress", lsn=self._pace.tell(lsn, now))

    def _end_of_all(self) -> Notice | None:
        if self._is_told or self.until_lsn is None:
            return None
        self._release()
        return Notice("end", lsn=self.until_lsn)

    def close(self) -> None:
        self._notices.clear()
        self._announced = None
        self._release()
        self._on_closed()

    def drop_some(self) -> bool:
        """Release some of the shards that it had when it ended; True when none is left."""
        for _ in range(min(_DROPPED_AT_ONCE, len(self._left))):
            self._stop_listening(self._left.popitem()[1])
        return not self._left

    def _release(self) -> None:
        """Drop all references: nothing more is delivered."""
        if self._is_told:
            return
        self._is_told = True
        self._left = self._queue.clear()
        if not self.drop_some():
            self._on_left(self)
        self._queue.finding = False
        self._search = None
        self._clock.discard(self)
        if self._is_live:
            self._discovery.forget(self._filter, self)
