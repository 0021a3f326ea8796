"""Feeds inside one process: what `StorageAdapter.follow` gives over a key-value store.

Nothing is queued for a consumer: it reads the shards that moved when it asks for more. Which those are, in which order
and how far all that is, is told by `shards.subscriptions.fair_queue`, `shards.topics.publish_epochs` and
`shards.topics.filter_watch`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from broker_adapter.engines.committed_lsn import CommittedLsn
from broker_adapter.engines.shard_table import ShardTable
from broker_adapter.engines.stored_shard import StoredShard
from broker_adapter.feed import Feed, Progress, check_follow
from broker_adapter.subscription import Delivery
from shards.errors import BatchError, CorruptionError
from shards.format.record import Gap
from shards.subscriptions.fair_queue import FairQueue, Standing
from shards.subscriptions.watermark_policy import WatermarkPolicy
from shards.topics.filter_watch import FilterWatch
from shards.topics.publish_epochs import PublishEpochs
from shards.topics.topic_filters import pattern

_log = logging.getLogger(__name__)

_MATCHED_AT_ONCE = 1000
_READ_AT_ONCE = 100


class LocalFeeds:
    """All feeds of an engine, and what tells them of new records.

    Args:
        table: The shards of the store, which has just been opened.
        now_us: Tells the time, for expired records.

    Attributes:
        committed: Knows up to which lsn everything is visible.
    """

    def __init__(self, table: ShardTable, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._recent: PublishEpochs[StoredShard] = PublishEpochs(lambda: table.newest_lsn + 1)
        self._recent.load([shard for shard in table if shard.last_lsn], lambda shard: shard.last_lsn)
        self._live: FilterWatch[LocalFeed] = FilterWatch(self._recent)
        self._attached: dict[int, dict[LocalFeed, None]] = {}
        self._open: set[LocalFeed] = set()
        self._awaiting_lsn: set[LocalFeed] = set()
        self.committed = CommittedLsn(lambda: table.newest_lsn)
        table.on_lsn = self._lsn_given

    @asynccontextmanager
    async def follow(
        self, topic_filter: str, after_lsn: int | None, until_lsn: int | None, credit_bytes: int
    ) -> AsyncIterator[Feed]:
        """A feed for the length of the block; see `StorageAdapter.follow`."""
        check_follow(topic_filter, after_lsn, until_lsn)
        await trio.lowlevel.checkpoint()
        committed_lsn = self.committed.value()
        start_lsn = committed_lsn if after_lsn is None else after_lsn
        # A feed of what is committed already waits for no shard.
        is_live = until_lsn is None or until_lsn > committed_lsn
        feed = LocalFeed(self, self._now_us, start_lsn, until_lsn, credit_bytes, is_live=is_live)
        self._open.add(feed)
        if is_live:
            self._live.add(topic_filter, feed)
        try:
            await self._find(feed, topic_filter)
            yield feed
        finally:
            self._open.discard(feed)
            self._awaiting_lsn.discard(feed)
            if is_live:
                self._live.discard(topic_filter, feed)
            feed.end()

    async def _find(self, feed: LocalFeed, topic_filter: str) -> None:
        """Give a feed the shards that have something newer than its start now."""
        is_wanted = pattern(topic_filter).fullmatch
        found = self._recent.newer_than(feed.start_lsn)
        for start in range(0, len(found), _MATCHED_AT_ONCE):
            for shard in found[start : start + _MATCHED_AT_ONCE]:
                if shard.last_lsn > feed.start_lsn and is_wanted(shard.name) and not shard.deleted:
                    feed.attach(shard)
            await trio.lowlevel.checkpoint()

    # What the engine tells

    def advance(self, shard: StoredShard, visible_offset: int) -> None:
        """Let readers see a shard up to an offset, and tell the feeds."""
        if shard.era is not self._recent.newest and not shard.deleted:
            seen_in = self._recent.note(shard)
            for feed in self._live.waiting_for(shard.name, seen_in):
                feed.attach(shard)
        shard.visible_offset = max(shard.visible_offset, visible_offset)
        self.committed.settle()
        for feed in self._attached.get(shard.shard_id, ()):
            feed.advanced(shard)
        if self._awaiting_lsn:
            self._lsn_given()

    def deleted(self, shard: StoredShard) -> None:
        """A shard is gone: feeds go on without it."""
        self._recent.discard(shard)
        for feed in self._attached.pop(shard.shard_id, {}):
            feed.remove(shard)
        self.committed.settle()
        self._lsn_given()

    def close(self) -> None:
        """End all feeds."""
        for feed in list(self._open):
            feed.end()

    def _lsn_given(self) -> None:
        """The committed lsn may have moved, or will when this step is over."""
        if self._awaiting_lsn:
            waiting, self._awaiting_lsn = self._awaiting_lsn, set()
            for feed in waiting:
                feed.wake()

    # What feeds ask for

    def wake_at_next_lsn(self, feed: LocalFeed) -> None:
        """Wake this feed once the committed lsn may have moved."""
        self._awaiting_lsn.add(feed)

    def attached(self, feed: LocalFeed, shard: StoredShard) -> None:
        """Tell this feed when the shard publishes."""
        self._attached.setdefault(shard.shard_id, {})[feed] = None

    def detached(self, feed: LocalFeed, shard_id: int) -> None:
        """And no longer."""
        attached = self._attached.get(shard_id)
        if attached is not None:
            attached.pop(feed, None)
            if not attached:
                del self._attached[shard_id]


class _Place(Standing):
    """Where a feed stands in one shard."""

    __slots__ = ("shard",)

    def __init__(self, shard: StoredShard) -> None:
        super().__init__(shard.shard_id, None)
        self.shard = shard


class LocalFeed(Feed):
    """See `LocalFeeds.follow`."""

    def __init__(
        self,
        feeds: LocalFeeds,
        now_us: Callable[[], int],
        start_lsn: int,
        until_lsn: int | None,
        credit_bytes: int,
        *,
        is_live: bool,
    ) -> None:
        self.start_lsn = start_lsn
        self._feeds = feeds
        self._now_us = now_us
        self._until_lsn = until_lsn
        self._credit_bytes = credit_bytes
        self._is_live = is_live
        self._queue: FairQueue[_Place] = FairQueue(
            start_lsn, until_lsn, feeds.committed.value, lambda place: place.shard.visible_offset
        )
        self._pace = WatermarkPolicy(start_lsn)
        self._wake = trio.Event()
        self._ended = False

    # What its owner calls

    def attach(self, shard: StoredShard) -> None:
        """Include a shard, which has or is about to have something to read."""
        if shard.shard_id not in self._queue:
            self._queue.attach(_Place(shard))
            if self._is_live:
                self._feeds.attached(self, shard)
            self.wake()

    def advanced(self, shard: StoredShard) -> None:
        """There is more to read in a shard."""
        place = self._queue.get(shard.shard_id)
        if place is not None:
            self._queue.queue(place)
            self.wake()

    def remove(self, shard: StoredShard) -> None:
        """A shard is gone."""
        place = self._queue.get(shard.shard_id)
        if place is not None:
            self._queue.remove(place)
            self.wake()

    def wake(self) -> None:
        """Look again."""
        self._wake.set()

    def end(self) -> None:
        """Have the iteration end."""
        self._ended = True
        for place in self._queue.standings():
            self._feeds.detached(self, place.shard_id)
        self._queue.clear()
        self.wake()

    # What the consumer calls

    async def __anext__(self) -> Delivery | Progress:
        await trio.lowlevel.checkpoint()
        while not self._ended:
            item = self._next_due() or self._next_delivery() or self._last_progress() or self._next_due()
            if item is not None:
                return item
            if self._queue.is_idle:
                await self._wait()
            else:
                # There is more to look at: what was read had expired, or there was nothing of this feed's.
                await trio.lowlevel.checkpoint()
        raise StopAsyncIteration

    def _next_delivery(self) -> Delivery | None:
        for _ in range(_READ_AT_ONCE):
            place = self._queue.next()
            if place is None:
                break
            try:
                delivery = self._read(place)
            except (CorruptionError, BatchError):
                _log.exception("a feed goes on without shard %r", place.shard.name)
                self._drop(place)
                continue
            if delivery is not None:
                self._pace.gave()
                return delivery
        return None

    def _next_due(self) -> Progress | None:
        now = trio.current_time()
        if now < self._pace.due_at(idle=self._queue.is_idle):
            return None
        lsn = self._queue.reached_lsn()
        if lsn <= self._pace.told_lsn or lsn == self._until_lsn:
            # Nothing new, or the feed is over in a moment and tells it then.
            return None
        return Progress(self._pace.tell(lsn, now))

    def _last_progress(self) -> Progress | None:
        if self._until_lsn is None or not self._queue.is_over:
            return None
        self._ended = True
        return Progress(max(self._until_lsn, self.start_lsn))

    async def _wait(self) -> None:
        self._wake = trio.Event()
        due_at = math.inf
        if self._feeds.committed.value() > self._pace.told_lsn:
            due_at = self._pace.due_at(idle=True)
        if due_at == math.inf or self._until_lsn is not None:
            self._feeds.wake_at_next_lsn(self)
        with trio.move_on_at(due_at):
            await self._wake.wait()

    def _read(self, place: _Place) -> Delivery | None:
        """Up to ``credit_bytes`` of a shard, None if there is nothing of this feed's now."""
        shard = place.shard
        if shard.deleted:
            self._drop(place)
            return None
        if place.offset is None:
            if shard.last_lsn <= self.start_lsn:
                self._queue.done(place, more=False)
                return None
            place.offset = shard.offset_above(self.start_lsn)
        if place.end is None and self._until_lsn is not None and shard.last_lsn > self._until_lsn:
            place.end = shard.offset_above(self._until_lsn)
        limit = shard.visible_offset if place.end is None else min(place.end, shard.visible_offset)
        delivery = self._deliver(place, place.offset, limit)
        if place.end is not None and place.offset >= place.end:
            # It stays known, so that it is not taken in once more.
            self._feeds.detached(self, place.shard_id)
        self._queue.done(place, more=place.offset < limit)
        return delivery

    def _deliver(self, place: _Place, offset: int, limit: int) -> Delivery | None:
        shard = place.shard
        if offset < min(shard.start_offset, limit):
            place.offset = min(shard.start_offset, limit)
            return Delivery(shard.name, [Gap(offset, place.offset)], place.offset)
        if offset >= limit:
            return None
        found = shard.read(offset, max_bytes=self._credit_bytes, now_us=self._now_us(), end=limit)
        place.offset = found.next_offset
        return Delivery(shard.name, found.records, found.next_offset) if found.records else None

    def _drop(self, place: _Place) -> None:
        self._queue.remove(place)
        self._feeds.detached(self, place.shard_id)
