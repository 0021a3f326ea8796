"""The connections of the HTTP listener: their number, protocol and time limits.

Hypercorn implements HTTP/1.1 on each connection. Its own listener would accept any number of connections, and wait
without end for a peer that reads nothing, even while the server stops. The application is `journal.server.http`.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Final

import attrs
import h11
import structlog
import trio
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app

from journal.net.listening import accept
from journal.server.statistics import ServerStatistics
from journal.server.tls import shake_hands, speaks_alike

MOST_CONNECTIONS: Final = 1000
"""Few clients read health and metrics, and each connection takes a file descriptor from the other clients."""

PATIENCE_S: Final = 30.0
"""A connection is closed when its peer has read nothing for this time."""

_SENT_AT_ONCE_BYTES: Final = 64 * 1024

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@attrs.frozen
class Encryption:
    """How connections are encrypted.

    Attributes:
        current: Returns the certificates for a new connection; whether there are any does not change.
        handshake_timeout_s: A peer that has not finished its handshake in this time is disconnected.
        statistics: Counts connections that are refused because they are encrypted, or not, unlike the listener.
    """

    current: Callable[[], ssl.SSLContext | None] = lambda: None
    handshake_timeout_s: float = 10.0
    statistics: ServerStatistics = attrs.Factory(ServerStatistics)


class _PatientStream(trio.abc.HalfCloseableStream):
    """A socket whose sends have a time limit, since hypercorn's sends cannot be cancelled.

    Attributes:
        socket: The socket. Closing it ends every wait for it.
        raw: The same socket, for reading ahead its first bytes.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.raw = sock
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.socket = self._stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes.

        Raises:
            BrokenResourceError: The peer has disconnected, or reads nothing any more.
        """
        with memoryview(data) as view:
            for at in range(0, len(view), _SENT_AT_ONCE_BYTES):
                with trio.move_on_after(PATIENCE_S) as patience:
                    await self._stream.send_all(view[at : at + _SENT_AT_ONCE_BYTES])
                if patience.cancelled_caught:
                    self.socket.close()
                    raise trio.BrokenResourceError("the peer reads nothing any more")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Http1(H11Protocol):
    """HTTP/1.1 only: an upgrade to HTTP/2 is not accepted."""

    async def _check_protocol(self, event: h11.Request) -> None:
        pass


class _Connection(TCPServer):
    """One connection."""

    async def _read_data(self) -> None:
        # Hypercorn's own protocol object would accept an upgrade to HTTP/2.
        made = self.protocol
        self.protocol = _Http1(  # type: ignore[assignment]
            made.app,
            made.config,
            made.context,
            made.task_group,
            made.state,
            made.ssl,
            made.client,
            made.server,
            made.send,
        )
        await super()._read_data()


async def serve_connections(
    app: ASGIFramework, config: Config, sock: socket.socket, stop: trio.Event, encryption: Encryption
) -> None:
    """Accept and serve until ``stop`` is set; then requests in progress have ``config.graceful_timeout`` seconds.

    Args:
        app: The application.
        config: Settings of each connection.
        sock: The listening socket.
        stop: Ends the listener.
        encryption: How connections are encrypted.
    """
    context = WorkerContext(None)
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
    open_streams: set[_PatientStream] = set()
    gone = trio.lowlevel.ParkingLot()

    async def serve(stream: _PatientStream, peer: str) -> None:
        try:
            carried = await _encrypted(stream, encryption)
            if carried is not None:
                await _Connection(wrapped, config, context, ConnectionState({}), carried)  # type: ignore[arg-type]
        except OSError:
            # The connection broke before the first request.
            pass
        except Exception:
            # It ends this connection only.
            log.exception("unexpected error", peer=peer)
        finally:
            open_streams.discard(stream)
            stream.socket.close()
            gone.unpark_all()

    def admit(client: socket.socket, peer: str) -> bool:
        if len(open_streams) >= MOST_CONNECTIONS:
            log.warning("connection refused", peer=peer, reason=f"there are {MOST_CONNECTIONS} over HTTP already")
            return False
        stream = _PatientStream(client)
        open_streams.add(stream)
        connections.start_soon(serve, stream, peer)
        return True

    async def end() -> None:
        """Close the remaining connections at the end."""
        try:
            await trio.sleep_forever()
        finally:
            for stream in open_streams:
                stream.socket.close()

    async with trio.open_nursery() as connections:
        connections.start_soon(end)
        async with trio.open_nursery() as accepting:
            accepting.start_soon(accept, sock, admit)
            await stop.wait()
            accepting.cancel_scope.cancel()
        await context.terminated.set()
        with trio.move_on_after(config.graceful_timeout):
            while open_streams:
                await gone.park()
        connections.cancel_scope.cancel()


async def _encrypted(stream: _PatientStream, encryption: Encryption) -> trio.abc.Stream | None:
    """The stream of the connection; None if the peer was refused because it is encrypted, or not, unlike the listener.

    Raises:
        OSError: It sent nothing in time, has disconnected, or the handshake failed.
    """
    tls, statistics = encryption.current(), encryption.statistics
    if not await speaks_alike(
        stream.raw, "http", encrypted=tls is not None, timeout_s=encryption.handshake_timeout_s, statistics=statistics
    ):
        return None
    if tls is None:
        return stream
    secure = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
    await shake_hands(secure.do_handshake, timeout_s=encryption.handshake_timeout_s, statistics=statistics)
    return secure
