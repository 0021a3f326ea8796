"""Byte streams to clients: TCP, TLS over it, and WebSocket over either. Which bytes they carry is not known here.

All of them are `trio.abc.Stream`, so whoever talks to a client can be tested with a stream in memory.
"""

from __future__ import annotations

import select
import socket
import ssl
from typing import Final, Protocol, runtime_checkable

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from journal.net.listening import linger

_RECEIVE_BYTES: Final = 256 * 1024
_UNSUPPORTED_DATA: Final = 1003
_GOODBYE_S: Final = 1.0

_buffer: Final = memoryview(bytearray(_RECEIVE_BYTES))
"""Every socket is read into it, and what came is copied out before anything else can run: a buffer of one's own for
each of many idle connections, or a new one for each read, would cost more than the copy."""


_PEER_LEFT: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""The last of these is Linux's; where it is missing, a peer has left when it has reset the connection."""


@runtime_checkable
class KnowsPeer(Protocol):
    """A stream that can tell of the end before everything that came earlier is received."""

    def has_peer_left(self) -> bool:
        """Whether the peer has ended its side."""


class TcpStream(trio.abc.Stream):
    """A connected, non-blocking socket. One task may receive while another one sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._is_sending = False
        self._is_closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what is there, at least one byte; nothing once the peer has ended its side.

        A cancelled call has received nothing.
        """
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {max_bytes}")
        self._check_open()
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            data = self._receive_nowait(max_bytes)
            if data is not None:
                await trio.lowlevel.cancel_shielded_checkpoint()
                return data
            while data is None:
                await trio.lowlevel.wait_readable(self._socket)
                # Closing may have come between, and what was readable belongs to it then.
                self._check_open()
                data = self._receive_nowait(max_bytes)
        except OSError as error:
            raise self._broken(error) from error
        return data

    def _receive_nowait(self, max_bytes: int | None) -> bytes | None:
        view = _buffer[:max_bytes]
        try:
            return bytes(view[: self._socket.recv_into(view)])
        except BlockingIOError:
            return None

    def has_peer_left(self) -> bool:
        """Whether the peer has ended its side, though what it sent before may wait to be received."""
        if self._is_closed:
            return True
        poll = select.poll()
        poll.register(self._socket, _PEER_LEFT)
        return bool(poll.poll(0))

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Send what the system takes at once.

        Returns:
            How many bytes went; the rest needs `send_all`.
        """
        self._check_open()
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broken(error) from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. A cancelled call may have sent a part."""
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
            raise trio.ClosedResourceError("the connection was closed on our side")

    def _check_sendable(self) -> None:
        self._check_open()
        if self._is_sending:
            raise trio.BusyResourceError("another task is sending")

    async def aclose(self) -> None:
        """Close in such a way that what was sent last still reaches the peer; cancelled, at once."""
        try:
            if not self._is_closed:
                self._stop()
                await linger(self._socket)
            await trio.lowlevel.checkpoint()
        finally:
            self._socket.close()

    def close_nowait(self) -> None:
        """Close at once; what the peer sends after this resets the connection."""
        if not self._is_closed:
            self._stop()
        self._socket.close()

    def _stop(self) -> None:
        self._is_closed = True
        # Whoever receives or sends on it meanwhile is told.
        trio.lowlevel.notify_closing(self._socket)

    def _broken(self, error: OSError) -> Exception:
        if self._is_closed:
            return trio.ClosedResourceError("the connection was closed on our side")
        return trio.BrokenResourceError(error.strerror)


class TlsStream(trio.abc.Stream):
    """TLS over a stream, after its handshake."""

    def __init__(self, stream: trio.SSLStream[TcpStream]) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """As `TcpStream.receive_some`. A peer that ends without saying so by the rules of TLS is gone all the same."""
        try:
            return await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError as error:
            if not isinstance(error.__cause__, ssl.SSLEOFError):
                raise
            # Many clients close without a `close_notify`; MQTT itself tells which packet was the last.
            return b""

    def has_peer_left(self) -> bool:
        """As `TcpStream.has_peer_left`; whether it said so by the rules of TLS does not matter."""
        return self._stream.transport_stream.has_peer_left()

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Nothing goes at once: it has to be encrypted first."""
        return 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Say the end in both protocols, for a peer that may not listen any more."""
        with trio.move_on_after(_GOODBYE_S) as waiting:
            await self._stream.aclose()
        if waiting.cancelled_caught:
            await trio.aclose_forcefully(self._stream.transport_stream)


class WebSocketStream(trio.abc.Stream):
    """The bytes of binary messages in a row: where one ends means nothing (MQTT 5, section 6)."""

    def __init__(self, websocket: WebSocketConnection, below: KnowsPeer | None = None) -> None:
        self._websocket = websocket
        self._below = below
        self._rest = memoryview(b"")

    def has_peer_left(self) -> bool:
        """As `TcpStream.has_peer_left`."""
        return self._websocket.closed is not None or (self._below is not None and self._below.has_peer_left())

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """As `TcpStream.receive_some`. A text message ends the stream, as the standard asks."""
        while not self._rest:
            try:
                message = await self._websocket.get_message()
            except ConnectionClosed:
                return b""
            if isinstance(message, str):
                with trio.move_on_after(_GOODBYE_S):
                    await self._websocket.aclose(_UNSUPPORTED_DATA, "MQTT takes binary messages alone")
                return b""
            self._rest = memoryview(message)
        data = self._rest[:max_bytes]
        self._rest = self._rest[len(data) :]
        return bytes(data)

    def send_nowait(self, data: bytes | bytearray | memoryview) -> int:
        """Nothing goes at once: a message needs to be framed and sent as a whole."""
        return 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it as one message."""
        try:
            await self._websocket.send_message(bytes(data))
        except ConnectionClosed as error:
            raise trio.BrokenResourceError("the WebSocket is closed") from error

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        with trio.move_on_after(_GOODBYE_S):
            await self._websocket.aclose()
