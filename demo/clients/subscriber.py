"""A client that records the messages it receives in its ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from paho.mqtt.enums import MQTTProtocolVersion

from demo.clients.roaming_client import RoamingClient
from demo.evidence.ledger import Received, SubscriberLedger, digest_of
from demo.payload import sample_of


class Subscriber:
    """One client and its ledger.

    Args:
        client_id: Its client identifier.
        ports: Ports of the brokers, in the order in which it tries them.
        version: Protocol version.
        durable: Its session outlives the connection.
        ledger: Where received messages are recorded; several clients may share one.
        lock: Guards the ledger.
    """

    def __init__(
        self,
        client_id: str,
        ports: Sequence[int],
        version: MQTTProtocolVersion,
        *,
        durable: bool = True,
        ledger: SubscriberLedger | None = None,
        lock: threading.Lock | None = None,
    ) -> None:
        self.ledger = ledger or SubscriberLedger()
        self._lock = lock or threading.Lock()
        self.client = RoamingClient(client_id, ports, version, durable=durable, on_message=self._enter)

    def _enter(self, topic: str, payload: bytes) -> None:
        sample = sample_of(payload)
        received = Received(sample.number, digest_of(payload), time.time_ns() // 1000 - sample.time_us)
        with self._lock:
            self.ledger.topics[topic].append(received)
