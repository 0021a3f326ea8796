"""A byte stream to the server, over TCP or over binary WebSocket messages. No framing here.

Every error of the network comes out as `ConnectionLostError`. trio-websocket is imported only when an address asks for
it, so a broker that speaks TCP needs no more than trio.
"""

from __future__ import annotations

import os
import socket
from typing import Final, Protocol

import attrs
import trio

from journal.protocol import RemoteProtocolError
from journal.protocol.errors import ConnectionLostError
from shards.errors import InvalidRequestError

DEFAULT_PORTS: Final = {"tcp": 7420, "ws": 7421, "wss": 7421}
_SCHEMES: Final = {
    "journal": "tcp",
    "tcp": "tcp",
    "journal+ws": "ws",
    "ws": "ws",
    "journal+wss": "wss",
    "wss": "wss",
}
# The frame parser has the real limit, from HELLO; this only keeps one message from being endless.
_MAX_MESSAGE_BYTES: Final = 256 << 20


@attrs.frozen(slots=True)
class Address:
    """Where the server listens: ``kind`` is ``tcp``, ``ws`` or ``wss``; ``path`` is that of the WebSocket."""

    kind: str
    host: str
    port: int
    path: str = "/"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.kind}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``host:port``, ``journal://host:port`` or ``journal+ws://host:port/path``; the port may be left out.

        Raises:
            InvalidRequestError: It is none of these.
        """
        scheme, separator, rest = text.rpartition("://")
        kind = _SCHEMES.get(scheme if separator else "journal")
        place, slash, path = rest.partition("/")
        host, _, port = place.rpartition(":")
        if ":" not in place or place.endswith("]"):
            host, port = place, ""
        host = host.strip("[]")
        if kind is None or not host or not (port.isdigit() or not port) or int(port or 1) > 65535:
            raise InvalidRequestError(
                f"address {text!r} is none of host:port, journal://host:port and journal+ws://host:port"
            )
        return cls(kind, host, int(port) if port else DEFAULT_PORTS[kind], slash + path if slash else "/")


class Transport(Protocol):
    """One connection's bytes. One task receives, one task sends; closing from a third is allowed."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer`` and return how many; 0 when the peer has ended the stream."""

    async def send(self, data: bytes) -> None:
        """Send all of ``data``. If cancelled, an unknown part is sent: the transport must then be closed."""

    def send_nowait(self, data: bytes) -> int:
        """Send what can go at once, while no `send` is under way; returns how many bytes did. Faults are for `send`."""

    async def aclose(self) -> None:
        """Close without waiting for the peer."""


class TcpTransport:
    """The frames as they are on a TCP stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = stream
        self._socket = stream.socket

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            # Waits first: after an answer there is usually nothing more to read, and trying costs as much as waiting.
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                try:
                    return os.readv(self._socket.fileno(), [buffer])
                except BlockingIOError:
                    continue
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLostError(f"connection lost while receiving: {error}") from error

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLostError(f"connection lost while sending: {error}") from error

    def send_nowait(self, data: bytes) -> int:
        try:
            # trio's sockets never block, and have no call that does not yield.
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


class WebSocketTransport:
    """The frames in binary messages, each of one or more whole frames."""

    def __init__(self, websocket: WebSocket, stream: trio.abc.Stream) -> None:
        self._websocket = websocket
        self._stream = stream
        self._rest = memoryview(b"")

    async def receive_into(self, buffer: memoryview) -> int:
        while not self._rest:
            try:
                message = await self._websocket.get_message()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionLostError(f"WebSocket lost while receiving: {error!r}") from error
            except Exception as error:
                raise _mapped(error) from error
            if isinstance(message, str):
                raise RemoteProtocolError("the server sent a text message; frames travel in binary messages")
            self._rest = memoryview(message)
        size_bytes = min(len(buffer), len(self._rest))
        buffer[:size_bytes] = self._rest[:size_bytes]
        self._rest = self._rest[size_bytes:]
        return size_bytes

    async def send(self, data: bytes) -> None:
        try:
            await self._websocket.send_message(data)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionLostError(f"WebSocket lost while sending: {error!r}") from error
        except Exception as error:
            raise _mapped(error) from error

    def send_nowait(self, data: bytes) -> int:
        return 0

    async def aclose(self) -> None:
        # The closing handshake of a dead peer never ends: a moment for a good one, then the socket goes.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.5):
            await self._websocket.aclose()
        # trio-websocket leaves the stream open when the server was the first to close.
        await trio.aclose_forcefully(self._stream)


class WebSocket(Protocol):
    """What is used of trio-websocket's connection."""

    async def get_message(self) -> str | bytes: ...

    async def send_message(self, message: str | bytes) -> None: ...

    async def aclose(self, code: int = ..., reason: str | None = ...) -> None: ...


def _mapped(error: Exception) -> Exception:
    """Errors of trio-websocket as ours; anything else unchanged, since it is a bug."""
    from trio_websocket import ConnectionClosed, HandshakeError

    if isinstance(error, ConnectionClosed | HandshakeError):
        return ConnectionLostError(f"WebSocket closed: {error}")
    return error


async def open_transport(address: Address, nursery: trio.Nursery) -> Transport:
    """Connect. Background tasks of a WebSocket run in ``nursery``, which must outlive the transport.

    Raises:
        ConnectionLostError: Nobody answers there, or not as a WebSocket server.
    """
    if address.kind == "tcp":
        try:
            return TcpTransport(await trio.open_tcp_stream(address.host, address.port))
        except OSError as error:
            raise ConnectionLostError(
                f"no server at {address}: {error}; is it running and is this its address?"
            ) from error
    from trio_websocket import wrap_client_stream

    stream: trio.abc.Stream | None = None
    try:
        if address.kind == "wss":
            stream = await trio.open_ssl_over_tcp_stream(address.host, address.port)
        else:
            stream = await trio.open_tcp_stream(address.host, address.port)
        websocket = await wrap_client_stream(
            nursery, stream, f"{address.host}:{address.port}", address.path, max_message_size=_MAX_MESSAGE_BYTES
        )
    except BaseException as error:
        if stream is not None:
            await trio.aclose_forcefully(stream)
        if isinstance(error, OSError):
            raise ConnectionLostError(
                f"no server at {address}: {error}; is it running and is this its address?"
            ) from error
        if isinstance(error, Exception):
            raise _mapped(error) from error
        raise
    return WebSocketTransport(websocket, stream)
