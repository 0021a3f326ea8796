"""All subscriptions of an engine: it begins them, and runs what they share.

A `Subscription` is pulled: its owner takes the next push when it has credit for it, so a slow subscription needs no
memory but its positions. Its kinds are `ShardSubscription`, `FilterSubscription`, and the `Member` of a `SharedGroup`.

The first two only read, so a follower has them, too. They go on when it becomes the owner of its store. Groups store
their positions: only an owner has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from journal.engine.read.read_failures import ReadRetries
from journal.engine.read.reader import Reader
from journal.engine.state.committed_lsns import CommittedLsns
from journal.engine.state.shard_discovery import ShardDiscovery
from journal.engine.state.shard_table import ShardTable
from journal.engine.subscribe.filter_subscription import FilterSubscription
from journal.engine.subscribe.group_subscriptions import SharedGroup
from journal.engine.subscribe.groups import Groups
from journal.engine.subscribe.shard_subscription import ShardSubscription
from journal.engine.subscribe.subscription import Subscription, SubscriptionTarget
from journal.engine.subscribe.watermark_timer import WatermarkTimer
from journal.engine.write.commands import Commands
from shards.errors import InvalidRequestError
from shards.position import Start
from shards.segments.shard import Shard
from shards.topics.names import validate_shard_name
from shards.topics.topic_filters import validate_filter


class Subscriptions:
    """All subscriptions of an engine.

    Args:
        table: The shards.
        reader: Reads the records.
        discovery: Finds shards.
        lsns: Tells what is published.
    """

    def __init__(self, table: ShardTable, reader: Reader, discovery: ShardDiscovery, lsns: CommittedLsns) -> None:
        self._table = table
        self._reader = reader
        self._discovery = discovery
        self._lsns = lsns
        self._clock = WatermarkTimer(lsns.committed_lsn)
        self._retries = ReadRetries()
        self._left: deque[FilterSubscription] = deque()
        self._left_any = trio.Event()
        self._count = 0
        self._groups: Groups | None = None

    @property
    def count(self) -> int:
        """Number of open subscriptions, members of groups included."""
        return self._count + (0 if self._groups is None else self._groups.member_count)

    def serve_groups(self, commands: Commands) -> None:
        """Allow groups from now on: their positions can be stored.

        Args:
            commands: Reads and stores them.
        """
        self._groups = Groups(self._table, self._reader, self._retries, commands)

    def start(self, nursery: trio.Nursery) -> None:
        """Run the tasks of subscriptions in this nursery from now on.

        REQUIRES: no other nursery runs them any more.
        """
        nursery.start_soon(self._clock.run)
        nursery.start_soon(self._retries.run)
        nursery.start_soon(self._drop_all)
        if self._groups is not None:
            self._groups.start(nursery)

    def close(self) -> None:
        """End the groups; the positions that their cursors have are durable."""
        if self._groups is not None:
            self._groups.close()

    def groups(self) -> list[SharedGroup]:
        """The groups that have members."""
        return [] if self._groups is None else self._groups.all()

    def committed(self) -> None:
        """Note that the committed lsn has advanced."""
        self._clock.committed()

    def shard_created(self, shard: Shard) -> None:
        """A shard is new: groups by filter take it up. Others learn of it when it publishes."""
        if self._groups is not None:
            self._groups.shard_created(shard)

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

        On a follower, a subscription to a shard may start after the end that the shard has here: it waits.

        REQUIRES: this server owns its store, if the target has a group.

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
            assert self._groups is not None  # as required
            return await self._groups.join(target, start, on_ready, credit_bytes, may_deliver)
        if topic_filter is not None:
            self._count += 1
            return FilterSubscription(
                topic_filter,
                start,
                until_lsn,
                reader=self._reader,
                retries=self._retries,
                discovery=self._discovery,
                clock=self._clock,
                committed_lsn=self._lsns.committed_lsn,
                on_ready=on_ready,
                on_closed=self._closed,
                on_left=self._drop_later,
                may_deliver=may_deliver,
            )
        assert shard is not None  # one of the two was given
        found = self._table.by_name(shard)
        offset = await self._first_offset(found, start)
        self._count += 1
        return ShardSubscription(self._reader, self._retries, self._lsns, found, start, offset, on_ready, self._closed)

    async def _first_offset(self, shard: Shard, start: Start) -> int | None:
        """Where a subscription to a shard begins; None if that is known later, when this follower has read more."""
        if self._lsns.is_followed:
            shard.check_usable()
            if start.kind == "offset" and start.value > shard.published_offset:
                return start.value
            if start.kind == "lsn" and start.value > self._lsns.committed_lsn() + 1:
                return None
        return await self._reader.find_offset(shard, start)

    def _closed(self) -> None:
        self._count -= 1

    def _drop_later(self, feed: FilterSubscription) -> None:
        self._left.append(feed)
        self._left_any.set()

    async def _drop_all(self) -> None:
        while True:
            await self.drop_left()
            self._left_any = trio.Event()
            await self._left_any.wait()

    async def drop_left(self) -> None:
        """Release the shards of subscriptions that have ended; each may have a million."""
        while self._left:
            if self._left[0].drop_some():
                self._left.popleft()
            await trio.lowlevel.checkpoint()
