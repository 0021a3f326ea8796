"""NATS JetStream: publishes with acknowledgement, and push delivery.

The server runs with its default configuration except for the store directory and the port. Its file store then does not
sync before it acknowledges (but every two minutes), as stated in the rows. With ``sync_interval: always`` it does.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks import load, processes

WINDOW = 16_384
CHUNK_BYTES = 128 << 10
INBOX = "_INBOX.b"
DELIVERIES = "deliver"
CONFIG = """\
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{data}"{sync} }}
"""
SYNC_ALWAYS = ", sync_interval: always"


class Nats:
    """A running nats-server, with the measurements on it.

    Args:
        directory: Empty directory for its data and log.
        synced: It syncs each write to a file before it acknowledges.

    Raises:
        processes.NotInstalledError: No nats-server on this machine.
    """

    def __init__(self, directory: Path, *, synced: bool = False) -> None:
        program = processes.installed("nats-server")
        port = processes.free_port()
        directory.mkdir(parents=True)
        config = CONFIG.format(port=port, data=(directory / "data").resolve(), sync=SYNC_ALWAYS if synced else "")
        (directory / "nats.conf").write_text(config)
        argv = [program, "-c", str((directory / "nats.conf").resolve())]
        self._server = processes.start_listening(argv, port, directory / "log")
        self._names = (f"B{number}" for number in itertools.count())

    def close(self) -> None:
        self._server.stop()

    def publish_rate(
        self, storage: str, value_bytes: int, timing: load.Timing, *, window: int = WINDOW, subjects: int = 1
    ) -> float:
        """Acknowledged publishes per second to a fresh stream of the given storage (``file`` or ``memory``).

        With several subjects, publishes go to them in random order, as often to each.
        """
        with _Connection(self._server.address) as connection:
            stream = next(self._names)
            connection.create_stream(stream, storage)
            publishes = _publishes([f"{stream}.{number}" for number in range(subjects)], value_bytes)
            per_chunk = max(1, min(CHUNK_BYTES // len(publishes[0]), window // 4))
            connection.send(b"SUB %s 1\r\n" % INBOX.encode())
            try:
                return load.pipelined_rate(
                    connection.socket,
                    load.chunks_of(publishes, per_chunk),
                    _LinePairCounter(),
                    window=window,
                    timing=timing,
                )
            finally:
                connection.unsubscribe_and_delete(stream)

    def round_trips(self, storage: str, value_bytes: int, timing: load.Timing) -> list[float]:
        """Publish one at a time; sorted microseconds to the acknowledgement."""
        with _Connection(self._server.address) as connection:
            stream = next(self._names)
            connection.create_stream(stream, storage)
            connection.send(b"SUB %s 1\r\n" % INBOX.encode())
            [one] = _publishes([f"{stream}.0"], value_bytes)
            try:
                return load.one_at_a_time(lambda: connection.send(one), lambda: connection.wait_lines(2), timing)
            finally:
                connection.unsubscribe_and_delete(stream)

    def delivery_latencies(self, storage: str, value_bytes: int, rate_per_s: int, timing: load.Timing) -> list[float]:
        """Publish at a steady rate; sorted microseconds to the delivery by a push consumer on another connection."""
        with _Connection(self._server.address) as publisher, _Connection(self._server.address) as reader:
            stream = next(self._names)
            publisher.create_stream(stream, storage)
            reader.send(b"SUB %s 2\r\n" % DELIVERIES.encode())
            consumer = {"deliver_subject": DELIVERIES, "deliver_policy": "all", "ack_policy": "none"}
            reader.request(f"$JS.API.CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": consumer})
            one = b"PUB %s.0 %d\r\n%s\r\n" % (stream.encode(), value_bytes, b"x" * value_bytes)
            buffer = bytearray(load.RECEIVE_BUFFER_BYTES)
            counter = _LinePairCounter()

            def drain(connection: socket.socket) -> int:
                return counter(buffer, connection.recv_into(buffer))

            try:
                return load.paced_deliveries(
                    lambda: publisher.send(one), [reader.socket], drain, rate_per_s=rate_per_s, timing=timing
                )
            finally:
                publisher.unsubscribe_and_delete(stream)


def _publishes(subjects: Sequence[str], value_bytes: int) -> list[bytes]:
    """A publish with a request for an acknowledgement to each subject."""
    value = b"x" * value_bytes
    return [b"PUB %s %s %d\r\n%s\r\n" % (each.encode(), INBOX.encode(), value_bytes, value) for each in subjects]


class _LinePairCounter:
    """Counts messages with one-line payloads: each is two lines, and the only other line is a rare PING."""

    def __init__(self) -> None:
        self._lines = 0

    def __call__(self, buffer: bytearray, received: int) -> int:
        if buffer.find(b'"error"', 0, received) >= 0 or buffer.find(b"-ERR", 0, received) >= 0:
            raise load.LoadError(f"nats-server refused: {bytes(buffer[: min(received, 300)])!r}")
        lines = self._lines + buffer.count(b"\n", 0, received) - buffer.count(b"PING\r\n", 0, received)
        self._lines = lines & 1
        return lines >> 1


class _Connection:
    """A client connection with only the requests that the benchmark makes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = load.connect(address)
        self._unread = b""
        self.wait_lines(1)
        self.send(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nPING\r\n')
        while not self._read_line().startswith(b"PONG"):
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def wait_lines(self, count: int) -> None:
        while count:
            line = self._read_line()
            if line.startswith(b"PING"):
                self.send(b"PONG\r\n")
                continue
            count -= 1

    def request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """One JSON request of the JetStream API."""
        payload = json.dumps(body).encode()
        self.send(b"SUB _INBOX.r 9\r\nUNSUB 9 1\r\n")
        self.send(b"PUB %s _INBOX.r %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
        while not (line := self._read_line()).startswith(b"MSG _INBOX.r"):
            if line.startswith(b"PING"):
                self.send(b"PONG\r\n")
        reply: dict[str, Any] = json.loads(self._read_line())
        if "error" in reply:
            raise load.LoadError(f"nats-server refused {subject}: {reply['error']}")
        return reply

    def create_stream(self, name: str, storage: str) -> None:
        self.request(f"$JS.API.STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.*"], "storage": storage})

    def unsubscribe_and_delete(self, stream: str) -> None:
        self.socket.setblocking(True)
        self.socket.settimeout(30.0)
        self.send(b"UNSUB 1\r\n")
        self.request(f"$JS.API.STREAM.DELETE.{stream}", {})

    def _read_line(self) -> bytes:
        while (end := self._unread.find(b"\n")) < 0:
            received = self.socket.recv(65_536)
            if not received:
                raise load.LoadError("nats-server closed the connection")
            self._unread += received
        line, self._unread = self._unread[: end + 1], self._unread[end + 1 :]
        return line
