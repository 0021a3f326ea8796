"""Subscriptions inside one process: who watches which shard, who is due, and the shares of groups.

Nothing is queued for a consumer: it is told which shards moved and reads them when it asks for more, so a slow consumer
costs a position per shard and holds up nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from broker_adapter.engines.stored_shard import StoredShard
from broker_adapter.subscription import Delivery, Subscription
from shards.errors import ShardNotFoundError
from shards.format.record import Gap
from shards.subscriptions.group_assignment import GroupAssignment, sticky_key
from shards.topics.topic_filters import matches

GROUP_CURSOR_PREFIX = "group/"

CommitPosition = Callable[[StoredShard, str, int], None]
"""Stores a group's position in a shard: shard, cursor name, offset."""


class Watchers:
    """All subscriptions of an engine, found by what concerns them.

    Args:
        commit_position: Called when a group's position moved.
    """

    def __init__(self, commit_position: CommitPosition) -> None:
        self._commit_position = commit_position
        self._by_shard_id: dict[int, dict[LocalSubscription, None]] = {}
        self._by_filter: dict[LocalSubscription, str] = {}
        self._groups: dict[tuple[int, str], GroupAssignment[LocalSubscription]] = {}

    def watch_filter(self, subscription: LocalSubscription, topic_filter: str) -> None:
        """Have a subscription watch shards that are created later too."""
        self._by_filter[subscription] = topic_filter

    def watch(self, subscription: LocalSubscription, shard: StoredShard, offset: int) -> None:
        """Have a subscription watch a shard from an offset on."""
        self._by_shard_id.setdefault(shard.shard_id, {})[subscription] = None
        if subscription.group is not None:
            self.share(shard, subscription.group, offset).join(subscription)
        subscription.add(shard, offset)

    def share(self, shard: StoredShard, group: str, offset: int = 0) -> GroupAssignment[LocalSubscription]:
        """The group's assignment of a shard; it begins at ``offset`` if it has no members yet."""
        share = self._groups.get((shard.shard_id, group))
        if share is None:
            share = GroupAssignment(offset, sticky_key=sticky_key(group, shard.name))
            self._groups[shard.shard_id, group] = share
        return share

    def acknowledge(
        self, subscription: LocalSubscription, shard: StoredShard, group: str, first_offset: int, next_offset: int
    ) -> None:
        """Note an acknowledgement; it counts for nothing after the member left or the shard was deleted."""
        share = self._groups.get((shard.shard_id, group))
        if share is None:
            return
        if share.acknowledge(subscription, first_offset, next_offset):
            self._store_position(shard, group, share)
        # In a sticky group another member may have waited for this one to hold nothing.
        for member in share.members if share.is_sticky else (subscription,):
            member.mark_ready(shard)

    def skip_trimmed(self, shard: StoredShard, group: str) -> None:
        """Move a group over records that were trimmed before anybody acknowledged them."""
        share = self.share(shard, group)
        if share.skip_to(shard.start_offset):
            self._store_position(shard, group, share)

    def shard_created(self, shard: StoredShard, position_of: Callable[[str], int]) -> None:
        """Give a new shard to all subscriptions whose filter matches it, from its first record on.

        Args:
            position_of: Tells (and stores, so that it outlives the members) where a group begins.
        """
        for subscription, topic_filter in list(self._by_filter.items()):
            if matches(topic_filter, shard.name):
                self.watch(subscription, shard, position_of(subscription.group) if subscription.group else 0)

    def shard_advanced(self, shard: StoredShard) -> None:
        """New records are visible in a shard, or old ones went."""
        for subscription in self._by_shard_id.get(shard.shard_id, ()):
            subscription.mark_ready(shard)

    def shard_deleted(self, shard: StoredShard) -> None:
        """A shard is gone: filters go on without it, a subscription to it alone fails."""
        for subscription in self._by_shard_id.pop(shard.shard_id, {}):
            subscription.remove(shard, gone_for_good=subscription not in self._by_filter)
            if subscription.group is not None:
                self._groups.pop((shard.shard_id, subscription.group), None)

    def leave(self, subscription: LocalSubscription) -> None:
        """Forget a subscription; what it held of its groups goes to their other members."""
        self._by_filter.pop(subscription, None)
        for shard in subscription.shards:
            watching = self._by_shard_id.get(shard.shard_id, {})
            watching.pop(subscription, None)
            if not watching:
                self._by_shard_id.pop(shard.shard_id, None)
            if subscription.group is not None:
                self._leave_group(subscription, shard, subscription.group)

    def _leave_group(self, subscription: LocalSubscription, shard: StoredShard, group: str) -> None:
        share = self._groups.get((shard.shard_id, group))
        if share is None:
            return
        share.leave(subscription)
        for member in share.members:
            member.mark_ready(shard)
        if not share.members:
            del self._groups[shard.shard_id, group]

    def _store_position(self, shard: StoredShard, group: str, share: GroupAssignment[LocalSubscription]) -> None:
        self._commit_position(shard, GROUP_CURSOR_PREFIX + group, share.committed_offset)

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in {*self._by_filter, *(one for watching in self._by_shard_id.values() for one in watching)}:
            subscription.end()


