"""Random histories of clients at several brokers, and what must have arrived of them: what sessions promise.

Each step is carried out to its end, so it is known what was acknowledged during which subscription. Where brokers
and their store come from, and how they crash, is said by the tests.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Protocol

import attrs
import hypothesis.strategies as st
import trio

from broker_adapter.mqtt_codec import Version
from broker_adapter.mqtt_codec.packets import Publish
from shards.topics.topic_filters import matches
from tests.mqtt.contract.members import Publisher, Subscriber
from tests.mqtt.serving import Serving

BROKERS = 3
SUBSCRIBERS = 3
PUBLISHERS = 2
TOPICS = ("a", "a/b", "c")
FILTERS = ("a", "a/#", "+", "#")

_brokers = st.integers(0, BROKERS - 1)
_subscribers = st.integers(0, SUBSCRIBERS - 1)
_publishers = st.integers(0, PUBLISHERS - 1)
_qos = st.sampled_from([1, 2])

Step = tuple[str | int | bool, ...]
"""The name of a method of `History` and its arguments."""

STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("publish"), _publishers, _brokers, st.sampled_from(TOPICS), _qos),
    st.tuples(st.just("connect"), _subscribers, _brokers, st.booleans()),
    st.tuples(st.just("subscribe"), _subscribers, st.sampled_from(FILTERS), _qos),
    st.tuples(st.just("leave"), _subscribers, st.booleans()),
    st.tuples(st.just("crash"), _brokers),
    st.tuples(st.just("retain"), _publishers, _brokers, st.sampled_from(TOPICS), _qos),
)


class Cluster(Protocol):
    """Brokers over one store.

    Attributes:
        brokers: `BROKERS` of them; a place holds another one after a crash.
    """

    brokers: list[Serving]

    async def crash(self, number: int) -> None:
        """End a broker without a last word, and start another one under its name."""


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


class History:
    """Carries out steps, and knows what must come of them."""

    def __init__(self, cluster: Cluster, tasks: trio.Nursery, *, patience_s: float) -> None:
        self.cluster = cluster
        self.patience_s = patience_s
        self.subscribers = [
            Subscriber(f"s{number}", tasks, Version.V5 if number else Version.V311) for number in range(SUBSCRIBERS)
        ]
        self.publishers = [Publisher(f"p{number}") for number in range(PUBLISHERS)]
        self.expected = [Expected() for _ in self.subscribers]
        self.retained: dict[str, bytes] = {}
        self.count = 0

    async def play(self, steps: list[Step]) -> None:
        """Carry out the steps, bring everything to its end, and check what has come of it."""
        for name, *arguments in steps:
            await getattr(self, str(name))(*arguments)
        await self.settle()

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
        """All subscribers connect again and get what is due."""
        for number, (subscriber, expected) in enumerate(zip(self.subscribers, self.expected, strict=True)):
            await subscriber.connect(self.cluster.brokers[number % BROKERS])
            due = {payload for payloads in expected.streams.values() for payload in payloads}
            with trio.move_on_after(self.patience_s):
                await subscriber.wait_for(due)
        for subscriber, expected in zip(self.subscribers, self.expected, strict=True):
            expected.check(subscriber.received)
        newcomer = await self.cluster.brokers[0].client("newcomer")
        await newcomer.subscribe("#", qos=0)
        found = [await newcomer.message() for _ in self.retained]
        assert {message.topic: message.payload for message in found} == self.retained
