"""PostgreSQL for exports: a database of the tests' own, its driver, and a way there that loses answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.sinks.postgresql_server import HOST, PASSWORD, USER, shared_server

DRIVER: Final = Path("/usr/share/java/postgresql.jar")
"""Where Debian's package libpostgresql-jdbc-java has it; scripts/install-peers installs that."""
_COMMITTED: Final = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""What the server answers to a COMMIT that it has done."""


def driver_path() -> str:
    """The Java archives of drivers, for Spark; empty if there are none."""
    return os.environ.get("JOURNAL_TEST_CLASSPATH") or (str(DRIVER) if DRIVER.exists() else "")


def empty_database() -> tuple[str, int]:
    """Name and port of a database with nothing in it; skips the test without PostgreSQL or its driver."""
    if not driver_path():
        pytest.skip("the JDBC driver of PostgreSQL is not installed (Debian: libpostgresql-jdbc-java)")
    server = shared_server()
    return server.clear_database(), server.port


def url_of(database: str, port: int) -> str:
    parameters = f"user={USER}&password={PASSWORD}&sslmode=disable&gssEncMode=disable"
    return f"jdbc:postgresql://{HOST}:{port}/{database}?{parameters}"


@contextmanager
def losing_commits(port: int, after: bytes, count: int = 1) -> Iterator[int]:
    """A way to PostgreSQL on which connections break when a COMMIT was done and before its answer comes.

    Args:
        port: Where the server listens.
        after: Only on connections that have sent this before.
        count: How many of them.

    Yields:
        The port to connect to instead; at the end of the block so many answers must have been lost.
    """
    way = _LossyWay(port, after, count)
    way.start()
    try:
        yield way.port
    finally:
        way.stop()
    assert way.left == 0, f"{way.left} of {count} COMMITs after {after!r} never came"


class _LossyWay:
    def __init__(self, port: int, after: bytes, count: int) -> None:
        self._to = port
        self._after = after
        self._lock = threading.Lock()
        self.left = count
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def start(self) -> None:
        self._run(self._accept)

    def stop(self) -> None:
        # A thread that waits in accept() or recv() wakes up then.
        for each in (self._listener, *self._sockets):
            _shut(each)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._sockets):
            each.close()

    def _run(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((HOST, self._to))
            self._sockets += [client, server]
            marked = threading.Event()
            self._run(self._forward, client, server, marked)
            self._run(self._answer, server, client, marked)

    def _forward(self, client: socket.socket, server: socket.socket, marked: threading.Event) -> None:
        tail = b""
        while data := _received(client):
            if self._after in tail + data:
                marked.set()
            tail = (tail + data)[-len(self._after) :]
            if not _sent(server, data):
                break
        _shut(server)

    def _answer(self, server: socket.socket, client: socket.socket, marked: threading.Event) -> None:
        while data := _received(server):
            if marked.is_set() and _COMMITTED in data and self._take():
                break
            if not _sent(client, data):
                break
        _shut(client)
        _shut(server)

    def _take(self) -> bool:
        with self._lock:
            if not self.left:
                return False
            self.left -= 1
            return True


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 16)
    except OSError:
        return b""


def _sent(sock: socket.socket, data: bytes) -> bool:
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