class LocalSubscription(Subscription):
    """One consumer's place in every shard that it watches.

    Args:
        watchers: Where it is registered.
        now_us: Tells the time, for expired records.
        group: Name of its group, or None.
        credit_bytes: Batch bytes of one delivery at most.
    """

    def __init__(self, watchers: Watchers, now_us: Callable[[], int], group: str | None, credit_bytes: int) -> None:
        self.group = group
        self._watchers = watchers
        self._now_us = now_us
        self._credit_bytes = credit_bytes
        self._offset_by_shard: dict[StoredShard, int] = {}
        self._ready: dict[StoredShard, None] = {}
        self._wake = trio.Event()
        self._ended = False
        self._lost: str | None = None

    @property
    def shards(self) -> tuple[StoredShard, ...]:
        """The shards that it watches now."""
        return tuple(self._offset_by_shard)

    def add(self, shard: StoredShard, offset: int) -> None:
        """Watch a shard too."""
        self._offset_by_shard[shard] = offset
        self.mark_ready(shard)

    def remove(self, shard: StoredShard, *, gone_for_good: bool) -> None:
        """Stop watching a deleted shard; when it was all there was to watch, the consumer is told."""
        self._offset_by_shard.pop(shard, None)
        self._ready.pop(shard, None)
        if gone_for_good:
            self._lost = shard.name
            self._wake.set()

    def mark_ready(self, shard: StoredShard) -> None:
        """Look at a shard again."""
        if shard in self._offset_by_shard:
            self._ready[shard] = None
            self._wake.set()

    def end(self) -> None:
        """Have the iteration end after what it is delivering now."""
        self._ended = True
        self._wake.set()

    async def __anext__(self) -> Delivery:
        await trio.lowlevel.checkpoint()
        while True:
            if self._ended:
                raise StopAsyncIteration
            delivery = self._next_ready()
            if delivery is not None:
                return delivery
            if self._lost is not None:
                raise ShardNotFoundError(f"shard {self._lost!r} was deleted; its subscription ends")
            self._wake = trio.Event()
            await self._wake.wait()

    def _next_ready(self) -> Delivery | None:
        """Serve the shards that moved in turn, so that a busy one does not starve the others."""
        while self._ready:
            shard = next(iter(self._ready))
            del self._ready[shard]
            delivery = self._take(shard) if self.group is None else self._take_share(shard, self.group)
            if delivery is not None:
                self._ready[shard] = None
                return delivery
        return None

    def _take(self, shard: StoredShard) -> Delivery | None:
        offset = self._offset_by_shard[shard]
        if offset < shard.start_offset:
            self._offset_by_shard[shard] = shard.start_offset
            return Delivery(shard.name, [Gap(offset, shard.start_offset)], shard.start_offset)
        while offset < shard.visible_offset:
            found = shard.read(offset, max_bytes=self._credit_bytes, now_us=self._now_us())
            offset = self._offset_by_shard[shard] = found.next_offset
            if found.records:
                return Delivery(shard.name, found.records, found.next_offset)
        return None

    def _take_share(self, shard: StoredShard, group: str) -> Delivery | None:
        """Take the next batch that the group wants; one at a time, so that the members share even a short backlog."""
        share = self._watchers.share(shard, group)
        self._watchers.skip_trimmed(shard, group)
        while self in share.members_with_room() and share.wanted().first_offset < shard.visible_offset:
            wanted = share.wanted()
            found = shard.read(wanted.first_offset, max_bytes=1, now_us=self._now_us(), end=wanted.next_offset)
            given = share.assign(self, found.next_offset)
            if found.records:
                done = partial(self._acknowledge, shard, group, given.first_offset, given.next_offset)
                return Delivery(shard.name, found.records, given.next_offset, done)
            self._watchers.acknowledge(self, shard, group, given.first_offset, given.next_offset)
        return None

    async def _acknowledge(self, shard: StoredShard, group: str, first_offset: int, next_offset: int) -> None:
        self._watchers.acknowledge(self, shard, group, first_offset, next_offset)
        await trio.lowlevel.checkpoint()
