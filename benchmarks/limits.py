"""The best rates of this machine, without a server: a loopback copy, and synced writes to a file.

Run as a module it is the sending process of the loopback copy.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks import load, processes

FILE_BYTES = 256 << 20
COPY_BYTES = 1 << 20


def loopback_copy_bytes_per_s(timing: load.Timing) -> float:
    """Bytes per second that ``sendall`` in one process moves to ``recv_into`` in another, 1 MiB at a time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20.0)
        port = listener.getsockname()[1]
        sender = subprocess.Popen(processes.python_module("benchmarks.limits", str(port)))
        try:
            connection, _ = listener.accept()
            with connection:
                return received_bytes_per_s(connection, timing)
        finally:
            sender.wait(20.0)


def received_bytes_per_s(connection: socket.socket, timing: load.Timing) -> float:
    """Receive into one reused buffer for the given time and return the rate."""
    buffer = bytearray(COPY_BYTES)
    total = 0
    clock = load.RateClock(timing)
    while not clock.ended(total):
        received = connection.recv_into(buffer)
        if not received:
            raise load.LoadError("the sending process ended early")
        total += received
    return clock.rate()


class SyncedFile:
    """A pre-zeroed file that is rewritten in place, each write followed by ``fdatasync``.

    Args:
        path: The file; it is created, and should be on the file system of the servers under test.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        zeros = bytes(4 << 20)
        for position in range(0, FILE_BYTES, len(zeros)):
            os.pwritev(self._descriptor, [zeros], position)
        os.fsync(self._descriptor)
        self._position = 0

    def close(self) -> None:
        os.close(self._descriptor)

    def bytes_per_s(self, write_bytes: int, timing: load.Timing) -> float:
        """Bytes per second of sequential synced writes of the given size."""
        data = os.urandom(write_bytes)
        total = 0
        clock = load.RateClock(timing)
        while not clock.ended(total):
            self._write_synced(data)
            total += write_bytes
        return clock.rate()

    def latencies(self, write_bytes: int, timing: load.Timing) -> list[float]:
        """Sorted microseconds of single synced writes, one after the other."""
        data = os.urandom(write_bytes)
        return load.one_at_a_time(lambda: self._write_synced(data), lambda: None, timing)

    def _write_synced(self, data: bytes) -> None:
        if self._position + len(data) > FILE_BYTES:
            self._position = 0
        written = os.pwritev(self._descriptor, [data], self._position)
        if written != len(data):
            raise load.LoadError(f"pwritev wrote {written} of {len(data)} bytes")
        os.fdatasync(self._descriptor)
        self._position += len(data)


def _send_until_closed(port: int) -> None:
    """Send 1 MiB at a time until the receiver closes."""
    data = os.urandom(COPY_BYTES)
    with load.connect(("127.0.0.1", port)) as connection:
        connection.settimeout(None)
        try:
            while True:
                connection.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return


if __name__ == "__main__":
    _send_until_closed(int(sys.argv[1]))
