"""All clients of a run: their names, their subscriptions, and the brokers at which they begin."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from demo.clients.publisher import Publisher
from demo.clients.roaming_client import V5, V311, RoamingClient
from demo.clients.subscriber import Subscriber
from demo.evidence.ledger import SubscriberLedger
from demo.telemetry import ROOT, available_sources
from shards.topics.topic_filters import matches

TOPICS: Final = f"{ROOT}/#"
QOS: Final = {"cpu": 1, "memory": 2, "disk": 2, "network": 1, "load": 0}
"""QoS by kind of telemetry."""

MEMORY_TOPICS: Final = f"{ROOT}/+/network"
NOT_KEPT: Final = frozenset(name for name, qos in QOS.items() if qos == 0)

WATCHER, AWAY, GROUP, REPLAY, WAREHOUSE = "watcher", "away", "group", "replay", "warehouse"
"""Names of the subscribers by their role; and the warehouse, which gets everything from the bridge."""


class Crowd:
    """Two publishers, a watcher, a session that will be away, two members of a group, and a client for the replay.

    Half of them begin at the first broker, which is the one that is killed.

    Args:
        ports: Ports of the three brokers.
        rate: Messages per second of both publishers together.
    """

    def __init__(self, ports: Sequence[int], rate: float) -> None:
        first, second, third = ports
        sources = available_sources()
        self.publishers = [
            Publisher(name, order, version, root=f"{ROOT}/{name}", sources=sources, qos=QOS, rate=rate / 2)
            for name, order, version in (
                ("sensor-a", (first, second, third), V5),
                ("sensor-b", (second, third, first), V311),
            )
        ]
        self.watcher = Subscriber(WATCHER, (first, third, second), V5)
        self.away = Subscriber(AWAY, (third, second, first), V311)
        shared, lock = SubscriberLedger(), threading.Lock()
        self.members = [
            Subscriber(f"member-{number}", order, V5, ledger=shared, lock=lock)
            for number, order in enumerate(((first, second, third), (third, second, first)), 1)
        ]
        self.warehouse = SubscriberLedger()
        self.player = Subscriber(REPLAY, (second, third, first), V311, durable=False)

    @property
    def listeners(self) -> dict[Subscriber, str]:
        """The clients that subscribe before anything is published, with their filters."""
        shared = f"$share/workers/{TOPICS}"
        return {self.watcher: TOPICS, self.away: TOPICS, **dict.fromkeys(self.members, shared)}

    @property
    def ledgers(self) -> dict[str, SubscriberLedger]:
        """Messages received, by subscriber."""
        return {
            WATCHER: self.watcher.ledger,
            AWAY: self.away.ledger,
            GROUP: self.members[0].ledger,
            REPLAY: self.player.ledger,
            WAREHOUSE: self.warehouse,
        }

    @property
    def clients(self) -> list[RoamingClient]:
        """Publishers and listeners."""
        return [each.client for each in self.publishers] + [each.client for each in self.listeners]

    def leave(self) -> None:
        """Disconnect all."""
        for client in (*self.clients, self.player.client):
            client.leave()

    def has_received_from_memory(self) -> bool:
        """Whether the watcher received a message of a topic that is kept in memory."""
        return any(matches(MEMORY_TOPICS, topic) for topic in self.watcher.ledger.topics)

    def in_words(self) -> str:
        """The counts so far, as text."""
        waiting = sum(publisher.waiting for publisher in self.publishers)
        received = (
            f"{name} {ledger.count:,}" for name, ledger in self.ledgers.items() if name not in (REPLAY, WAREHOUSE)
        )
        return (
            f"published {sum(publisher.published for publisher in self.publishers):,}, "
            f"acknowledged {sum(publisher.acknowledged for publisher in self.publishers):,}, waiting {waiting:,}; "
            f"received: {', '.join(received)}"
        )
