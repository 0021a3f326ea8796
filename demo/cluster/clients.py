"""The clients of a run with several servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from demo.clients.base_crowd import AWAY, REPLAY, TOPICS, WATCHER, BaseCrowd
from demo.clients.publisher import Publisher
from demo.clients.roaming_client import V5, V311
from demo.clients.subscriber import Subscriber
from demo.telemetry import ROOT, available_sources

QOS: Final = {"cpu": 1, "memory": 2, "disk": 2, "network": 1, "load": 1}
"""QoS by kind of telemetry; all of it is in files."""

RETAINED: Final = frozenset({"memory", "load"})
"""Kinds whose last message is retained."""


class ClusterCrowd(BaseCrowd):
    """Two publishers, a watcher, a session that will be away, a client for the replay, and one for what is retained.

    Args:
        brokers: Ports of the three brokers by their names.
        rate: Messages per second of both publishers together.
    """

    def __init__(self, brokers: Mapping[str, int], rate: float) -> None:
        first, second, third = brokers.values()
        sources = available_sources()
        publishers = [
            Publisher(
                name, order, version, root=f"{ROOT}/{name}", sources=sources, qos=QOS, rate=rate / 2, retained=RETAINED
            )
            for name, order, version in (
                ("sensor-a", (first, second, third), V5),
                ("sensor-b", (second, third, first), V311),
            )
        ]
        self.watcher = Subscriber(WATCHER, (third, first, second), V5)
        away = Subscriber(AWAY, (third, second, first), V311)
        player = Subscriber(REPLAY, (second, third, first), V311, durable=False)
        self.newcomers = {
            name: Subscriber(f"newcomer-at-{name}", (port,), V5, durable=False) for name, port in brokers.items()
        }
        super().__init__(
            publishers=publishers,
            listeners={self.watcher: TOPICS, away: TOPICS},
            away=away,
            player=player,
            ledgers={WATCHER: self.watcher.ledger, AWAY: away.ledger, REPLAY: player.ledger},
            qos=QOS,
        )

    @property
    def acknowledged(self) -> int:
        """Number of all messages that are acknowledged."""
        return sum(publisher.acknowledged for publisher in self.publishers)

    def longest_pause_s(self, since_us: int, begun_us: int) -> float:
        """The longest pause of acknowledgements of any publisher.

        Args:
            since_us: It ended after this moment.
            begun_us: It began before the first acknowledgement of a message that was published after this one.
        """
        pauses = []
        for publisher in self.publishers:
            again_at_us = publisher.ledger.acknowledged_of_later_than(begun_us)
            assert again_at_us is not None
            pauses.append(publisher.ledger.longest_pause_us(since_us, again_at_us))
        return max(pauses) / 1e6

    def have_retained(self) -> bool:
        """Whether newcomers have a message of each topic whose last message is retained."""
        due = {topic for topic in self.topics if topic.rsplit("/", 1)[-1] in RETAINED}
        return all(due <= {*each.ledger.topics} for each in self.newcomers.values())

    @property
    def topics(self) -> Sequence[str]:
        """All topics of which something was published."""
        return sorted(topic for publisher in self.publishers for topic in publisher.ledger.topics)

    def leave(self) -> None:
        super().leave()
        for newcomer in self.newcomers.values():
            newcomer.client.leave()
