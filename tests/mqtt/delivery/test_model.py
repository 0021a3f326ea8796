"""Whatever happens in whatever order: each session gets what it is to get, once and in order, and says truly how far.

Random histories of publishes, subscriptions, slow and quick clients, broken feeds and reconnects run against a real
store. What the store holds in the end is the model: which of it must have arrived where follows from it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from broker_adapter import MappingRule, StorageAdapter, TopicMapping, open_adapter
from broker_adapter.mqtt.delivery import DeliveryLimits
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import SubscriptionOptions
from shards.model import Mode, ShardConfig
from shards.topics.topic_filters import matches
from tests.mqtt.delivery.delivering import Brittle, Delivering, Session, delivering, stored_in, until

TOPICS = ("a", "a/1", "a/2", "a/2/x", "b/1", "b/2", "c", "f/1", "f/2", "f/3")
FILTERS = ("#", "a/#", "a/+", "+/1", "+", "a/2", "b/1", "c", "+/+/x", "f/#", "f/2", "b/#")
FOLDED = TopicMapping([MappingRule("f/#", prefix="folded", shards=2)])


@attrs.frozen
class Subscribed:
    """A subscription that there was.

    Attributes:
        since_lsn: Records behind it are for the subscription.
        granted_at: The number of the newest message when SUBSCRIBE was answered. Messages up to it may have come before
            the answer, by another subscription alone; each later one names all subscriptions that it came by.
    """

    topic_filter: str
    since_lsn: int
    granted_at: int

    @property
    def id(self) -> int:
        return 1 + FILTERS.index(self.topic_filter)

    def counts_for(self, lsn: int, topic: str) -> bool:
        return lsn > self.since_lsn and matches(self.topic_filter, topic)


@attrs.define
class Connection:
    """One connection of a session: what it was to get and what it got.

    Attributes:
        position_lsn: Where it began.
        all_of: Subscriptions that lasted to the end, by filter, with the lsn since which they count.
        some_of: All that there ever were; one that was ended may have brought less than it matched.
        places: (shard, lsn, offset) in the order of their arrival.
        numbers: The numbers of the messages, in the same order.
        told: After how many arrivals it said which lsn was safe, and which subscriptions there were then.
    """

    session: Session
    position_lsn: int
    all_of: dict[str, int] = attrs.Factory(dict)
    some_of: list[Subscribed] = attrs.Factory(list)
    has_lost_some: bool = False
    places: list[tuple[str, int, int]] = attrs.Factory(list)
    numbers: list[int] = attrs.Factory(list)
    ids: list[tuple[int, ...]] = attrs.Factory(list)
    told: list[tuple[int, int, dict[str, int]]] = attrs.Factory(list)

    def take(self, count: int) -> int:
        taken = self.session.inbox.take(count)
        for arrival in taken:
            message = arrival.message
            self.places.append((message.shard, message.lsn, message.offset))
            self.numbers.append(int(message.payload))
            self.ids.append(arrival.subscription_ids)
        self.tell()
        return len(taken)

    def tell(self) -> None:
        self.told.append((len(self.places), self.session.inbox.safe_lsn, dict(self.all_of)))

    @property
    def safe_lsn(self) -> int:
        return self.told[-1][1] if self.told else self.position_lsn


class History:
    """One random history."""

    def __init__(self, delivering: Delivering, store: Brittle, seed: int, clients: int = 4) -> None:
        self.delivering = delivering
        self.break_off: Callable[[], None] = store.break_feeds
        self.random = random.Random(seed)
        self.number = 0
        self.is_over = False
        self.open: dict[str, Connection] = {}
        self.away: dict[str, tuple[int, dict[str, int]]] = {f"c{number}": (-1, {}) for number in range(clients)}
        self.ended: list[Connection] = []

    async def run(self, steps: int) -> None:
        actions: list[tuple[int, Callable[[], Any]]] = [
            (8, self.publish),
            (6, self.take),
            (4, self.subscribe),
            (2, self.unsubscribe),
            (3, self.connect),
            (1, self.disconnect),
            (1, self.break_feeds),
            (2, self.pause),
        ]
        weights = [weight for weight, _ in actions]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.publish_all_the_time)
            for _ in range(steps):
                [(_, action)] = self.random.choices(actions, weights)
                await action()
            self.is_over = True
        await self.settle()
        await self.check()

    async def publish_all_the_time(self) -> None:
        others = random.Random(self.random.random())
        while not self.is_over:
            await self.publish(others)
            await trio.sleep(others.random() * 0.002)

    async def publish(self, source: random.Random | None = None) -> None:
        source = source or self.random
        topic = source.choice(TOPICS)
        shard = FOLDED.shard_for(topic)
        config = ShardConfig(mode=source.choice(list(Mode)))
        await self.delivering.store.create_shard(shard, config, exist_ok=True)
        for _ in range(source.choice((1, 1, 3))):
            messages = []
            for _ in range(source.choice((1, 1, 1, 2, 5))):
                self.number += 1
                messages.append(Message(topic, b"%d" % self.number, 1))
            await self.delivering.append(shard, *messages)

    async def connect(self) -> None:
        if not self.away:
            return
        client_id = self.random.choice(sorted(self.away))
        position_lsn, subscriptions = self.away.pop(client_id)
        session = self.delivering.session(client_id, None if position_lsn < 0 else position_lsn)
        connection = self.open[client_id] = Connection(session, position_lsn)
        restored = {
            one: SubscriptionOptions(1, subscription_id=1 + FILTERS.index(one), since=Position(since_lsn))
            for one, since_lsn in subscriptions.items()
        }
        connection.all_of.update(subscriptions)
        connection.some_of.extend(Subscribed(one, since_lsn, 0) for one, since_lsn in subscriptions.items())
        await self.delivering.distributor.restore(session.inbox, restored)
        connection.tell()

    async def disconnect(self) -> None:
        if self.open:
            client_id = self.random.choice(sorted(self.open))
            connection = self.open.pop(client_id)
            connection.tell()
            connection.session.close()
            connection.tell()
            assert connection.told[-1][1] == connection.told[-2][1], "closing is no delivery"
            self.ended.append(connection)
            self.away[client_id] = connection.safe_lsn, dict(connection.all_of)

    async def subscribe(self) -> None:
        if self.open:
            connection = self.open[self.random.choice(sorted(self.open))]
            topic_filter = self.random.choice(FILTERS)
            since_lsn = await connection.session.subscribe(
                topic_filter, subscription_id=1 + FILTERS.index(topic_filter)
            )
            if topic_filter in connection.all_of:
                assert since_lsn == connection.all_of[topic_filter]
            else:
                connection.all_of[topic_filter] = since_lsn
                connection.some_of.append(Subscribed(topic_filter, since_lsn, self.number))

    async def unsubscribe(self) -> None:
        connections = [one for one in self.open.values() if one.all_of]
        if connections:
            connection = self.random.choice(connections)
            topic_filter = self.random.choice(sorted(connection.all_of))
            await connection.session.unsubscribe(topic_filter)
            del connection.all_of[topic_filter]
            connection.has_lost_some = True

    async def take(self) -> None:
        if self.open:
            self.open[self.random.choice(sorted(self.open))].take(self.random.choice((1, 2, 5, 100)))

    async def break_feeds(self) -> None:
        self.break_off()

    async def pause(self) -> None:
        await trio.sleep(self.random.random() * 0.01)

    async def settle(self) -> None:
        """Take until everything has come."""
        shards = [info.name for info in await self.delivering.store.list_shards("#")]
        newest_lsn = await self.delivering.last_lsn(*shards)
        for connection in self.open.values():

            def is_through(connection: Connection = connection) -> bool:
                while connection.take(3):
                    pass
                return not connection.all_of or connection.safe_lsn >= newest_lsn

            await until(is_through)

    async def check(self) -> None:
        shards = [info.name for info in await self.delivering.store.list_shards("#")]
        stored = [
            (shard, record.lsn, record.offset, record.topic or shard)
            for shard, record in await stored_in(self.delivering.store, *shards)
        ]
        for connection in (*self.ended, *self.open.values()):
            self.check_one(connection, stored)

    def check_one(self, connection: Connection, stored: list[tuple[str, int, int, str]]) -> None:
        places = connection.places
        topics = {(shard, lsn, offset): topic for shard, lsn, offset, topic in stored}
        assert len(set(places)) == len(places), "something came twice"
        for name in {shard for shard, _, _ in places}:
            of_shard = [(lsn, offset) for shard, lsn, offset in places if shard == name]
            assert of_shard == sorted(of_shard), f"out of order in {name}"
        for (shard, lsn, offset), number, ids in zip(places, connection.numbers, connection.ids, strict=True):
            topic = topics[shard, lsn, offset]
            counting = [one for one in connection.some_of if one.counts_for(lsn, topic)]
            assert counting, f"{topic} at {lsn} was not asked for"
            assert lsn > connection.position_lsn
            if not connection.has_lost_some:
                assert {one.id for one in counting if one.granted_at < number} <= set(ids)
                assert set(ids) <= {one.id for one in counting}
                assert len(set(ids)) == len(ids) > 0
        safe_lsns = [lsn for _, lsn, _ in connection.told]
        assert safe_lsns == sorted(safe_lsns), "what was safe was not safe later"
        for count, safe_lsn, subscriptions in connection.told:
            due = {
                (shard, lsn, offset)
                for shard, lsn, offset, topic in stored
                if connection.position_lsn < lsn <= safe_lsn
                and any(lsn > since_lsn and matches(one, topic) for one, since_lsn in subscriptions.items())
            }
            missing = due - set(places[:count])
            assert not missing, f"{safe_lsn} was called safe before {sorted(missing)} were taken"


@asynccontextmanager
async def histories(
    store: StorageAdapter, seed: int, limits: DeliveryLimits, *, publisher: StorageAdapter | None = None
) -> AsyncIterator[History]:
    """A history of a broker over a store, to which the test may publish over another connection."""
    brittle = Brittle(store)
    async with delivering(brittle, mapping=FOLDED, limits=limits, publisher=publisher) as found:  # type: ignore[arg-type]
        yield History(found, brittle, seed)


LIMITS = {
    "tight": DeliveryLimits(
        max_queued_count=4, max_tails=2, max_catching_up=1, window_records=3, patience_s=0.002, linger_s=0.0
    ),
    "few tails": DeliveryLimits(max_queued_count=50, max_tails=3, window_records=20, patience_s=0.1, linger_s=0.001),
    "roomy": DeliveryLimits(linger_s=0.01),
}


@pytest.mark.few_cases(2, "a model of many sessions for each setting")
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("seed", range(8))
async def test_every_session_gets_its_messages_once_in_order_whatever_happens(limits: str, seed: int) -> None:
    async with open_adapter("memory:") as store, histories(store, seed, LIMITS[limits]) as history:
        with trio.fail_after(50):
            await history.run(150)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("limits", LIMITS)
async def test_long_histories(limits: str) -> None:
    for seed in range(1000, 1100):
        async with open_adapter("memory:") as store, histories(store, seed, LIMITS[limits]) as history:
            with trio.fail_after(300):
                await history.run(600)
