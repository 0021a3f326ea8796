"""A client that publishes this machine's telemetry; its ledger records published and acknowledged messages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import trio
from paho.mqtt.enums import MQTTProtocolVersion

from demo.clients.roaming_client import RoamingClient
from demo.evidence.ledger import Published, PublisherLedger, digest_of
from demo.payload import number_of, payload_of
from demo.telemetry import Reading, Source

_SHORTEST_INTERVAL_S, _LONGEST_INTERVAL_S = 0.005, 1.0
_MOST_HELD: Final = 10_000


class Publisher:
    """One client and its ledger.

    Args:
        root: First levels of its topics.
        sources: What it publishes, with the number of readings of each sample.
        qos: QoS by the last level of the topic.
        retained: Last levels of the topics whose last message brokers retain.
        rate: Messages per second.
    """

    def __init__(
        self,
        client_id: str,
        ports: Sequence[int],
        version: MQTTProtocolVersion,
        *,
        root: str,
        sources: Mapping[Source, int],
        qos: Mapping[str, int],
        rate: float,
        retained: Collection[str] = (),
    ) -> None:
        self.client = RoamingClient(client_id, ports, version, on_acknowledged=self._acknowledge)
        self.ledger = PublisherLedger()
        self.acknowledged = 0
        self._root = root
        self._sources = sources
        self._qos = qos
        self._rate = rate
        self._retained = retained
        self._waiting: dict[int, Published] = {}
        self._held: deque[tuple[Source, Reading]] = deque(maxlen=_MOST_HELD)
        self._settled_losses = 0
        # Filled by paho's thread, which holds its own locks then: the callback must not block.
        self._acknowledged_ids: deque[tuple[int, int]] = deque()

    @property
    def published(self) -> int:
        """Number of messages passed to the client."""
        return sum(map(len, self.ledger.topics.values()))

    @property
    def waiting(self) -> int:
        """Number of messages of QoS 1 and 2 that are not acknowledged yet."""
        self._process_acknowledgements()
        return len(self._waiting)

    @property
    def is_through(self) -> bool:
        """Whether all samples are published and acknowledged."""
        return not self._held and not self.waiting

    async def run(self) -> None:
        """Sample and publish until cancelled.

        After a lost connection new samples are held back until earlier messages are acknowledged: otherwise paho would
        send them before it repeats the earlier ones.
        """
        interval_s = min(max(sum(self._sources.values()) / self._rate, _SHORTEST_INTERVAL_S), _LONGEST_INTERVAL_S)
        while True:
            next_at = trio.current_time() + interval_s
            for source in self._sources:
                self._held.extend((source, reading) for reading in source.sample())
            self.publish_held()
            await trio.sleep_until(next_at)

    def publish_held(self) -> None:
        """Publish the samples that were held back, if nothing is unacknowledged; those too old are dropped."""
        losses = self.client.losses
        if self.client.is_connected and (losses == self._settled_losses or not self.waiting):
            self._settled_losses = losses
            while self._held:
                self._publish(*self._held.popleft())

    def _publish(self, source: Source, reading: Reading) -> None:
        topic = f"{self._root}/{source.topic}"
        published = self.ledger.topics.setdefault(topic, [])
        now_us = time.time_ns() // 1000
        payload = payload_of(len(published), now_us, reading)
        entry = Published(digest_of(payload), len(payload), number_of(reading.get(source.metric)), now_us)
        published.append(entry)
        qos = self._qos[source.topic]
        packet_id = self.client.publish(topic, payload, qos, retain=source.topic in self._retained)
        if qos:
            self._waiting[packet_id] = entry

    def _acknowledge(self, packet_id: int) -> None:
        self._acknowledged_ids.append((packet_id, time.time_ns() // 1000))

    def _process_acknowledgements(self) -> None:
        while self._acknowledged_ids:
            packet_id, at_us = self._acknowledged_ids.popleft()
            entry = self._waiting.pop(packet_id, None)
            if entry is not None:
                entry.acknowledged_at_us = at_us
                self.acknowledged += 1
