"""Load generators on plain sockets: a deep pipeline for rates, a paced sender for latencies.

One thread and one poll loop per generator, because on a small machine processor time of the generator is missing for
the server under test. Commands are built before and repeated; replies are only counted. No wire format here: see
`benchmarks.peers` and `benchmarks.wire`.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Callable, Sequence

import attrs

RECEIVE_BUFFER_BYTES = 1 << 20
DRAIN_TIMEOUT_S = 10.0
PAUSE_S = 0.0003

CountReplies = Callable[[bytearray, int], int]


class LoadError(Exception):
    """The server under test refused, closed the connection or did not answer in time."""


class Meter:
    """Processor time that a server uses for each of what it answers: other work on the machine hardly changes that.

    Args:
        processor_s: Processor time of the server so far, in seconds.
    """

    def __init__(self, processor_s: Callable[[], float]) -> None:
        self._processor_s = processor_s
        self._noted: list[tuple[float, float]] = []

    def note(self, total: float) -> None:
        """Note what was answered by now; called when the measured time begins and when it ends."""
        self._noted.append((self._processor_s(), total))

    def microseconds_each(self) -> float:
        """Processor time for one answer between the two times that were noted.

        Raises:
            LoadError: They were not both noted, or nothing was answered between them.
        """
        if len(self._noted) != 2 or self._noted[1][1] <= self._noted[0][1]:
            raise LoadError("nothing was answered in the measured time")
        (first_s, first), (last_s, last) = self._noted
        return (last_s - first_s) / (last - first) * 1e6


@attrs.frozen(slots=True)
class Timing:
    """How long one run of a measurement takes.

    Attributes:
        warm_up_s: Time with load that is not counted.
        measured_s: Time with load that is counted.
        meter: Notes what else was used in the measured time; None if that is not wanted.
    """

    warm_up_s: float
    measured_s: float
    meter: Meter | None = None

    @property
    def total_s(self) -> float:
        """Time with load on the server, in seconds."""
        return self.warm_up_s + self.measured_s

    @property
    def bound_s(self) -> float:
        """Time after which a run has failed, in seconds, including connecting, preparing and waiting for replies."""
        return self.total_s + DRAIN_TIMEOUT_S


@attrs.define(slots=True)
class RateClock:
    """Turns a running total into a rate between the end of the warm-up and the end of the run."""

    timing: Timing
    begun_at: float = attrs.field(factory=time.perf_counter)
    first: tuple[float, float] | None = None
    last: tuple[float, float] | None = None

    def ended(self, total: float) -> bool:
        """Note the total reached by now; returns whether the run is over."""
        now = time.perf_counter()
        if self.first is None and now >= self.begun_at + self.timing.warm_up_s:
            self.first = (now, total)
            self._note(total)
        if self.last is None and now >= self.begun_at + self.timing.total_s:
            self.last = (now, total)
            self._note(total)
        return self.last is not None

    def _note(self, total: float) -> None:
        if self.timing.meter is not None:
            self.timing.meter.note(total)

    def rate(self) -> float:
        """The total's growth per second. Raises `LoadError` if the run was too slow to measure anything.

        A rate of 0 would be a division by zero in a ratio, or a goal that is reached.
        """
        if self.first is None or self.last is None or self.last[0] <= self.first[0]:
            raise LoadError("the run ended before anything was measured")
        if self.last[1] <= self.first[1]:
            raise LoadError("nothing was answered in the measured time")
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


@attrs.frozen(slots=True)
class Chunk:
    """Ready-made commands, sent as they are, and the number of replies that they will cause."""

    data: bytes
    replies: int


def chunks_of(commands: Sequence[bytes], per_chunk: int) -> list[Chunk]:
    """Chunks with one command over and over, or with several in random order, four times each."""
    if len(commands) == 1:
        return [Chunk(commands[0] * per_chunk, per_chunk)]
    order = [*commands] * 4
    random.Random(1).shuffle(order)
    parts = [order[first : first + per_chunk] for first in range(0, len(order), per_chunk)]
    return [Chunk(b"".join(part), len(part)) for part in parts]


def connect(address: tuple[str, int], *, timeout_s: float = 10.0) -> socket.socket:
    """Open a blocking TCP connection without Nagle delay."""
    connection = socket.create_connection(address, timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def pipelined_rate(
    connection: socket.socket, chunks: Sequence[Chunk], count_replies: CountReplies, *, window: int, timing: Timing
) -> float:
    """Send chunks over and over, as fast as replies come back, and return replies per second.

    Measuring starts after the warm-up and stops with the reply that passes the end; outstanding replies are waited for
    afterwards, so that the server is idle again and a lost reply is noticed.

    Args:
        connection: Ready for commands; non-blocking while this runs, blocking again afterwards.
        chunks: Sent in turn. Each holds fewer replies than the window.
        count_replies: Called with the receive buffer and the number of valid bytes in it; counts the
            replies in any piece of the stream, raises `LoadError` on an error reply.
        window: Most replies outstanding.
        timing: Warm-up and measured time.

    Raises:
        LoadError: The server closed the connection, or some replies never came.
    """
    connection.setblocking(False)
    poller = select.poll()
    descriptor = connection.fileno()
    buffer = bytearray(RECEIVE_BUFFER_BYTES)
    pending = memoryview(b"")
    sent = answered = turn = 0
    clock = RateClock(timing)
    give_up_at = clock.begun_at + timing.bound_s
    ended = False
    while True:
        idle = True
        if not pending and not ended and sent + chunks[turn].replies - answered <= window:
            pending = memoryview(chunks[turn].data)
            sent += chunks[turn].replies
            turn = (turn + 1) % len(chunks)
        if pending:
            try:
                pending = pending[connection.send(pending) :]
                idle = False
            except BlockingIOError:
                pass
        try:
            received = connection.recv_into(buffer)
        except BlockingIOError:
            received = -1
        if received == 0:
            raise LoadError("the server closed the connection under load")
        if received > 0:
            idle = False
            answered += count_replies(buffer, received)
        ended = clock.ended(answered)
        if ended and not pending and answered >= sent:
            break
        if ended and time.perf_counter() > give_up_at:
            raise LoadError(f"{sent - answered} of {sent} replies did not come within {DRAIN_TIMEOUT_S} s")
        if idle:
            poller.register(descriptor, select.POLLIN | (select.POLLOUT if pending else 0))
            poller.poll(100)
            # A short pause lets replies accumulate: fewer system calls here leave more processor time for the server.
            time.sleep(PAUSE_S)
    connection.setblocking(True)
    return clock.rate()


def one_at_a_time(send: Callable[[], None], await_reply: Callable[[], None], timing: Timing) -> list[float]:
    """Send, wait for the reply, send again; return the round trips in microseconds, sorted."""
    latencies_us: list[float] = []
    begun_at = time.perf_counter()
    while True:
        before = time.perf_counter()
        if before >= begun_at + timing.total_s:
            return sorted(latencies_us)
        send()
        await_reply()
        if before >= begun_at + timing.warm_up_s:
            latencies_us.append((time.perf_counter() - before) * 1e6)


def paced_deliveries(
    publish: Callable[[], None],
    readable: Sequence[socket.socket],
    drain: Callable[[socket.socket], int],
    *,
    rate_per_s: int,
    timing: Timing,
) -> list[float]:
    """Publish at a steady rate and time each delivery; return latencies in microseconds, sorted.

    Deliveries come in the order of publishing, so the n-th delivery belongs to the n-th publish, and payloads need no
    timestamp.

    Args:
        publish: Sends one message.
        readable: Sockets to watch.
        drain: Reads from one of them without waiting, and returns the number of messages delivered.
        rate_per_s: Messages per second.
        timing: Warm-up and measured time.
    """
    total = int(timing.total_s * rate_per_s)
    skipped = int(timing.warm_up_s * rate_per_s)
    published_at: list[float] = []
    latencies_us: list[float] = []
    begun_at = time.perf_counter()
    while len(latencies_us) < total:
        now = time.perf_counter()
        if now > begun_at + timing.bound_s:
            raise LoadError(f"only {len(latencies_us)} of {total} messages were delivered")
        due_at = begun_at + len(published_at) / rate_per_s if len(published_at) < total else now + 0.1
        if now >= due_at:
            published_at.append(now)
            publish()
            continue
        ready, _, _ = select.select(readable, (), (), due_at - now)
        for connection in ready:
            delivered = drain(connection)
            now = time.perf_counter()
            for _ in range(delivered):
                latencies_us.append((now - published_at[len(latencies_us)]) * 1e6)
    return sorted(latencies_us[skipped:])


def percentile(sorted_values: Sequence[float], fraction: float) -> float:
    """Nearest-rank percentile of sorted values."""
    if not sorted_values:
        raise LoadError("nothing was measured")
    return sorted_values[min(len(sorted_values) - 1, int(fraction * len(sorted_values)))]
