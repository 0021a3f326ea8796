"""What a broker counts, and the `$SYS/broker/...` topics that tell of it.

The counters are plain numbers: whoever does something adds one. When the topics are published, and to whom, is said by
who holds a `SystemTopics`; nothing here stores them, they concern this broker alone.
"""

from __future__ import annotations

import math
from typing import Final, Literal, get_args

import attrs

from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram

DropReason = Literal["slow_subscriber", "store", "not_allowed", "packet_too_large", "not_encodable"]
"""Why a message is dropped: a subscriber had no room for it (QoS 0), the store refused it, a rule forbids it to its
publisher or subscriber, a subscriber takes no packet so large, MQTT has no form for it."""

RefusalReason = Literal["no_connect", "protocol", "credentials", "not_authorized", "client_id", "packet_size", "store"]
"""Why a connection is turned away: no CONNECT in time, one against the standard, a wrong password, a will that may not
be, a client identifier that cannot be, a client that takes no packet as large as CONNACK, a store that is away."""

EndReason = Literal[
    "protocol", "keep_alive", "stalled", "taken_over", "stopping", "refused_publish", "unanswered", "fault"
]
"""Why a client's connection is ended: a broken rule, silence, a client that takes nothing, its session is wanted
elsewhere, the broker stops, a publish was refused and MQTT 3.1.1 has no word for that, a publish will never be answered
after the connection to the store was lost, a fault of the broker's own."""


@attrs.define(slots=True)
class Traffic:
    """Messages in one direction.

    Attributes:
        messages: PUBLISH packets, by QoS.
        payload_bytes: Of them, by QoS.
    """

    messages: list[int] = attrs.Factory(lambda: [0, 0, 0])
    payload_bytes: list[int] = attrs.Factory(lambda: [0, 0, 0])


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
        received: PUBLISH packets from clients.
        sent: PUBLISH packets to clients.
        dropped: Messages that were not taken, or that a subscriber did not get, by why that was.
        refused: Connections that were turned away before their client was let in, by why that was.
        ended: Connections of clients that the broker ended, by why that was.
        acknowledge_s: How long publishers wait for PUBACK or PUBREC, one value for all that one receive brought.
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
    received: Traffic = attrs.Factory(Traffic)
    sent: Traffic = attrs.Factory(Traffic)
    dropped: dict[DropReason, int] = attrs.Factory(lambda: dict.fromkeys(get_args(DropReason), 0))
    refused: dict[RefusalReason, int] = attrs.Factory(lambda: dict.fromkeys(get_args(RefusalReason), 0))
    ended: dict[EndReason, int] = attrs.Factory(lambda: dict.fromkeys(get_args(EndReason), 0))
    acknowledge_s: Histogram = attrs.Factory(lambda: Histogram(DURATION_BOUNDS_S))
    bytes_received: int = 0
    bytes_sent: int = 0
    subscriptions: int = 0
    shared_subscriptions: int = 0

    @property
    def publishes_received(self) -> int:
        """PUBLISH packets from clients, of every QoS."""
        return sum(self.received.messages)

    @property
    def publishes_sent(self) -> int:
        """PUBLISH packets to clients, of every QoS."""
        return sum(self.sent.messages)

    @property
    def publishes_dropped(self) -> int:
        """Messages that were dropped for any reason."""
        return sum(self.dropped.values())

    @property
    def publish_bytes_received(self) -> int:
        """Payloads of PUBLISH packets from clients."""
        return sum(self.received.payload_bytes)

    @property
    def publish_bytes_sent(self) -> int:
        """Payloads of PUBLISH packets to clients."""
        return sum(self.sent.payload_bytes)

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
