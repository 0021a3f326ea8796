"""What the crowds of both demos share: publishers, clients that listen, one that goes away, one that replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from demo.clients.publisher import Publisher
from demo.clients.roaming_client import RoamingClient
from demo.clients.subscriber import Subscriber
from demo.evidence.ledger import SubscriberLedger
from demo.telemetry import ROOT

TOPICS: Final = f"{ROOT}/#"

WATCHER, AWAY, REPLAY = "watcher", "away", "replay"
"""Names of the subscribers by their role."""


class BaseCrowd:
    """All clients of a run.

    Args:
        publishers: They publish.
        listeners: The clients that subscribe before anything is published, with their filters.
        away: The one of them whose durable session goes away for a while.
        player: The client for the replay at the end.
        ledgers: Messages received, by subscriber.
        qos: QoS by kind of telemetry.
    """

    def __init__(
        self,
        *,
        publishers: Sequence[Publisher],
        listeners: Mapping[Subscriber, str],
        away: Subscriber,
        player: Subscriber,
        ledgers: Mapping[str, SubscriberLedger],
        qos: Mapping[str, int],
    ) -> None:
        self.publishers = publishers
        self.listeners = listeners
        self.away = away
        self.player = player
        self.ledgers = dict(ledgers)
        self.qos = qos

    @property
    def clients(self) -> list[RoamingClient]:
        """Publishers and listeners."""
        return [each.client for each in self.publishers] + [each.client for each in self.listeners]

    def leave(self) -> None:
        """Disconnect all."""
        for client in (*self.clients, self.player.client):
            client.leave()

    def all_acknowledged_later_than(self, moment_us: int) -> bool:
        """Whether each publisher has an acknowledgement of a message that it published after a moment."""
        return all(publisher.ledger.acknowledged_of_later_than(moment_us) is not None for publisher in self.publishers)

    def in_words(self) -> str:
        """The counts so far, as text."""
        waiting = sum(publisher.waiting for publisher in self.publishers)
        received = {name: self.ledgers[name].count for name in self._shown()}
        return (
            f"published {sum(publisher.published for publisher in self.publishers):,}, "
            f"acknowledged {sum(publisher.acknowledged for publisher in self.publishers):,}, waiting {waiting:,}; "
            f"received: {', '.join(f'{name} {count:,}' for name, count in received.items())}"
        )

    def _shown(self) -> list[str]:
        """The subscribers that receive while the run is under way."""
        live = [id(each.ledger) for each in self.listeners]
        return [name for name, ledger in self.ledgers.items() if id(ledger) in live]
