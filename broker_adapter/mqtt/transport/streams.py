"""Byte streams to clients: TCP, TLS over it, and WebSocket over either. They do not look at the bytes.

All of them are `trio.abc.Stream`, so code that uses them can be tested with a stream in memory.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

import trio
from trio_websocket import ConnectionClosed

from journal.net.listening import linger
from journal.net.websocket_limits import LimitedWebSocketConnection

_RECEIVE_BYTES: Final = 256 * 1024
_UNSUPPORTED_DATA: Final = 1003
_GOODBYE_S: Final = 1.0

PEER_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
"""What the streams raise when the connection is broken, or was closed on this side."""

_buffer: Final = memoryview(bytearray(_RECEIVE_BYTES))
"""Every socket is read into this buffer, and the bytes are copied out before any other task can run: a buffer for each
of many idle connections, or a new one for each read, would cost more than the copy."""


_PEER_LEFT: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""The last of these exists on Linux; elsewhere a peer counts as gone only when it has reset the connection."""


@runtime_checkable
class KnowsPeer(Protocol):
    """A stream that can detect the peer's end before everything that came earlier is received."""

    def has_peer_left(self) -> bool:
        """Whether the peer has ended its side."""


@runtime_checkable
class LimitsUnaccepted(Protocol):
    """A stream that buffers less for a peer that was not accepted yet."""

    def watch_buffered(self, watch: Callable[[int], bool]) -> None:
        """Call ``watch`` with the number of buffered bytes when it has changed; the stream closes if that is False."""

    def peer_accepted(self) -> None:
        """The peer was authenticated and accepted."""


def receive_nowait(sock: socket.socket, max_bytes: int | None) -> bytes | None:
    """Return bytes that have arrived; None if there are none, and empty once the peer has ended its side.

    Raises:
        OSError: The connection is broken.
    """
    view = _buffer[:max_bytes]
    try:
        return bytes(view[: sock.recv_into(view)])
    except BlockingIOError:
        return None


