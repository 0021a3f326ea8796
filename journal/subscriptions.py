"""Subscriptions: who wants to be told of new records in a shard or under a topic filter, from which position.

A subscription is pulled: its owner (a connection, the embedded adapter) takes the next push when it has credit for it,
so a slow one holds nothing but its positions. Group subscriptions are in `journal.group_subscriptions`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import trio

from journal.control import Control
from journal.group_subscriptions import Member, SharedGroup
from journal.reader import Reader
from journal.shard_table import ShardTable
from journal.views import Views
from shards.batch import gap_batch
from shards.errors import InvalidRequestError, OffsetOutOfRangeError, StorageError
from shards.extents import Place
from shards.filter_index import FilterIndex
from shards.names import validate_name
from shards.position import Start
from shards.pushes import Notice, Push
from shards.shard import Shard
from shards.topic_filters import validate_filter

_ATTACHED_AT_ONCE = 500
_PROGRESS_INTERVAL_S = 1.0


class _Feed:
    """Where a subscription stands in one shard."""

    __slots__ = ("announced", "offset", "place", "queued", "reference", "shard")

    def __init__(self, shard: Shard, reference: int, offset: int) -> None:
        self.shard = shard
        self.reference = reference
        self.offset = offset
        self.place: Place | None = None
        self.queued = False
        self.announced = False


class Subscription:
    """A subscription of its own, to one shard or to all that match a filter, later ones included.

    Args:
        reader: Reads what is pushed.
        on_ready: Called (on the loop, must not block) when `take` may have something after it had nothing.
    """

    def __init__(
        self,
        reader: Reader,
        on_ready: Callable[[], None],
        forget: Callable[[Subscription], None],
        committed_lsn: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._committed_lsn = committed_lsn
        self._pushed = False
        self._next_progress = 0.0
        self._on_ready = on_ready
        self._forget = forget
        self._feeds: dict[int, _Feed] = {}
        self._ready: deque[_Feed] = deque()
        self._notices: deque[Notice | Push] = deque()
        self._references = 0
        self.topic_filter: str | None = None

    def attach(self, shard: Shard, offset: int) -> None:
        """Include a shard from this offset on."""
        if shard.shard_id in self._feeds:
            return
        self._references += 1
        feed = self._feeds[shard.shard_id] = _Feed(shard, self._references, offset)
        shard.add_listener(self._published)
        if self.topic_filter is None:
            # Told at once: a reader that loses its connection before the first push goes on at this offset.
            feed.announced = True
            self._notices.append(Notice("added", feed.reference, shard.shard_id, shard.name, offset))
            self._on_ready()
        if offset < shard.published_offset:
            self._queue(feed)

    def _published(self, shard: Shard) -> None:
        feed = self._feeds.get(shard.shard_id)
        if feed is not None:
            self._queue(feed)

    def _queue(self, feed: _Feed) -> None:
        if not feed.queued:
            feed.queued = True
            self._ready.append(feed)
            if len(self._ready) == 1:
                self._on_ready()

    @property
    def has_more(self) -> bool:
        """Whether `take` may give something."""
        return bool(self._ready or self._notices) or self._progress_is_due

    async def take(self, max_bytes: int) -> Push | Notice | None:
        """The next push of up to about ``max_bytes`` (at least one batch) or notice; None when there is none now.

        Shards take turns. A damaged or deleted shard ends with a notice and holds up no other.
        """
        while True:
            if self._notices:
                return self._notices.popleft()
            if not self._ready:
                return self._progress()
            feed = self._ready.popleft()
            feed.queued = False
            try:
                push = await self._read(feed, max_bytes)
            except StorageError as error:
                self._end(feed, "removed" if feed.shard.deleted else "error", error)
                continue
            except trio.Cancelled:
                # Nothing was taken: without this the shard would be looked at only after its next append.
                self._queue(feed)
                raise
            if push is None:
                continue
            if not feed.announced:
                feed.announced = True
                self._notices.append(push)
                return Notice("added", feed.reference, feed.shard.shard_id, feed.shard.name, push.first_offset)
            return push

    def _progress(self) -> Notice | None:
        """Tell, now and then, up to which lsn everything was given: a subscription by filter resumes from there."""
        if not self._progress_is_due:
            return None
        self._pushed = False
        self._next_progress = trio.current_time() + _PROGRESS_INTERVAL_S
        return Notice("progress", lsn=self._committed_lsn())

    @property
    def _progress_is_due(self) -> bool:
        return self._pushed and self.topic_filter is not None and trio.current_time() >= self._next_progress

    async def _read(self, feed: _Feed, max_bytes: int) -> Push | None:
        shard = feed.shard
        if feed.offset < shard.start_offset and not shard.damage:
            # Retention overtook this reader: it is told which records it will never see.
            gap = gap_batch(feed.offset, shard.start_offset, shard.published_lsn, 0)
            push = Push(feed.reference, feed.offset, shard.start_offset, [gap], len(gap))
            feed.offset = shard.start_offset
            feed.place = None
        else:
            try:
                extent = await self._reader.read(shard, feed.offset, max_bytes, feed.place)
            except OffsetOutOfRangeError:
                if feed.offset < shard.start_offset:
                    return await self._read(feed, max_bytes)
                raise
            if not extent.size_bytes:
                return None
            push = Push(feed.reference, feed.offset, extent.next_offset, extent.buffers, extent.size_bytes)
            feed.offset = extent.next_offset
            feed.place = extent.place
        self._pushed = True
        if feed.offset < shard.published_offset and not feed.queued:
            feed.queued = True
            self._ready.append(feed)
        return push

    def _end(self, feed: _Feed, event: str, error: StorageError | None) -> None:
        self._feeds.pop(feed.shard.shard_id, None)
        feed.shard.remove_listener(self._published)
        self._notices.append(
            Notice(event, feed.reference, feed.shard.shard_id, feed.shard.name, feed.offset, error=error)
        )

    def acknowledge(self, reference: int, first_offset: int, next_offset: int) -> None:
        """A subscription without a group needs no acknowledgements; they are ignored."""

    def credit_changed(self) -> None:
        """The owner can take more; it pulls by itself."""

    def close(self) -> None:
        """End it."""
        for feed in self._feeds.values():
            feed.shard.remove_listener(self._published)
        self._feeds.clear()
        self._ready.clear()
        self._forget(self)


AnySubscription: TypeAlias = Subscription | Member


class Subscriptions:
    """All subscriptions of an engine."""

    def __init__(
        self, table: ShardTable, views: Views, reader: Reader, control: Control, committed_lsn: Callable[[], int]
    ) -> None:
        self._committed_lsn = committed_lsn
        self._table = table
        self._reader = reader
        self._control = control
        self._filters: FilterIndex[Subscription | SharedGroup] = FilterIndex()
        self._groups: dict[tuple[str, str], SharedGroup] = {}
        self._beginning: dict[tuple[str, str], trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        self.count = 0
        views.on_created = self._shard_created
        views.on_deleted = _shard_deleted

    def start(self, nursery: trio.Nursery) -> None:
        """Run group subscriptions in this nursery from now on."""
        self._nursery = nursery

    def close(self) -> None:
        """End the groups; their positions up to the last committed cursor are safe."""
        self._groups.clear()

    def _shard_created(self, shard: Shard) -> None:
        for subscription in set(self._filters.match(shard.name)):
            subscription.attach(shard, 0)

    async def subscribe(
        self,
        *,
        shard: str | None,
        topic_filter: str | None,
        start: Start,
        group: str | None,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
    ) -> AnySubscription:
        """Begin a subscription to a shard, or to all shards that match a filter, now and later.

        In a group the start counts only where the group has no position yet.

        Raises:
            InvalidRequestError: Not just one of shard and filter, or an offset for a filter.
            ShardNotFoundError: There is no such shard.
            OffsetOutOfRangeError: The shard does not have the start offset.
        """
        if (shard is None) == (topic_filter is None):
            raise InvalidRequestError("a subscription names either a shard or a filter")
        if topic_filter is not None:
            validate_filter(topic_filter)
            if start.kind == "offset":
                raise InvalidRequestError(
                    "an offset is a place in one shard; start a filter by time, lsn, earliest or latest"
                )
        if group is not None:
            validate_name("group name", group)
            return await self._join(group, shard, topic_filter, start, on_ready, credit_bytes)
        subscription = Subscription(self._reader, on_ready, self._forget, self._committed_lsn)
        self.count += 1
        try:
            await self._attach_all(subscription, shard, topic_filter, start)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def _forget(self, subscription: Subscription) -> None:
        self.count -= 1
        if subscription.topic_filter is not None:
            self._filters.discard(subscription.topic_filter, subscription)

    async def _attach_all(
        self, subscription: Subscription | SharedGroup, shard: str | None, topic_filter: str | None, start: Start
    ) -> None:
        if shard is not None:
            found = self._table.by_name(shard)
            subscription.attach(found, await self._first_offset(subscription, found, start))
            return
        assert topic_filter is not None  # subscribe() checked that one of the two is given
        # From here on new shards are attached as they come; those that are there already follow.
        subscription.topic_filter = topic_filter
        self._filters.add(topic_filter, subscription)
        names = self._table.catalogue.matching(topic_filter)
        for number, name in enumerate(names):
            shard_id = self._table.catalogue.id_of(name)
            there = self._table.by_id(shard_id) if shard_id is not None else None
            if there is not None and not there.damage:
                subscription.attach(there, await self._first_offset(subscription, there, start))
            if number % _ATTACHED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    async def _first_offset(self, subscription: Subscription | SharedGroup, shard: Shard, start: Start) -> int:
        if isinstance(subscription, SharedGroup):
            cursor = self._control.get_cursor(shard.name, subscription.cursor_name)
            if cursor is not None:
                return cursor.offset
        return await self._reader.find_offset(shard, start)

    async def _join(
        self,
        name: str,
        shard: str | None,
        topic_filter: str | None,
        start: Start,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
    ) -> Member:
        if self._nursery is None:
            raise InvalidRequestError("group subscriptions need a running engine")
        key = (name, shard if shard is not None else f"filter {topic_filter}")
        while (beginning := self._beginning.get(key)) is not None:
            # Somebody is gathering the group's shards right now; it is there afterwards, or it was refused.
            await beginning.wait()
        group = self._groups.get(key)
        if group is not None:
            self.count += 1
            return group.join(on_ready, credit_bytes)
        group = self._groups[key] = SharedGroup(
            name, self._reader, self._control, on_left=self._member_left, on_empty=lambda: self._drop_group(key)
        )
        self.count += 1
        member = group.join(on_ready, credit_bytes)
        self._nursery.start_soon(group.run)
        done = self._beginning[key] = trio.Event()
        try:
            await self._attach_all(group, shard, topic_filter, start)
        except BaseException:
            member.close()
            raise
        finally:
            del self._beginning[key]
            done.set()
        return member

    def _member_left(self) -> None:
        self.count -= 1

    def _drop_group(self, key: tuple[str, str]) -> None:
        group = self._groups.pop(key, None)
        if group is not None and group.topic_filter is not None:
            self._filters.discard(group.topic_filter, group)


def _shard_deleted(shard: Shard) -> None:
    shard.notify()
