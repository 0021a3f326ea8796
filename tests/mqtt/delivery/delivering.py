"""A distributor over a store in the test's own process, and sessions that take what arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import attrs
import msgspec
import trio

from broker_adapter import Delivery, Feed, Progress, StorageAdapter, Subscription, TopicMapping, open_adapter
from broker_adapter.mqtt.delivery import Arrival, DeliveryLimits, Distributor, Inbox
from broker_adapter.mqtt.model.message import Message, record_of
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.storage_rules import live_shard_of
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from shards.errors import OverloadedError
from shards.format.record import StoredRecord
from shards.model import Mode, ShardConfig
from shards.seams.clock import ManualClock
from tests.patience import PATIENCE_S

"""What has not happened after so long never will."""


SMALL = DeliveryLimits(max_queued_count=8, window_records=10, patience_s=0.02, linger_s=0.0)


@attrs.define
class Delivering:
    """A distributor that runs, and its store."""

    store: StorageAdapter
    distributor: Distributor
    clock: ManualClock

    async def publish(self, topic: str, *payloads: bytes, qos: int = 1, **fields: Any) -> None:
        """Store messages as one batch in the topic's own shard."""
        await self.store.create_shard(topic, exist_ok=True)
        await self.append(topic, *(Message(topic, payload, qos, **fields) for payload in payloads))

    async def append(self, shard: str, *messages: Message) -> None:
        """Store messages as one batch."""
        records = [record_of(message) for message in messages]
        if messages[0].topic == shard:
            records = [msgspec.structs.replace(record, topic="") for record in records]
        await self.store.append(shard, records)

    async def publish_live(self, topic: str, *payloads: bytes, **fields: Any) -> None:
        """Hand messages to those who are subscribed now."""
        shard = live_shard_of(topic)
        await self.store.create_shard(shard, ShardConfig(mode=Mode.MEMORY), exist_ok=True)
        messages = [Message(topic, payload, 0, **fields) for payload in payloads]
        await self.store.append(shard, [record_of(message) for message in messages])

    def session(self, client_id: str = "c", position_lsn: int | None = None) -> Session:
        """A session that connects."""
        return Session(self, client_id, position_lsn)

    async def last_lsn(self, *shards: str) -> int:
        """The newest lsn of some shards."""
        return max([(await self.store.describe_shard(shard)).last_lsn for shard in shards])


class Session:
    """A connected client, which takes messages on request."""

    def __init__(self, delivering: Delivering, client_id: str, position_lsn: int | None) -> None:
        self.distributor = delivering.distributor
        self.is_ready = trio.Event()
        self.ready_count = 0
        self.inbox: Inbox = self.distributor.open_inbox(client_id, position_lsn=position_lsn, on_ready=self._ready)

    def _ready(self) -> None:
        self.ready_count += 1
        self.is_ready.set()

    async def subscribe(self, *filters: str, qos: int = 1, **options: Any) -> int:
        """Subscribe; the lsn since which the last one counts."""
        since_lsn = 0
        for topic_filter in filters:
            options_of = SubscriptionOptions(qos, **options)
            since_lsn = (await self.distributor.subscribe(self.inbox, topic_filter, options_of)).lsn
        return since_lsn

    async def restore(self, subscriptions: Mapping[str, int], qos: int = 1) -> None:
        """Bring back subscriptions, by filter with the lsn since which they count."""
        restored = {one: SubscriptionOptions(qos, since=Position(lsn)) for one, lsn in subscriptions.items()}
        await self.distributor.restore(self.inbox, restored)

    async def unsubscribe(self, topic_filter: str) -> None:
        await self.distributor.unsubscribe(self.inbox, topic_filter)

    async def arrivals(self, count: int) -> list[Arrival]:
        """The next so many arrivals."""
        taken: list[Arrival] = []
        with trio.fail_after(PATIENCE_S):
            while len(taken) < count:
                found = self.inbox.take(count - len(taken))
                taken += found
                if not found:
                    await self.is_ready.wait()
                    self.is_ready = trio.Event()
        return taken

    async def take(self, count: int) -> list[bytes]:
        """The payloads of the next so many arrivals."""
        return [arrival.message.payload for arrival in await self.arrivals(count)]

    async def assert_silent(self, wait_s: float = 0.05) -> None:
        """Nothing arrives for a moment."""
        await trio.sleep(wait_s)
        assert [arrival.message for arrival in self.inbox.take(1)] == []

    async def reach(self, done: Callable[[Inbox], bool]) -> None:
        await until(lambda: done(self.inbox))

    def close(self) -> None:
        self.distributor.close_inbox(self.inbox)


