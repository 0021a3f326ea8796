"""Listeners: accepting clients on TCP, TLS, WebSocket and secure WebSocket, within limits.

The broker gets a byte stream and the peer's address for each client; packets are decoded elsewhere. An error on one
connection does not affect others.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import attrs
import structlog
import trio

from broker_adapter.mqtt.transport.resting import MayRest, RestingConnections
from broker_adapter.mqtt.transport.streams import KnowsPeer, TcpStream, TlsStream, WebSocketStream
from journal.net.listening import accept, prepare
from journal.net.origins import Origins
from journal.net.websocket_handshake import open_websocket

SUBPROTOCOL: Final = "mqtt"
_MAX_UNACCEPTED_BYTES: Final = 256 * 1024
"""Largest WebSocket message of a client that was not accepted yet. A CONNECT may come in several messages."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker_adapter.mqtt")


@attrs.frozen(slots=True)
class Peer:
    """The other end of a connection.

    Attributes:
        address: ``HOST:PORT``.
        transport: Name of the listener: ``mqtt``, ``mqtts``, ``websocket`` or ``websockets``.
        may_rest: The handler may return the connection before its end, once it rests; see `Handler`.
        certificate: Its certificate, which was verified, in the form of the standard library; None without one.
    """

    address: str
    transport: str
    may_rest: bool = attrs.field(default=False, eq=False, repr=False)
    certificate: object = attrs.field(default=None, repr=False)

    @property
    def host(self) -> str:
        """The address without the port."""
        return self.address.rpartition(":")[0]


Handler: TypeAlias = Callable[[trio.abc.Stream, Peer], Awaitable[MayRest | None]]
"""Serves one client until its connection ends; the caller closes the stream afterwards.

If the peer's ``may_rest`` is true, it may also return the connection, as soon as that rests. The caller calls
`MayRest.run` when the connection needs a task again; the connection has to close the stream at its end.
"""
_Service: TypeAlias = Callable[[], Awaitable[MayRest | None]]


@attrs.frozen(slots=True)
class ListenerLimits:
    """Limits of what peers can occupy in the listeners.

    Attributes:
        max_connections: Of all listeners together; more are closed at once.
        handshake_timeout_s: Time for the TLS handshake, and again for the WebSocket handshake.
        max_message_bytes: Largest WebSocket message of a client that was accepted.
    """

    max_connections: int = 20_000
    handshake_timeout_s: float = 10
    max_message_bytes: int = 2 << 20


