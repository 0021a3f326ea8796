"""All subscriptions of an engine: it begins them, and runs what they share.

A `Subscription` is pulled: its owner takes the next push when it has credit for it, so a slow subscription needs no
memory but its positions. Its kinds are `ShardSubscription`, `FilterSubscription`, and the `Member` of a `SharedGroup`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from journal.engine.read.read_failures import ReadRetries
from journal.engine.read.reader import Reader
from journal.engine.state.shard_discovery import NameScan, ShardDiscovery
from journal.engine.state.shard_table import ShardTable
from journal.engine.subscribe.filter_subscription import FilterSubscription
from journal.engine.subscribe.group_members import Member
from journal.engine.subscribe.group_subscriptions import SharedGroup
from journal.engine.subscribe.shard_subscription import ShardSubscription
from journal.engine.subscribe.subscription import Subscription, SubscriptionTarget
from journal.engine.subscribe.watermark_timer import WatermarkTimer
from journal.engine.time_slice import TimeSlice
from journal.engine.write.commands import Commands
from shards.errors import InvalidRequestError, ShardNotFoundError
from shards.position import Start
from shards.segments.shard import Shard
from shards.topics.filter_index import FilterIndex
from shards.topics.names import group_cursor, validate_name, validate_shard_name
from shards.topics.topic_filters import validate_filter


class Subscriptions:
    """All subscriptions of an engine."""

    def __init__(
        self,
        table: ShardTable,
        reader: Reader,
        commands: Commands,
        discovery: ShardDiscovery,
        committed_lsn: Callable[[], int],
    ) -> None:
        self._committed_lsn = committed_lsn
        self._table = table
        self._reader = reader
        self._commands = commands
        self._discovery = discovery
        self._clock = WatermarkTimer(committed_lsn)
        self._retries = ReadRetries()
        self._group_filters: FilterIndex[SharedGroup] = FilterIndex()
        self._groups: dict[SubscriptionTarget, SharedGroup] = {}
        # Groups that collect their shards, or store their last positions.
        self._busy: dict[SubscriptionTarget, trio.Event] = {}
        self._left: deque[FilterSubscription] = deque()
        self._left_any = trio.Event()
        self._nursery: trio.Nursery | None = None
        self.count = 0

    def start(self, nursery: trio.Nursery) -> None:
        """Run the tasks of subscriptions in this nursery from now on."""
        self._nursery = nursery
        nursery.start_soon(self._clock.run)
        nursery.start_soon(self._retries.run)
        nursery.start_soon(self._drop_all)

    def close(self) -> None:
        """End the groups; the positions that their cursors have are durable."""
        self._groups.clear()

    def groups(self) -> list[SharedGroup]:
        """The groups that have members."""
        return list(self._groups.values())

    def committed(self) -> None:
        """Note that the committed lsn has advanced."""
        self._clock.committed()

    def shard_created(self, shard: Shard) -> None:
        """A shard is new: groups by filter take it up."""
        for group in set(self._group_filters.match(shard.name)):
            group.attach(shard, 0)

    def shard_deleted(self, shard: Shard) -> None:
        """A shard was deleted: its subscriptions end, and readers that wait for its records get the error."""
        self._discovery.deleted(shard)
        shard.notify()

    async def subscribe(
        self,
        target: SubscriptionTarget,
        *,
        start: Start,
        until_lsn: int | None = None,
        common_lsn: int | None = None,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
        may_deliver: Callable[[str], bool] | None = None,
    ) -> Subscription:
        """Begin a subscription to a shard, or to all shards that match a filter, now and later.

        In a group the start applies only where the group has no stored position. The start of a subscription by filter
        is fixed before the first wait. An offset from before a restore from a backup may belong to a lost record: with
        ``common_lsn`` the subscription begins no later than at the first record with a higher lsn.
        By filter, it delivers the shards for which ``may_deliver`` is true, see `Subscription.restrict`.

        Raises:
            InvalidRequestError: Both or neither of shard and filter, an offset for a filter, or an end for anything but
                a filter outside a group.
            InvalidNameError: The shard, filter or group has a name that none can have.
            ShardNotFoundError: The shard does not exist.
            OffsetOutOfRangeError: The shard does not have the start offset.
        """
        shard, topic_filter = target.shard, target.topic_filter
        if (shard is None) == (topic_filter is None):
            raise InvalidRequestError("a subscription names either a shard or a filter")
        if until_lsn is not None and (topic_filter is None or target.group is not None):
            raise InvalidRequestError("only a subscription by filter, and outside a group, can end after an lsn")
        if shard is not None:
            validate_shard_name(shard)
        if topic_filter is not None:
            validate_filter(topic_filter)
            if start.kind == "offset":
                raise InvalidRequestError(
                    "an offset is a place in one shard; start a filter by time, lsn, earliest or latest"
                )
        if shard is not None and start.kind == "offset" and common_lsn is not None:
            changed_offset = await self._reader.find_offset(self._table.by_name(shard), Start.lsn(common_lsn + 1))
            start = Start.offset(min(start.value, changed_offset))
        if target.group is not None:
            validate_name("group name", target.group)
            validate_name("name of the group's cursor", group_cursor(target.group))
            return await self._join(target, start, on_ready, credit_bytes, may_deliver)
        if topic_filter is not None:
            self.count += 1
            return FilterSubscription(
                topic_filter,
                start,
                until_lsn,
                reader=self._reader,
                retries=self._retries,
                discovery=self._discovery,
                clock=self._clock,
                committed_lsn=self._committed_lsn,
                on_ready=on_ready,
                on_closed=self._closed,
                on_left=self._drop_later,
                may_deliver=may_deliver,
            )
        assert shard is not None  # one of the two was given
        found = self._table.by_name(shard)
        offset = await self._reader.find_offset(found, start)
        self.count += 1
        return ShardSubscription(self._reader, self._retries, found, offset, on_ready, self._closed)

    def _closed(self) -> None:
        self.count -= 1

    def _drop_later(self, feed: FilterSubscription) -> None:
        self._left.append(feed)
        self._left_any.set()

    async def _drop_all(self) -> None:
        """Release the shards of subscriptions that have ended; each may have a million."""
        while True:
            while self._left:
                if self._left[0].drop_some():
                    self._left.popleft()
                await trio.lowlevel.checkpoint()
            self._left_any = trio.Event()
            await self._left_any.wait()

    async def _attach_all(self, group: SharedGroup, target: SubscriptionTarget, start: Start) -> None:
        if target.shard is not None:
            found = self._table.by_name(target.shard)
            group.attach(found, await self._first_offset(group, found, start))
            return
        topic_filter = target.topic_filter
        assert topic_filter is not None  # subscribe() checked that one of the two was given
        # From here on new shards are attached when they are created; the existing ones follow.
        group.topic_filter = topic_filter
        self._group_filters.add(topic_filter, group)
        catalogue = self._table.catalogue
        scan, step = NameScan(catalogue, topic_filter), TimeSlice()
        while (names := await scan.more()) is not None:
            for name in names:
                shard_id = catalogue.id_of(name)
                there = self._table.by_id(shard_id) if shard_id is not None else None
                if there is not None and not there.damage:
                    await self._attach(group, there, start)
                if step.is_over:
                    await step.rest()
                if group.is_over:
                    return

    async def _attach(self, group: SharedGroup, shard: Shard, start: Start) -> None:
        try:
            offset = await self._first_offset(group, shard, start)
        except ShardNotFoundError:
            # It was deleted while its first offset was searched: it is not added to the group.
            return
        group.attach(shard, offset)

    async def _first_offset(self, group: SharedGroup, shard: Shard, start: Start) -> int:
        cursor = self._commands.get_cursor(shard.name, group.cursor_name)
        return cursor.offset if cursor is not None else await self._reader.find_offset(shard, start)

    async def _join(
        self,
        target: SubscriptionTarget,
        start: Start,
        on_ready: Callable[[], None],
        credit_bytes: Callable[[], int],
        may_deliver: Callable[[str], bool] | None,
    ) -> Member:
        if self._nursery is None:
            raise InvalidRequestError("group subscriptions need a running engine")
        while (busy := self._busy.get(target)) is not None:
            # While its shards are collected: afterwards the group exists, or was refused. While it ends: afterwards its
            # positions are stored, and the new group continues there.
            await busy.wait()
        group = self._groups.get(target)
        if group is not None:
            self.count += 1
            return group.join(on_ready, credit_bytes, may_deliver)
        assert target.group is not None  # subscribe() has checked it
        ended = trio.Event()
        group = self._groups[target] = SharedGroup(
            target.group,
            self._reader,
            self._retries,
            self._commands,
            on_left=self._member_left,
            on_empty=lambda: self._drop_group(target, ended),
            on_ended=lambda: self._group_ready(target, ended),
        )
        self.count += 1
        member = group.join(on_ready, credit_bytes, may_deliver)
        self._nursery.start_soon(group.run)
        gathered = self._busy[target] = trio.Event()
        try:
            await self._attach_all(group, target, start)
        except BaseException:
            member.close()
            raise
        finally:
            self._group_ready(target, gathered)
        return member

    def _group_ready(self, target: SubscriptionTarget, event: trio.Event) -> None:
        if self._busy.get(target) is event:
            del self._busy[target]
        event.set()

    def _member_left(self) -> None:
        self.count -= 1

    def _drop_group(self, target: SubscriptionTarget, ended: trio.Event) -> None:
        group = self._groups.pop(target, None)
        if not ended.is_set():
            self._busy[target] = ended
        if group is not None and group.topic_filter is not None:
            self._group_filters.discard(group.topic_filter, group)
