"""What a broker counts, and the `$SYS/broker/...` topics that tell of it.

The counters are plain numbers: whoever does something adds one. When the topics are published, and to whom, is said by
who holds a `SystemTopics`; nothing here stores them, they concern this broker alone.
"""

from __future__ import annotations

import math
from typing import Final

import attrs


@attrs.define(slots=True)
class BrokerStatistics:
    """Counters of one broker since it started. Fields that are not counters say so.

    Attributes:
        sockets_total: Connections accepted, whatever came of them.
        connects_total: CONNECT packets that were accepted.
        clients_connected: Clients with an open connection now; a gauge.
        clients_maximum: The most that were connected at once.
        clients_expired: Sessions that this broker ended because their time was over.
        packets_received: MQTT control packets of all kinds.
        packets_sent: MQTT control packets of all kinds.
        publishes_received: PUBLISH packets from clients.
        publishes_sent: PUBLISH packets to clients.
        publishes_dropped: Messages that a subscriber did not get because it was too slow, or its session away.
        publish_bytes_received: Payloads of PUBLISH packets from clients.
        publish_bytes_sent: Payloads of PUBLISH packets to clients.
        bytes_received: Everything from clients, below TLS and WebSocket frames.
        bytes_sent: Everything to clients, likewise.
        subscriptions: Of the clients connected here, shared ones too; a gauge.
        shared_subscriptions: Of the clients connected here; a gauge.
    """

    sockets_total: int = 0
    connects_total: int = 0
    clients_connected: int = 0
    clients_maximum: int = 0
    clients_expired: int = 0
    packets_received: int = 0
    packets_sent: int = 0
    publishes_received: int = 0
    publishes_sent: int = 0
    publishes_dropped: int = 0
    publish_bytes_received: int = 0
    publish_bytes_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    subscriptions: int = 0
    shared_subscriptions: int = 0

    def client_connected(self) -> None:
        """A CONNECT was accepted."""
        self.connects_total += 1
        self.clients_connected += 1
        self.clients_maximum = max(self.clients_maximum, self.clients_connected)

    def client_disconnected(self) -> None:
        """A client whose CONNECT was accepted is gone."""
        self.clients_connected -= 1


_PREFIX: Final = "$SYS/broker/"

_COUNTS: Final = {
    "clients/connected": "clients_connected",
    "clients/expired": "clients_expired",
    "clients/maximum": "clients_maximum",
    "subscriptions/count": "subscriptions",
    "shared_subscriptions/count": "shared_subscriptions",
    "messages/received": "packets_received",
    "messages/sent": "packets_sent",
    "publish/messages/received": "publishes_received",
    "publish/messages/sent": "publishes_sent",
    "publish/messages/dropped": "publishes_dropped",
    "publish/bytes/received": "publish_bytes_received",
    "publish/bytes/sent": "publish_bytes_sent",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
}
"""Topic below ``$SYS/broker/`` -> counter. The names are those that mosquitto gave them, which dashboards know.

What lies in the store, retained messages and sessions whose clients are away, is no broker's to count: there are no
topics for it.
"""

_LOADS: Final = {
    "load/messages/received": "packets_received",
    "load/messages/sent": "packets_sent",
    "load/publish/received": "publishes_received",
    "load/publish/sent": "publishes_sent",
    "load/publish/dropped": "publishes_dropped",
    "load/bytes/received": "bytes_received",
    "load/bytes/sent": "bytes_sent",
    "load/sockets": "sockets_total",
    "load/connections": "connects_total",
}
"""Topic -> counter whose growth a minute it tells, as a moving average over three spans."""

_SPANS_MIN: Final = (1, 5, 15)


class LoadAverage:
    """Exponential moving averages of how fast one counter grows, a minute, like the load of a Unix machine."""

    def __init__(self) -> None:
        self._last = 0
        self.averages = [0.0 for _ in _SPANS_MIN]

    def update(self, count: int, elapsed_s: float) -> None:
        """Take the counter's value, so many seconds after the last time."""
        if elapsed_s <= 0:
            return
        per_minute = (count - self._last) * 60 / elapsed_s
        self._last = count
        for at, span_min in enumerate(_SPANS_MIN):
            weight = math.exp(-elapsed_s / (60 * span_min))
            self.averages[at] = per_minute + weight * (self.averages[at] - per_minute)


class SystemTopics:
    """The topics and their values.

    Args:
        statistics: The counters.
        version: Name and version of the broker.
    """

    def __init__(self, statistics: BrokerStatistics, version: str) -> None:
        self._statistics = statistics
        self._version = version
        self._loads = {topic: LoadAverage() for topic in _LOADS}

    def update(self, elapsed_s: float) -> None:
        """Take the averages further: so many seconds have gone by since the last time."""
        for topic, counter in _LOADS.items():
            self._loads[topic].update(getattr(self._statistics, counter), elapsed_s)

    def values(self, uptime_s: float) -> dict[str, bytes]:
        """Every topic with its value now."""
        statistics = self._statistics
        texts = {
            "version": self._version,
            "uptime": f"{uptime_s:.0f} seconds",
            # Sessions whose clients are away are in the store and no broker's: they count nowhere.
            "clients/total": str(statistics.clients_connected),
            **{topic: str(getattr(statistics, counter)) for topic, counter in _COUNTS.items()},
        }
        for topic, load in self._loads.items():
            for span_min, average in zip(_SPANS_MIN, load.averages, strict=True):
                texts[f"{topic}/{span_min}min"] = f"{average:.2f}"
        return {f"{_PREFIX}{topic}": text.encode() for topic, text in texts.items()}