async def until(done: Callable[[], bool]) -> None:
    """Wait for something without a notification."""
    with trio.fail_after(PATIENCE_S):
        while not done():
            await trio.sleep(0.001)


@asynccontextmanager
async def delivering(
    store: StorageAdapter | None = None,
    *,
    mapping: TopicMapping | None = None,
    publisher: StorageAdapter | None = None,
    **options: Any,
) -> AsyncIterator[Delivering]:
    """A distributor over a store in memory, or another one; the test publishes to it in its own way or another one."""
    if store is None:
        async with open_adapter("memory:") as opened, delivering(opened, mapping=mapping, **options) as found:
            yield found
        return
    clock = ManualClock()
    distributor = Distributor(store, mapping or TopicMapping(), clock=clock, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(distributor.run)
        yield Delivering(publisher or store, distributor, clock)
        nursery.cancel_scope.cancel()


class Brittle:
    """A store whose feeds break on request. All else is the store's own."""

    def __init__(self, store: StorageAdapter) -> None:
        self._store = store
        self._feeds: set[_BrittleFeed] = set()
        self.followed: list[tuple[str, int | None, int | None]] = []
        self.delivered: list[Delivery] = []
        self.refused: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def open_targets(self) -> list[str]:
        """What is followed at this moment."""
        return sorted(feed.target for feed in self._feeds)

    def break_feeds(self, target: str | None = None) -> None:
        """Have feeds fail."""
        for feed in self._feeds:
            if target in (None, feed.target):
                feed.break_off()

    @asynccontextmanager
    async def follow(
        self, target: str, after_lsn: int | None = None, *, until_lsn: int | None = None, credit_bytes: int = 1 << 20
    ) -> AsyncIterator[Feed]:
        self.followed.append((target, after_lsn, until_lsn))
        if self.refused is not None:
            raise self.refused
        async with self._store.follow(target, after_lsn, until_lsn=until_lsn, credit_bytes=credit_bytes) as feed:
            with self._breakable(_BrittleFeed(target, feed, self.delivered)) as brittle:
                brittle.start_lsn = feed.start_lsn
                yield brittle

    @asynccontextmanager
    async def subscribe(self, target: str, *arguments: Any, **options: Any) -> AsyncIterator[Feed]:
        if self.refused is not None:
            raise self.refused
        async with self._store.subscribe(target, *arguments, **options) as subscription:
            with self._breakable(_BrittleFeed(target, subscription, self.delivered)) as brittle:
                yield brittle

    @contextmanager
    def _breakable(self, feed: _BrittleFeed) -> Iterator[_BrittleFeed]:
        self._feeds.add(feed)
        try:
            yield feed
        finally:
            self._feeds.discard(feed)


class _BrittleFeed(Feed):
    def __init__(self, target: str, feed: Feed | Subscription, delivered: list[Delivery]) -> None:
        self.target = target
        self._delivered = delivered
        self._is_broken = False
        self._waiting = trio.CancelScope()
        self._feed = feed

    def break_off(self) -> None:
        self._is_broken = True
        self._waiting.cancel()

    async def __anext__(self) -> Delivery | Progress:
        if not self._is_broken:
            with trio.CancelScope() as self._waiting:
                item = await self._feed.__anext__()
                if isinstance(item, Delivery):
                    self._delivered.append(item)
                return item
        raise OverloadedError("the feed was broken by the test")


async def stored_in(store: StorageAdapter, *shards: str) -> list[tuple[str, StoredRecord]]:
    """All records of shards."""
    found: list[tuple[str, StoredRecord]] = []
    for shard in shards:
        offset, end = 0, (await store.describe_shard(shard)).next_offset
        while offset < end:
            result = await store.read(shard, offset)
            found += [(shard, record) for record in result.records if isinstance(record, StoredRecord)]
            offset = result.next_offset
    return found
