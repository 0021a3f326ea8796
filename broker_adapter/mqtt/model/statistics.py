"""Counters of a broker, and the `$SYS/broker/...` topics that publish them.

The counters are plain numbers, incremented where the counted thing happens. The topics concern this broker alone and
are not stored; the owner of a `SystemTopics` publishes them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Literal, get_args

import attrs

from journal.telemetry.histogram import DURATION_BOUNDS_S, Histogram

DropReason = Literal["slow_subscriber", "store", "not_allowed", "packet_too_large", "not_encodable"]
"""Why a message is dropped: a subscriber had no room for it (QoS 0), the store refused it, the rules do not allow it to
its publisher or subscriber, it is larger than the packets a subscriber accepts, MQTT cannot express it."""

RefusalReason = Literal[
    "no_connect",
    "protocol",
    "credentials",
    "banned",
    "not_authorized",
    "client_id",
    "packet_size",
    "quota",
    "memory",
    "store",
]
"""Why a connection is refused: no CONNECT in time, a malformed one, a wrong password, a client that is banned, a will
that is not allowed, an invalid client identifier, a client that accepts no packet as large as CONNACK, a user with too
many connections or sessions, or whose clients connect too often, too much memory in use by clients that are not
accepted yet, a store that cannot be reached."""

EndReason = Literal[
    "protocol",
    "keep_alive",
    "stalled",
    "taken_over",
    "revoked",
    "rate",
    "kicked",
    "banned",
    "stopping",
    "refused_publish",
    "unanswered",
    "fault",
]
"""Why the broker ends a client's connection: protocol error, keep-alive timeout, the client reads nothing, session
taken over, its user was removed or has another password, it sends faster than the quota of its user allows, an
administrator ended it, the client was banned, the broker stops, a publish of an MQTT 3.1.1 client was refused (no
packet can say so), a publish will never be answered after the connection to the store was lost, an error in the broker
itself."""


@attrs.define(slots=True)
class Traffic:
    """Counters of messages in one direction.

    Attributes:
        messages: PUBLISH packets, by QoS.
        payload_bytes: Bytes of their payloads, by QoS.
    """

    messages: list[int] = attrs.Factory(lambda: [0, 0, 0])
    payload_bytes: list[int] = attrs.Factory(lambda: [0, 0, 0])


@attrs.define(slots=True)
class BrokerStatistics:
    """Counters of one broker since it started, except for the gauges among them.

    Attributes:
        sockets_total: Connections accepted by the listeners.
        connects_total: CONNECT packets that were accepted.
        clients_connected: Clients with an open connection now; a gauge.
        clients_maximum: The most that were connected at once.
        clients_expired: Sessions that this broker ended because they expired.
        packets_received: MQTT control packets of all kinds.
        packets_sent: MQTT control packets of all kinds.
        received: PUBLISH packets from clients.
        sent: PUBLISH packets to clients.
        dropped: Messages that were refused, or not delivered to a subscriber, by reason.
        refused: Connections that were refused before or with CONNACK, by reason.
        ended: Connections of accepted clients that the broker ended, by reason.
        acknowledge_s: How long publishers wait for PUBACK or PUBREC, in seconds; one value for each receive.
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
        """An accepted client has disconnected."""
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
"""Topic below ``$SYS/broker/`` -> counter. The names are those of mosquitto, so that existing dashboards work.

There are no topics for retained messages and for sessions of clients that are away: these are in the store and belong
to no single broker.
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
"""Topic -> counter; the topic has the counter's growth per minute, as a moving average over three spans."""

_SPANS_MIN: Final = (1, 5, 15)


class LoadAverage:
    """Exponential moving averages of how fast one counter grows, per minute, like the load of a Unix machine."""

    def __init__(self) -> None:
        self._last = 0
        self.averages = [0.0 for _ in _SPANS_MIN]

    def update(self, count: int, elapsed_s: float) -> None:
        """Update with the counter's value, ``elapsed_s`` seconds after the last update."""
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
        """Update the averages, ``elapsed_s`` seconds after the last update."""
        for topic, counter in _LOADS.items():
            self._loads[topic].update(getattr(self._statistics, counter), elapsed_s)

    def values(self, uptime_s: float) -> dict[str, bytes]:
        """All topics with their current values."""
        statistics = self._statistics
        texts = {
            "version": self._version,
            "uptime": f"{uptime_s:.0f} seconds",
            # Sessions of clients that are away are in the store and belong to no broker, so they are not counted.
            "clients/total": str(statistics.clients_connected),
            **{topic: str(getattr(statistics, counter)) for topic, counter in _COUNTS.items()},
        }
        for topic, load in self._loads.items():
            for span_min, average in zip(_SPANS_MIN, load.averages, strict=True):
                texts[f"{topic}/{span_min}min"] = f"{average:.2f}"
        return {f"{_PREFIX}{topic}": text.encode() for topic, text in texts.items()}


class AcknowledgementTimes:
    """Measures the time from each receive of one connection until all publishes in it are answered.

    One time is kept for all publishes that one receive brought, not one for each message.

    Args:
        histogram: Where the times are counted, in seconds.
    """

    __slots__ = ("_answered_count", "_histogram", "_received_count", "_waiting")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._received_count = 0
        self._answered_count = 0
        # (number of its last publish, when it came) of receives that wait, oldest first.
        self._waiting: deque[tuple[int, float]] = deque()

    def received(self, count: int, now_s: float, *, is_answered: bool) -> None:
        """One receive brought ``count`` publishes.

        Args:
            is_answered: The last of them is to be answered: its QoS is 1 or 2.
        """
        self._received_count += count
        if is_answered:
            self._waiting.append((self._received_count, now_s))

    def answered(self, count: int, now_s: float) -> None:
        """The next ``count`` publishes, in order of receipt, are finished; those of QoS 0 count as well."""
        self._answered_count += count
        waiting = self._waiting
        while waiting and waiting[0][0] <= self._answered_count:
            self._histogram.observe(now_s - waiting.popleft()[1])