class Listeners:
    """Accepts clients and passes them to the broker.

    Args:
        handle: Serves one client.
        limits: Limits of what peers can occupy.
        tls: See the attribute.
        origins: Web pages whose scripts may connect over WebSocket; by default those of this machine.

    Attributes:
        tls: Used for new connections; it may be replaced. Needed where `mqtts` or `websockets` listens.
        connection_count: Open connections, including those in their handshake.
        by_listener: The same, by name of the listener.
        accepted_count: Connections accepted since the start, by name of the listener.
        refused_count: Connections that were closed at once because of `max_connections`.
        failed_count: Connections that ended in the TLS or WebSocket handshake.
        is_accepting: Whether new connections are accepted.
    """

    def __init__(
        self,
        handle: Handler,
        limits: ListenerLimits,
        tls: ssl.SSLContext | None = None,
        origins: Origins | None = None,
    ) -> None:
        self.tls = tls
        self._origins = origins or Origins()
        self.connection_count = 0
        self.by_listener: dict[str, int] = {}
        self.accepted_count: dict[str, int] = {}
        self.refused_count = 0
        self.failed_count = 0
        self.is_accepting = False
        self._handle = handle
        self._limits = limits
        self._resting = RestingConnections[Peer](self._resume)
        self._serve: dict[str, Callable[[socket.socket, Peer], Awaitable[MayRest | None]]] = {
            "mqtt": self._serve_tcp,
            "mqtts": self._serve_tls,
            "websocket": self._serve_websocket,
            "websockets": self._serve_secure_websocket,
        }
        self._accepting = trio.CancelScope()
        self._gone = trio.lowlevel.ParkingLot()
        self._connections: trio.Nursery
        self._is_full = False

    async def run(
        self,
        sockets: dict[str, socket.socket],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve bound sockets, by name of the listener, until cancelled."""
        async with trio.open_nursery() as self._connections:
            await self._connections.start(self._resting.run)
            self.by_listener = dict.fromkeys(sockets, 0)
            self.accepted_count = dict.fromkeys(sockets, 0)
            self.is_accepting = True
            task_status.started()
            with self._accepting:
                async with trio.open_nursery() as accepting:
                    for name, sock in sockets.items():
                        accepting.start_soon(accept, sock, partial(self._admit, name))
            await trio.sleep_forever()

    def stop_accepting(self) -> None:
        """Accept no more connections; open ones stay."""
        self.is_accepting = False
        self._accepting.cancel()

    async def wait_empty(self) -> None:
        """Wait until no connection is open."""
        while self.connection_count:
            await self._gone.park()
        await trio.lowlevel.checkpoint()

    def _admit(self, name: str, sock: socket.socket, address: str) -> bool:
        limit = self._limits.max_connections
        if self.connection_count >= limit:
            if not self._is_full:
                # Logged once until there is room again, so that a flood of connections does not flood the log.
                log.warning("connections refused", peer=address, limit="limits.max_connections", allowed=limit)
            self._is_full = True
            self.refused_count += 1
            return False
        self._is_full = False
        self.connection_count += 1
        self.by_listener[name] += 1
        self.accepted_count[name] += 1
        peer = Peer(address, name, may_rest=name == "mqtt" and self._resting.is_possible)
        self._connections.start_soon(self._contained, partial(self._serve_new, sock, peer), sock, peer)
        return True

    async def _serve_new(self, sock: socket.socket, peer: Peer) -> MayRest | None:
        prepare(sock)
        return await self._serve[peer.transport](sock, peer)

    def _resume(self, connection: MayRest, sock: socket.socket, peer: Peer) -> None:
        """Give a connection that rests a task."""

        async def serve() -> MayRest | None:
            return connection if await connection.run() else None

        self._connections.start_soon(self._contained, serve, sock, peer)

    async def _contained(self, serve: _Service, sock: socket.socket, peer: Peer) -> None:
        resting: MayRest | None = None
        try:
            resting = await serve()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            # The connection broke during the handshake or later.
            log.debug("connection broken", peer=peer.address, listener=peer.transport, reason=_reason(error))
        except Exception:
            log.exception("unexpected error", peer=peer.address, listener=peer.transport)
        finally:
            if resting is None:
                self._ended(sock, peer)
        if resting is not None:
            self._resting.add(resting, sock, peer)

    def _ended(self, sock: socket.socket, peer: Peer) -> None:
        if sock.fileno() >= 0:
            trio.lowlevel.notify_closing(sock)
            sock.close()
        self.connection_count -= 1
        self.by_listener[peer.transport] -= 1
        if not self.connection_count:
            self._gone.unpark_all()

    async def _serve_tcp(self, sock: socket.socket, peer: Peer) -> MayRest | None:
        stream = TcpStream(sock)
        connection = await self._handle(stream, peer)
        if connection is None:
            await stream.aclose()
        return connection

    async def _serve_tls(self, sock: socket.socket, peer: Peer) -> None:
        stream = await self._secure(sock)
        await self._handle(stream, attrs.evolve(peer, certificate=stream.peer_certificate))
        await stream.aclose()

    async def _serve_websocket(self, sock: socket.socket, peer: Peer) -> None:
        await self._serve_messages(TcpStream(sock), peer)

    async def _serve_secure_websocket(self, sock: socket.socket, peer: Peer) -> None:
        stream = await self._secure(sock)
        await self._serve_messages(stream, attrs.evolve(peer, certificate=stream.peer_certificate))

    async def _secure(self, sock: socket.socket) -> TlsStream:
        assert self.tls is not None  # the configuration has TLS if a listener needs it
        stream = trio.SSLStream(TcpStream(sock), self.tls, server_side=True)
        try:
            with trio.fail_after(self._limits.handshake_timeout_s):
                await stream.do_handshake()
        except (OSError, trio.BrokenResourceError, trio.TooSlowError):
            self.failed_count += 1
            raise
        return TlsStream(stream)

    async def _serve_messages(self, stream: trio.abc.Stream, peer: Peer) -> None:
        is_open = False
        below = stream if isinstance(stream, KnowsPeer) else None
        try:
            async with open_websocket(
                stream,
                max_message_bytes=min(_MAX_UNACCEPTED_BYTES, self._limits.max_message_bytes),
                handshake_timeout_s=self._limits.handshake_timeout_s,
                subprotocol=SUBPROTOCOL,
                allows_origin=self._origins.allows,
            ) as websocket:
                is_open = True
                raise_limit = partial(websocket.allow, self._limits.max_message_bytes)
                await self._handle(WebSocketStream(websocket, below, raise_limit), peer)
        except OSError:
            self.failed_count += not is_open
            raise


def _reason(error: Exception) -> str:
    cause = error.__cause__
    return str(cause if isinstance(cause, ssl.SSLError) else error) or type(error).__name__
