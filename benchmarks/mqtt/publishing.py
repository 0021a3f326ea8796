"""QoS 1 publishes over several connections, each with a window of publishes that wait for their PUBACK.

One thread and one poll loop: it sends and counts whole chunks, never single packets.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence

import attrs

from benchmarks import load
from benchmarks.load import Chunk, LoadError, RateClock, Timing
from benchmarks.mqtt import packets


@attrs.define(slots=True, eq=False)
class Lane:
    """One connection under load. It changes only by calls of its methods.

    Attributes:
        connection: Non-blocking while it is under load.
        chunks: Sent in turn.
        window: Most publishes unacknowledged.
        total: Publishes in all; None: as many as possible.
    """

    connection: socket.socket
    chunks: Sequence[Chunk]
    window: int
    total: int | None = None
    sent: int = 0
    answered: int = 0
    _pending: memoryview = attrs.field(factory=lambda: memoryview(b""))
    _turn: int = 0
    _counter: packets.PubackCounter = attrs.field(factory=packets.PubackCounter)

    @property
    def is_sending(self) -> bool:
        """Whether a chunk is partly sent."""
        return bool(self._pending)

    @property
    def is_done(self) -> bool:
        """Whether all started publishes are acknowledged."""
        return not self._pending and self.answered >= self.sent

    def send(self, *, may_begin: bool) -> None:
        """Send as much as the window and the socket accept."""
        while True:
            if not self._pending:
                chunk = self.chunks[self._turn % len(self.chunks)]
                left = self.total is None or self.sent < self.total
                if not may_begin or not left or self.sent + chunk.replies - self.answered > self.window:
                    return
                self._pending = memoryview(chunk.data)
                self.sent += chunk.replies
                self._turn += 1
            try:
                self._pending = self._pending[self.connection.send(self._pending) :]
            except BlockingIOError:
                return
            except ConnectionError as error:
                raise LoadError(f"the broker closed the connection under load: {error}") from error

    def receive(self, buffer: bytearray) -> None:
        """Count received acknowledgements."""
        try:
            received = self.connection.recv_into(buffer)
        except BlockingIOError:
            return
        except ConnectionError as error:
            raise LoadError(f"the broker closed the connection under load: {error}") from error
        if not received:
            raise LoadError("the broker closed the connection under load")
        self.answered += self._counter(buffer, received)


def publish_rate(lanes: Sequence[Lane], timing: Timing) -> float:
    """Keep all windows full and return acknowledged publishes per second over all connections.

    Outstanding publishes are waited for at the end, so that the broker is idle again and a lost reply is noticed.

    Raises:
        LoadError: The broker closed a connection, or some acknowledgements never came.
    """
    clock = RateClock(timing)

    def may_go_on() -> bool:
        return not clock.ended(sum(lane.answered for lane in lanes))

    _serve(lanes, may_go_on, time.perf_counter() + timing.bound_s)
    return clock.rate()


def publish_all(lanes: Sequence[Lane], timeout_s: float) -> None:
    """Publish the ``total`` of each lane and wait for all acknowledgements."""
    _serve(lanes, lambda: True, time.perf_counter() + timeout_s)


def _serve(lanes: Sequence[Lane], may_go_on: Callable[[], bool], give_up_at: float) -> None:
    """Serve all lanes in turn until nothing is left to send or to wait for."""
    poller = select.poll()
    by_descriptor = {lane.connection.fileno(): lane for lane in lanes}
    buffer = bytearray(load.RECEIVE_BUFFER_BYTES)
    for lane in lanes:
        lane.connection.setblocking(False)
        poller.register(lane.connection.fileno(), select.POLLIN)
    while True:
        may_begin = may_go_on()
        for lane in lanes:
            lane.send(may_begin=may_begin)
            poller.modify(lane.connection.fileno(), select.POLLIN | (select.POLLOUT if lane.is_sending else 0))
        if all(lane.is_done for lane in lanes):
            break
        if time.perf_counter() > give_up_at:
            waiting = sum(lane.sent - lane.answered for lane in lanes)
            raise LoadError(f"{waiting} publishes were not acknowledged in time")
        ready = poller.poll(100)
        for descriptor, _ in ready:
            by_descriptor[descriptor].receive(buffer)
        # A short pause lets acknowledgements accumulate: fewer system calls leave more processor time for the broker.
        time.sleep(load.PAUSE_S)
    for lane in lanes:
        lane.connection.setblocking(True)
