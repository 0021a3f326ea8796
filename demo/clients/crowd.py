"""All clients of a run: their names, their subscriptions, and the brokers at which they begin."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from demo.clients.base_crowd import AWAY, REPLAY, TOPICS, WATCHER, BaseCrowd
from demo.clients.publisher import Publisher
from demo.clients.roaming_client import V5, V311
from demo.clients.subscriber import Subscriber
from demo.evidence.ledger import SubscriberLedger
from demo.telemetry import ROOT, available_sources
from shards.topics.topic_filters import matches

QOS: Final = {"cpu": 1, "memory": 2, "disk": 2, "network": 1, "load": 0}
"""QoS by kind of telemetry."""

MEMORY_TOPICS: Final = f"{ROOT}/+/network"
NOT_KEPT: Final = frozenset(name for name, qos in QOS.items() if qos == 0)

GROUP, WAREHOUSE = "group", "warehouse"
"""Further names: of the shared subscription, and of the warehouse, which gets everything from the bridge."""


class Crowd(BaseCrowd):
    """Two publishers, a watcher, a session that will be away, two members of a group, and a client for the replay.

    Half of them begin at the first broker, which is the one that is killed.

    Args:
        ports: Ports of the three brokers.
        rate: Messages per second of both publishers together.
    """

    def __init__(self, ports: Sequence[int], rate: float) -> None:
        first, second, third = ports
        sources = available_sources()
        publishers = [
            Publisher(name, order, version, root=f"{ROOT}/{name}", sources=sources, qos=QOS, rate=rate / 2)
            for name, order, version in (
                ("sensor-a", (first, second, third), V5),
                ("sensor-b", (second, third, first), V311),
            )
        ]
        self.watcher = Subscriber(WATCHER, (first, third, second), V5)
        away = Subscriber(AWAY, (third, second, first), V311)
        shared, lock = SubscriberLedger(), threading.Lock()
        members = [
            Subscriber(f"member-{number}", order, V5, ledger=shared, lock=lock)
            for number, order in enumerate(((first, second, third), (third, second, first)), 1)
        ]
        player = Subscriber(REPLAY, (second, third, first), V311, durable=False)
        super().__init__(
            publishers=publishers,
            listeners={
                self.watcher: TOPICS,
                away: TOPICS,
                **dict.fromkeys(members, f"$share/workers/{TOPICS}"),
            },
            away=away,
            player=player,
            ledgers={
                WATCHER: self.watcher.ledger,
                AWAY: away.ledger,
                GROUP: shared,
                REPLAY: player.ledger,
                WAREHOUSE: SubscriberLedger(),
            },
            qos=QOS,
        )

    def has_received_from_memory(self) -> bool:
        """Whether the watcher received a message of a topic that is kept in memory."""
        return any(matches(MEMORY_TOPICS, topic) for topic in self.watcher.ledger.topics)
