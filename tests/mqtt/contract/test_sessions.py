"""What sessions promise, whatever happens to clients and brokers: a random history against what must have arrived.

Each step is carried out to its end, so it is known what was acknowledged while which subscription stood. Brokers crash
without a last word (they lose the store first); clients come back at any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import cast

import attrs
import hypothesis.strategies as st
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.mqtt.codec import Publish, Version
from shards.topic_filters import matches
from tests.mqtt.contract.members import Publisher, Subscriber
from tests.mqtt.contract.severed import SeveredStore
from tests.mqtt.serving import Serving, serving

BROKERS = 3
SUBSCRIBERS = 3
PUBLISHERS = 2
TOPICS = ("a", "a/b", "c")
FILTERS = ("a", "a/#", "+", "#")
PATIENCE_S = 600.0

brokers = st.integers(0, BROKERS - 1)
subscribers = st.integers(0, SUBSCRIBERS - 1)
qos = st.sampled_from([1, 2])
steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, PUBLISHERS - 1), brokers, st.sampled_from(TOPICS), qos),
    st.tuples(st.just("connect"), subscribers, brokers, st.booleans()),
    st.tuples(st.just("subscribe"), subscribers, st.sampled_from(FILTERS), qos),
    st.tuples(st.just("leave"), subscribers, st.booleans()),
    st.tuples(st.just("crash"), brokers),
    st.tuples(st.just("retain"), st.integers(0, PUBLISHERS - 1), brokers, st.sampled_from(TOPICS), qos),
)
histories = st.lists(steps, max_size=30)


@attrs.define
class Expected:
    """What one subscriber must get: payloads by (publisher, topic, QoS at which they are sent)."""

    filters: dict[str, int] = attrs.Factory(dict)
    streams: dict[tuple[str, str, int], list[bytes]] = attrs.Factory(dict)

    def publish(self, publisher: str, topic: str, published_qos: int, payload: bytes) -> None:
        granted = max((qos for one, qos in self.filters.items() if matches(one, topic)), default=0)
        if granted:
            stream = self.streams.setdefault((publisher, topic, min(granted, published_qos)), [])
            stream.append(payload)

    def check(self, received: list[bytes]) -> None:
        counts = Counter(received)
        order = {payload: at for at, payload in reversed(list(enumerate(received)))}
        for (_, topic, sent_qos), payloads in self.streams.items():
            missing = [payload for payload in payloads if not counts[payload]]
            assert not missing, f"{missing} of {topic} did not come"
            if sent_qos == 2:
                doubled = [payload for payload in payloads if counts[payload] > 1]
                assert not doubled, f"{doubled} of {topic} came more than once at QoS 2"
            for before, after in pairwise(payloads):
                assert order[before] < order[after], f"{after!r} of {topic} came before {before!r}"


class Cluster:
    """Brokers over one store."""

    def __init__(self, store: StorageAdapter, tasks: trio.Nursery) -> None:
        self._store = store
        self._tasks = tasks
        self.brokers: list[Serving] = []
        self._stores: list[SeveredStore] = []
        self._scopes: list[trio.CancelScope] = []

    async def start(self) -> None:
        for number in range(BROKERS):
            await self._start(number)

    async def _start(self, number: int) -> None:
        store = SeveredStore(self._store)
        scope = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[Serving]) -> None:
            with scope:
                async with serving(cast("StorageAdapter", store), broker_id=f"broker-{number}") as served:
                    task_status.started(served)
                    await trio.sleep_forever()

        served = await self._tasks.start(run)
        self.brokers[number : number + 1] = [served]
        self._stores[number : number + 1] = [store]
        self._scopes[number : number + 1] = [scope]

    async def crash(self, number: int) -> None:
        """End a broker without a last word, and start another one under its name."""
        self._stores[number].sever()
        self._scopes[number].cancel()
        await self._start(number)


@asynccontextmanager
async def cluster() -> AsyncIterator[tuple[Cluster, trio.Nursery]]:
    async with open_adapter("memory:") as store, trio.open_nursery() as tasks:
        found = Cluster(store, tasks)
        await found.start()
        yield found, tasks
        tasks.cancel_scope.cancel()


class History:
    """Carries out steps, and knows what must come of them."""

    def __init__(self, cluster: Cluster, tasks: trio.Nursery) -> None:
        self.cluster = cluster
        self.subscribers = [
            Subscriber(f"s{number}", tasks, Version.V5 if number else Version.V311) for number in range(SUBSCRIBERS)
        ]
        self.publishers = [Publisher(f"p{number}") for number in range(PUBLISHERS)]
        self.expected = [Expected() for _ in self.subscribers]
        self.retained: dict[str, bytes] = {}
        self.count = 0

    async def publish(self, number: int, broker: int, topic: str, qos: int, *, retain: bool = False) -> None:
        publisher = self.publishers[number]
        self.count += 1
        payload = b"%s %d" % (publisher.name.encode(), self.count)
        await publisher.publish(self.cluster.brokers[broker], Publish(topic, payload, qos, retain))
        for expected in self.expected:
            expected.publish(publisher.name, topic, qos, payload)
        if retain:
            self.retained[topic] = payload

    async def retain(self, number: int, broker: int, topic: str, qos: int) -> None:
        await self.publish(number, broker, topic, qos, retain=True)

    async def connect(self, number: int, broker: int, answers: bool) -> None:
        await self.subscribers[number].connect(self.cluster.brokers[broker], answers=answers)

    async def subscribe(self, number: int, topic_filter: str, qos: int) -> None:
        subscriber, expected = self.subscribers[number], self.expected[number]
        if subscriber.is_connected and topic_filter not in expected.filters:
            await subscriber.subscribe(topic_filter, qos)
            expected.filters[topic_filter] = qos

    async def leave(self, number: int, politely: bool) -> None:
        await self.subscribers[number].leave(politely=politely)

    async def crash(self, broker: int) -> None:
        await self.cluster.crash(broker)

    async def settle(self) -> None:
        """Everybody comes back and gets what is due."""
        for number, (subscriber, expected) in enumerate(zip(self.subscribers, self.expected, strict=True)):
            await subscriber.connect(self.cluster.brokers[number % BROKERS])
            due = {payload for payloads in expected.streams.values() for payload in payloads}
            with trio.move_on_after(PATIENCE_S):
                await subscriber.wait_for(due)
        for subscriber, expected in zip(self.subscribers, self.expected, strict=True):
            # Retained messages come with a subscription whatever was published before it.
            expected.check(list(subscriber.received))
        newcomer = await self.cluster.brokers[0].client("newcomer")
        await newcomer.subscribe("#", qos=0)
        found = [await newcomer.message() for _ in self.retained]
        assert {message.topic: message.payload for message in found} == self.retained


async def play(history: list[tuple[str, ...]]) -> None:
    async with cluster() as (running, tasks):
        played = History(running, tasks)
        for name, *arguments in history:
            await getattr(played, name)(*arguments)
        await played.settle()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=histories)
def test_sessions_keep_their_promises(history: list[tuple[str, ...]]) -> None:
    trio.run(play, history, clock=trio.testing.MockClock(autojump_threshold=0.01))


@pytest.mark.long
@pytest.mark.timeout(0)
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=st.lists(steps, max_size=80))
def test_sessions_keep_their_promises_in_long_histories(history: list[tuple[str, ...]]) -> None:
    trio.run(play, history, clock=trio.testing.MockClock(autojump_threshold=0.01))
