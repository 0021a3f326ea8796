"""Redis streams: XADD with and without a synced append-only file.

Snapshots are off, so that a background save does not disturb a run. The rest is the default configuration.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks import load, processes

WINDOW = 16_384
CHUNK_BYTES = 128 << 10


class Redis:
    """A running redis-server, with the measurements on it.

    Args:
        directory: Empty directory for its data and log.
        appendfsync: ``None`` for no append-only file, else its sync policy (``always``: synced before each reply).

    Raises:
        processes.NotInstalledError: No redis-server on this machine.
    """

    def __init__(self, directory: Path, *, appendfsync: str | None) -> None:
        program = processes.installed("redis-server")
        port = processes.free_port()
        data = directory / "data"
        data.mkdir(parents=True)
        argv = [program, "--bind", "127.0.0.1", "--port", str(port), "--dir", str(data), "--save", ""]
        argv += ["--appendonly", "no"] if appendfsync is None else ["--appendonly", "yes", "--appendfsync", appendfsync]
        self._server = processes.start_listening(argv, port, directory / "log")
        self._keys = (b"stream:%d" % number for number in itertools.count())

    def close(self) -> None:
        self._server.stop()

    @property
    def address(self) -> tuple[str, int]:
        """Its address."""
        return self._server.address

    def length(self, stream: str) -> int:
        """Number of entries of a stream."""
        with load.connect(self._server.address) as connection:
            connection.sendall(_command(b"XLEN", stream.encode()))
            return int(connection.recv(64).strip(b":\r\n"))

    def delete(self, key: str) -> None:
        """Delete a stream."""
        self._delete(key.encode())

    def append_rate(self, value_bytes: int, timing: load.Timing, *, window: int = WINDOW, streams: int = 1) -> float:
        """Answered XADDs per second to a fresh stream, or to several in random order."""
        keys = list(itertools.islice(self._keys, streams))
        with load.connect(self._server.address) as connection:
            commands = [_command(b"XADD", key, b"*", b"v", b"x" * value_bytes) for key in keys]
            per_chunk = max(1, min(CHUNK_BYTES // len(commands[0]), window // 4))
            try:
                return load.pipelined_rate(
                    connection, load.chunks_of(commands, per_chunk), _ReplyCounter(), window=window, timing=timing
                )
            finally:
                self._delete(*keys)

    def round_trips(self, value_bytes: int, timing: load.Timing) -> list[float]:
        """XADD one at a time; sorted microseconds to the reply."""
        key = next(self._keys)
        with load.connect(self._server.address) as connection:
            one = _command(b"XADD", key, b"*", b"v", b"x" * value_bytes)

            def await_reply() -> None:
                reply = b""
                while reply.count(b"\n") < 2:
                    reply += connection.recv(4096)
                if reply.startswith(b"-"):
                    raise load.LoadError(f"redis-server refused: {reply!r}")

            try:
                return load.one_at_a_time(lambda: connection.sendall(one), await_reply, timing)
            finally:
                self._delete(key)

    def _delete(self, *keys: bytes) -> None:
        with load.connect(self._server.address) as connection:
            connection.sendall(_command(b"UNLINK", *keys))
            connection.recv(64)


class _ReplyCounter:
    """Counts XADD replies: bulk strings, so two lines each."""

    def __init__(self) -> None:
        self._lines = 0

    def __call__(self, buffer: bytearray, received: int) -> int:
        if buffer.find(b"-ERR", 0, received) >= 0 or buffer.find(b"-MISCONF", 0, received) >= 0:
            raise load.LoadError(f"redis-server refused: {bytes(buffer[: min(received, 300)])!r}")
        lines = self._lines + buffer.count(b"\n", 0, received)
        self._lines = lines & 1
        return lines >> 1


def _command(*words: bytes) -> bytes:
    """One command in the server's request format."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
