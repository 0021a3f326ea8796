"""The connections of the HTTP listener: how many there are, what they speak, and when one is given up.

Hypercorn says the words of HTTP/1.1 on each. Its own listener would take any number of connections, and send to a peer
that reads nothing without end, also while the server stops. What is answered is `journal.server.http`.
"""

from __future__ import annotations

import socket
from typing import Final

import h11
import structlog
import trio
from hypercorn.config import Config
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app

from journal.listening import accept

MOST_CONNECTIONS: Final = 1000
"""Those who ask for health and metrics are few, and each connection takes a descriptor that a client cannot have."""

PATIENCE_S: Final = 30.0
"""A peer that has taken nothing for so long is given up."""

_SENT_AT_ONCE_BYTES: Final = 64 * 1024

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class _PatientStream(trio.abc.HalfCloseableStream):
    """A socket over which no sending waits without end. What sends over it cannot be cancelled.

    Attributes:
        socket: The socket. Closing it ends whatever waits for it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.socket = self._stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it.

        Raises:
            BrokenResourceError: The peer is gone, or takes nothing any more.
        """
        with memoryview(data) as view:
            for at in range(0, len(view), _SENT_AT_ONCE_BYTES):
                with trio.move_on_after(PATIENCE_S) as patience:
                    await self._stream.send_all(view[at : at + _SENT_AT_ONCE_BYTES])
                if patience.cancelled_caught:
                    self.socket.close()
                    raise trio.BrokenResourceError("the peer takes nothing any more")

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Http1(H11Protocol):
    """HTTP/1.1 alone: an offer to go on in HTTP/2 is not taken."""

    async def _check_protocol(self, event: h11.Request) -> None:
        pass


class _Connection(TCPServer):
    """One connection."""

    async def _read_data(self) -> None:
        # What hypercorn made would go over to HTTP/2 when it is asked to.
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


async def serve_connections(app: ASGIFramework, config: Config, sock: socket.socket, stop: trio.Event) -> None:
    """Accept and serve until told to stop; then give what is under way ``config.graceful_timeout``.

    Args:
        app: Answers.
        config: Settings of each connection, and the certificates.
        sock: Listens.
        stop: Ends it.
    """
    context, tls = WorkerContext(None), config.create_ssl_context()
    wrapped = wrap_app(app, config.wsgi_max_body_size, "asgi")
    open_streams: set[_PatientStream] = set()
    gone = trio.lowlevel.ParkingLot()

    async def serve(stream: _PatientStream, peer: str) -> None:
        carried: trio.abc.Stream = stream
        if tls is not None:
            carried = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
        try:
            await _Connection(wrapped, config, context, ConnectionState({}), carried)  # type: ignore[arg-type]
        except Exception:
            # It ends this connection, no other.
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
        """Close at the end what would not end by itself."""
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