class TcpStream(trio.abc.Stream):
    """A connected, non-blocking socket. One task may receive while another one sends."""

    __slots__ = ("_is_closed", "_is_sending", "_socket")

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._is_sending = False
        self._is_closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return bytes that have arrived, at least one; empty once the peer has ended its side.

        A cancelled call has received nothing.
        """
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        self._check_open()
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            data = receive_nowait(self._socket, max_bytes)
            if data is not None:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return data
            while data is None:
                await trio.lowlevel.wait_readable(self._socket)
                # The socket may have been closed meanwhile, and its number reused.
                self._check_open()
                data = receive_nowait(self._socket, max_bytes)
        except OSError as error:
            raise self._broken(error) from error
        return data

    def has_peer_left(self) -> bool:
        """Whether the peer has ended its side; bytes that it sent before may still wait to be received."""
        if self._is_closed:
            return True
        poll = select.poll()
        poll.register(self._socket, _PEER_LEFT)
        return bool(poll.poll(0))

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Send the bytes that the system accepts at once.

        Returns:
            How many bytes were sent; the rest needs `send_all`.
        """
        self._check_open()
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes. A cancelled call may have sent a part."""
        self._check_sendable()
        self._is_sending = True
        try:
            await trio.lowlevel.checkpoint_if_cancelled()
            with memoryview(data) as view:
                sent = self.send_nowait(view)
                if sent == len(view):
                    await trio.lowlevel.cancel_shielded_checkpoint()
                while sent < len(view):
                    await self._wait_writable()
                    sent += self.send_nowait(view[sent:])
        finally:
            self._is_sending = False

    async def wait_send_all_might_not_block(self) -> None:
        self._check_sendable()
        self._is_sending = True
        try:
            await self._wait_writable()
        finally:
            self._is_sending = False

    async def _wait_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except OSError as error:
            raise self._broken(error) from error

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("the connection was closed on this side")

    def _check_sendable(self) -> None:
        self._check_open()
        if self._is_sending:
            raise trio.BusyResourceError("another task is sending")

    async def aclose(self) -> None:
        """Close so that the bytes sent last still reach the peer; close at once if cancelled."""
        try:
            if not self._is_closed:
                self._stop()
                await linger(self._socket)
            await trio.lowlevel.checkpoint()
        finally:
            if self._socket.fileno() >= 0:
                # Another call may still wait for the peer here. It must not go on waiting on a number that the next
                # connection gets.
                trio.lowlevel.notify_closing(self._socket)
                self._socket.close()

    def _stop(self) -> None:
        self._is_closed = True
        # Wakes tasks that receive or send on it.
        trio.lowlevel.notify_closing(self._socket)

    def _broken(self, error: OSError) -> Exception:
        if self._is_closed:
            return trio.ClosedResourceError("the connection was closed on this side")
        return trio.BrokenResourceError(error.strerror)


class TlsStream(trio.abc.Stream):
    """TLS over a stream, after its handshake."""

    def __init__(self, stream: trio.SSLStream[TcpStream]) -> None:
        self._stream = stream

    @property
    def peer_certificate(self) -> object:
        """The peer's certificate, which was verified, in the form of the standard library; None if it has none."""
        return self._stream.getpeercert()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As `TcpStream.receive_some`. A peer that ends TCP without a TLS `close_notify` counts as gone, too."""
        try:
            return await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            if not isinstance(error.__cause__, ssl.SSLEOFError):
                raise
            # Many clients close without a `close_notify`; MQTT packets tell whether the data is complete.
            return b""

    def has_peer_left(self) -> bool:
        """As `TcpStream.has_peer_left`; a TLS `close_notify` is not required."""
        return self._stream.transport_stream.has_peer_left()

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Returns 0: the bytes have to be encrypted first, see `send_all`."""
        return 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Send `close_notify` and close, for a peer that may not read any more."""
        with trio.move_on_after(_GOODBYE_S) as waiting:
            await self._stream.aclose()
        if waiting.cancelled_caught:
            await trio.aclose_forcefully(self._stream.transport_stream)


class WebSocketStream(trio.abc.Stream):
    """The payloads of binary messages as one byte stream; message boundaries mean nothing (MQTT 5, section 6).

    Args:
        websocket: The WebSocket.
        below: The stream that it uses.
        on_accepted: Called when the peer was accepted.
    """

    def __init__(
        self,
        websocket: LimitedWebSocketConnection,
        below: KnowsPeer | None = None,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> None:
        self._websocket = websocket
        self._below = below
        self._on_accepted = on_accepted
        self._rest = memoryview(b"")
        self._watch: Callable[[int], bool] | None = None

    def watch_buffered(self, watch: Callable[[int], bool]) -> None:
        """See `LimitsUnaccepted`. A message counts from its first fragment on."""
        self._watch = watch
        self._websocket.on_held = self._count
        self._count()

    def _count(self) -> bool:
        # Only a listener watches; a client has a connection that does not count.
        return self._watch is None or self._watch(self._websocket.held_bytes + len(self._rest))

    def peer_accepted(self) -> None:
        """Accept longer messages from now on, and count no more what is buffered."""
        self._watch = None
        self._on_accepted()

    def has_peer_left(self) -> bool:
        """As `TcpStream.has_peer_left`."""
        return self._websocket.closed is not None or (self._below is not None and self._below.has_peer_left())

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As `TcpStream.receive_some`. A text message closes the connection, as the standard requires."""
        while not self._rest:
            try:
                message = await self._websocket.get_message()
            except ConnectionClosed:
                return b""
            if isinstance(message, str):
                with trio.move_on_after(_GOODBYE_S):
                    await self._websocket.aclose(_UNSUPPORTED_DATA, "MQTT needs binary messages")
                return b""
            self._rest = memoryview(message)
        data = self._rest[:max_bytes]
        self._rest = self._rest[len(data) :]
        self._count()
        return bytes(data)

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Returns 0: a message has to be framed and sent as a whole, see `send_all`."""
        return 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes as one message."""
        try:
            await self._websocket.send_message(bytes(data))
        except ConnectionClosed as error:
            raise trio.BrokenResourceError("the WebSocket is closed") from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        with trio.move_on_after(_GOODBYE_S):
            await self._websocket.aclose()
