"""Connections that rest: nothing has come from the client for a while, and no task waits for what comes next.

A task that waits for bytes takes nearly as much memory as all the rest of an idle connection. One task receives here
for all clients that rest. A connection gets a task again when it has to wait for something, when it ends, and when its
client sends much.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

import trio

from broker_adapter.mqtt.transport.streams import receive_nowait

_RECEIVED_AT_ONCE: Final = 64 * 1024
_CONNECTIONS_AT_ONCE: Final = 64

PeerT = TypeVar("PeerT")


class Wakes(Protocol):
    """Gives a connection that rests a task."""

    def wake(self) -> None:
        """Have `MayRest.run` called soon. Only the first call counts."""


class MayRest(Protocol):
    """A connection that may rest."""

    def receive_resting(self, data: bytes) -> bool:
        """Handle bytes of the client; returns whether the connection goes on resting. Never raises an error."""

    def rests(self, until: Wakes) -> None:
        """It rests from now on, until `receive_resting` returns false or it wakes itself."""

    async def run(self) -> bool:
        """Serve the client; returns whether the connection rests now. Otherwise it has ended."""


class _Resting(Generic[PeerT]):
    """One connection that rests."""

    __slots__ = ("_connections", "connection", "peer", "sock")

    def __init__(
        self,
        connections: RestingConnections[PeerT],
        connection: MayRest,
        sock: socket.socket,
        peer: PeerT,
    ) -> None:
        self._connections = connections
        self.connection = connection
        self.sock = sock
        self.peer = peer

    def wake(self) -> None:
        self._connections.wake(self)


class RestingConnections(Generic[PeerT]):
    """The connections of one process that rest.

    Args:
        start: Called with the connection, its socket and its peer when a connection that rests needs a task.

    Attributes:
        is_possible: Whether connections can rest: it needs epoll, which only Linux has.
    """

    def __init__(self, start: Callable[[MayRest, socket.socket, PeerT], None]) -> None:
        self.is_possible = hasattr(select, "epoll")
        self._start = start
        # By the number of the socket.
        self._resting: dict[int, _Resting[PeerT]] = {}
        self._epoll: select.epoll | None = None
        self._is_ending = False

    def __len__(self) -> int:
        """Number of connections that rest."""
        return len(self._resting)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Receive for the connections that rest, until cancelled; then wake all of them."""
        if not self.is_possible:
            task_status.started()
            return
        with select.epoll() as self._epoll:
            task_status.started()
            try:
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    for number, _events in self._epoll.poll(0, _CONNECTIONS_AT_ONCE):
                        # What one client sent may have given another one a task, or ended it.
                        if resting := self._resting.get(number):
                            self._receive(resting)
            finally:
                self._is_ending = True
                for resting in list(self._resting.values()):
                    self.wake(resting)

    def add(self, connection: MayRest, sock: socket.socket, peer: PeerT) -> None:
        """Let a connection rest.

        REQUIRES: `run` has started, and `is_possible`.
        """
        if self._is_ending:
            self._start(connection, sock, peer)
            return
        assert self._epoll is not None
        number = sock.fileno()
        resting = _Resting(self, connection, sock, peer)
        try:
            # Bytes that have arrived meanwhile count, too.
            self._epoll.register(number, select.EPOLLIN | select.EPOLLRDHUP)
        except OSError:
            # The system's limit of watched sockets is reached: this connection keeps a task.
            self._start(connection, sock, peer)
            return
        self._resting[number] = resting
        connection.rests(resting)

    def _receive(self, resting: _Resting[PeerT]) -> None:
        try:
            data = receive_nowait(resting.sock, _RECEIVED_AT_ONCE)
        except OSError:
            # The connection is broken. Its task will notice that, too.
            data = b""
        if data is None or (data and resting.connection.receive_resting(data)):
            return
        self.wake(resting)

    def wake(self, resting: _Resting[PeerT]) -> None:
        """Give a connection a task again."""
        number = resting.sock.fileno()
        if self._resting.get(number) is resting:
            del self._resting[number]
            assert self._epoll is not None
            self._epoll.unregister(number)
            self._start(resting.connection, resting.sock, resting.peer)
