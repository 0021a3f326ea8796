"""An MQTT broker on a journal server under load, beside growing numbers of connections, subscriptions and sessions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from benchmarks import load, processes
from benchmarks.mqtt import latency, packets, publishing
from benchmarks.mqtt.connection import Connection
from benchmarks.mqtt.idle import open_connections, raise_file_limit
from benchmarks.mqtt.measurements import publishers, publishes_per_s
from benchmarks.mqtt.ours import OurBrokers
from benchmarks.scale.curves import MEMORY, P99, START
from benchmarks.scale.growth import Form
from benchmarks.stage import Stage

FILTERS_OF_A_CONNECTION: Final = 1000
GROUP: Final = 100
# Of each connection: more would be answered in the measured time only by a machine without other work.
WINDOW: Final = 200
MOST_LATE_S: Final = 60.0
_CONNACK_AND_SUBACK_BYTES: Final = 9


class Broker:
    """A broker with the default settings, on a journal server of its own."""

    def __init__(self, stage: Stage, form: Form) -> None:
        raise_file_limit()
        self.form = form
        self.brokers = OurBrokers(stage.directory / "cluster", count=1)

    def warm_up(self) -> None:
        """Make the topics of the load."""
        with ExitStack() as clients:
            publishing.publish_all(publishers(clients, self.address, WINDOW, total=WINDOW), MOST_LATE_S)

    @property
    def address(self) -> tuple[str, int]:
        """Address of the broker as it runs now."""
        return self.brokers.brokers[0].address

    def measure(self) -> Mapping[str, float]:
        """The figures; the start is that of server and broker, and takes until clients are all back."""
        address = self.address
        figures = {
            **self.form.rates(lambda timing: publishes_per_s(address, address, timing, WINDOW), self._processor_s),
            P99: self.form.median(
                lambda: load.percentile(latency.latencies_us(address, address, self.form.timing), 0.99)
            ),
            MEMORY: processes.settled(self._resident_bytes) / 1e6,
        }
        self.leave()
        ready_s = self.brokers.restart()
        begun_at = time.perf_counter()
        self.come_back()
        return {**figures, START: ready_s + time.perf_counter() - begun_at}

    def leave(self) -> None:
        """Close the connections of clients that are there all the time."""

    def come_back(self) -> None:
        """Open them again."""

    def _processor_s(self) -> float:
        return sum(server.processor_s() for server in self.brokers.servers)

    def _resident_bytes(self) -> int:
        return sum(server.resident_bytes() for server in self.brokers.servers)

    def close(self) -> None:
        self.leave()
        self.brokers.close()


class Connections(Broker):
    """Connections of clients that do nothing."""

    def __init__(self, stage: Stage, form: Form) -> None:
        super().__init__(stage, form)
        self._size = 0
        self._clients = ExitStack()

    def grow(self, size: float) -> None:
        open_connections(self._clients, self.address, range(self._size, int(size)), lambda _done, _total: None)
        self._size = int(size)

    def leave(self) -> None:
        self._clients.close()

    def come_back(self) -> None:
        open_connections(self._clients, self.address, range(self._size), lambda _done, _total: None)


class Subscriptions(Broker):
    """Subscriptions with a wildcard that match no message of the load, a thousand of each connection."""

    def __init__(self, stage: Stage, form: Form) -> None:
        super().__init__(stage, form)
        self._size = 0
        self._clients = ExitStack()

    def grow(self, size: float) -> None:
        self._subscribe(range(self._size, int(size)))
        self._size = int(size)

    def leave(self) -> None:
        self._clients.close()

    def come_back(self) -> None:
        self._subscribe(range(self._size))

    def _subscribe(self, numbers: range) -> None:
        for start in range(numbers.start, numbers.stop, FILTERS_OF_A_CONNECTION):
            part = range(start, min(start + FILTERS_OF_A_CONNECTION, numbers.stop))
            client = self._clients.enter_context(Connection(self.address, f"scale-subscriber-{start}"))
            client.socket.settimeout(MOST_LATE_S)
            client.socket.sendall(
                b"".join(
                    packets.subscribe(f"scale/line{number}/+/state", 1, packet_id)
                    for packet_id, number in enumerate(part, 1)
                )
            )
            for _ in part:
                packets.expect_suback(client.exactly(5), 1)


class Sessions(Broker):
    """Durable sessions with a subscription each that are away."""

    def __init__(self, stage: Stage, form: Form) -> None:
        super().__init__(stage, form)
        self._size = 0

    def grow(self, size: float) -> None:
        for first in range(self._size, int(size), GROUP):
            self._leave_behind(range(first, min(first + GROUP, int(size))))
        self._size = int(size)

    def _leave_behind(self, numbers: range) -> None:
        """Connect, subscribe and disconnect, all of them at once."""
        with ExitStack() as stack:
            clients = [stack.enter_context(load.connect(self.address, timeout_s=MOST_LATE_S)) for _ in numbers]
            for number, client in zip(numbers, clients, strict=True):
                client.sendall(
                    packets.connect(f"scale-away-{number}", clean_session=False, user=packets.USER)
                    + packets.subscribe(f"scale/away/{number}", 1)
                )
            for client in clients:
                answer = b""
                while len(answer) < _CONNACK_AND_SUBACK_BYTES and (received := client.recv(64)):
                    answer += received
                packets.expect_connack(answer[:4])
                packets.expect_suback(answer[4:], 1)
                client.sendall(packets.DISCONNECT)
            for client in clients:
                while client.recv(64):
                    pass
