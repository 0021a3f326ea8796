"""A byte stream to the server, over TCP or over binary WebSocket messages. No framing here.

Every network error is raised as `ConnectionLostError`. trio-websocket is imported only if an address needs it, so a
broker that uses TCP needs only trio.
"""

from __future__ import annotations

import math
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from journal.client.address import Address
from journal.client.opening_stream import OpeningStream
from journal.client.peer_diagnosis import check_answer, closed_without_answer, no_tls, not_a_websocket
from journal.net.protocol_sniffing import ENOUGH_BYTES
from journal.net.tls_sockets import TlsSocket
from journal.protocol import RemoteProtocolError
from journal.protocol.errors import AuthenticationError, ConnectionLostError
from shards.errors import StorageError

# The frame parser has the actual limit, from HELLO; this one only bounds a single message.
_MAX_MESSAGE_BYTES: Final = 256 << 20

# How the library describes bytes that are not TLS; versions of it differ.
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "PACKET_LENGTH_TOO_LONG")

_BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Exceptions of a connection that has ended in any way."""


_GATHERED_BYTES: Final = 4096
"""Parts that are as long, on average, are sent from where they are; shorter ones are joined."""
_MOST_GATHERED: Final = 1024
"""IOV_MAX of Linux: the kernel refuses more at once."""


class Transport(Protocol):
    """The bytes of one connection. One task receives, one task sends; a third one may close it."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into ``buffer`` and return how many; 0 when the peer has ended the stream."""

    async def send(self, parts: list[bytes]) -> None:
        """Send all parts, one after the other. If cancelled, an unknown part is sent: close the transport then."""

    def send_nowait(self, data: bytes) -> int:
        """Send what is possible at once, while no `send` is running; returns the number of bytes. Raises no error."""

    async def aclose(self) -> None:
        """Close without waiting for the peer."""


class TcpTransport:
    """Frames directly on a TCP stream."""

    def __init__(self, stream: trio.SocketStream, address: Address) -> None:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = stream
        self._socket = stream.socket
        self._address: Address | None = address

    async def receive_into(self, buffer: memoryview) -> int:
        if self._socket.fileno() < 0:
            # Waiting for a closed socket raises a ValueError.
            raise ConnectionLostError("the connection was closed by this side")
        try:
            # Waits first: after an answer there is usually nothing more to read, and trying costs as much as waiting.
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                try:
                    received = os.readv(self._socket.fileno(), [buffer])
                except BlockingIOError:
                    continue
                if self._address is not None:
                    self._look_at(self._address, buffer[:received])
                return received
        except _BROKEN as error:
            if self._address is not None:
                raise closed_without_answer(self._address) from None
            raise ConnectionLostError(f"connection lost while receiving: {error}") from error

    def _look_at(self, address: Address, first: memoryview) -> None:
        self._address = None
        check_answer(address, bytes(first[:ENOUGH_BYTES]))

    async def send(self, parts: list[bytes]) -> None:
        try:
            if len(parts) > _MOST_GATHERED or sum(map(len, parts)) < _GATHERED_BYTES * len(parts):
                await self._stream.send_all(b"".join(parts))
            else:
                await self._gather(parts)
        except _BROKEN as error:
            raise ConnectionLostError(f"connection lost while sending: {error}") from error

    async def _gather(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send parts that are so long that a copy of them costs more than the kernel's look at each."""
        while parts:
            sent = await self._socket.sendmsg(parts)
            whole = 0
            while whole < len(parts) and sent >= len(parts[whole]):
                sent -= len(parts[whole])
                whole += 1
            parts = parts[whole:]
            if sent:
                parts = [memoryview(parts[0])[sent:], *parts[1:]]

    def send_nowait(self, data: bytes) -> int:
        try:
            # trio's sockets never block, and have no method that does not yield.
            return os.write(self._socket.fileno(), data)
        except OSError:
            return 0

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


class TlsTransport:
    """Frames over TLS."""

    def __init__(self, secure: TlsSocket, address: Address) -> None:
        self._socket = secure
        self._address: Address | None = address

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            # Received bytes may be decrypted already, which makes no socket readable, so this tries first.
            await trio.lowlevel.checkpoint()
            while True:
                try:
                    received = self._socket.recv_into(buffer)
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(self._socket)
                    continue
                if self._address is not None and received:
                    address, self._address = self._address, None
                    check_answer(address, bytes(buffer[: min(received, ENOUGH_BYTES)]))
                return received
        except (OSError, trio.ClosedResourceError) as error:
            raise _lost(error, "receiving") from error

    async def send(self, parts: list[bytes]) -> None:
        try:
            await trio.lowlevel.checkpoint()
            view = memoryview(b"".join(parts))
            while view:
                try:
                    view = view[self._socket.sendmsg([view]) :]
                except BlockingIOError:
                    await trio.lowlevel.wait_writable(self._socket)
        except (OSError, trio.ClosedResourceError) as error:
            raise _lost(error, "sending") from error

    def send_nowait(self, data: bytes) -> int:
        try:
            return self._socket.sendmsg([data])
        except OSError:
            return 0

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            sock = self._socket.say_end()
            trio.lowlevel.notify_closing(sock)
            sock.close()
        await trio.lowlevel.checkpoint()


def _lost(error: Exception, doing: str) -> Exception:
    """Convert an error of TLS. A client whose certificate is refused must not try again with it."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLError) and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return AuthenticationError(
            f"the server refuses this client's certificate, or requires one: {_worded(error)}; name one that it trusts "
            "with certificate_file and key_file"
        )
    return ConnectionLostError(f"connection lost while {doing}: {error}")


def _worded(error: ssl.SSLError) -> str:
    return (getattr(error, "verify_message", "") or error.reason or str(error)).lower().replace("_", " ")


class WebSocketTransport:
    """Frames in binary messages, each with one or more complete frames."""

    def __init__(self, websocket: WebSocket, stream: trio.abc.Stream) -> None:
        self._websocket = websocket
        self._stream = stream
        self._rest = memoryview(b"")

    async def receive_into(self, buffer: memoryview) -> int:
        while not self._rest:
            try:
                message = await self._websocket.get_message()
            except _BROKEN as error:
                raise ConnectionLostError(f"WebSocket lost while receiving: {error!r}") from error
            except Exception as error:
                raise _mapped(error) from error
            if isinstance(message, str):
                raise RemoteProtocolError("the server sent a text message; frames are sent in binary messages")
            self._rest = memoryview(message)
        size_bytes = min(len(buffer), len(self._rest))
        buffer[:size_bytes] = self._rest[:size_bytes]
        self._rest = self._rest[size_bytes:]
        return size_bytes

    async def send(self, parts: list[bytes]) -> None:
        try:
            await self._websocket.send_message(b"".join(parts))
        except _BROKEN as error:
            raise ConnectionLostError(f"WebSocket lost while sending: {error!r}") from error
        except Exception as error:
            raise _mapped(error) from error

    def send_nowait(self, data: bytes) -> int:
        return 0

    async def aclose(self) -> None:
        # The closing handshake with a dead peer never ends: it has a short time limit, then the socket is closed.
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.5):
            await self._websocket.aclose()
        # trio-websocket leaves the stream open if the server closed first.
        await trio.aclose_forcefully(self._stream)


class WebSocket(Protocol):
    """The methods of trio-websocket's connection that are used here."""

    async def get_message(self) -> str | bytes: ...

    async def send_message(self, message: str | bytes) -> None: ...

    async def aclose(self, code: int = ..., reason: str | None = ...) -> None: ...


def _mapped(error: Exception) -> Exception:
    """Convert errors of trio-websocket; others are returned unchanged, since they are bugs."""
    from trio_websocket import ConnectionClosed, HandshakeError

    if isinstance(error, ConnectionClosed | HandshakeError):
        return ConnectionLostError(f"WebSocket closed: {error}")
    return error


async def open_transport(address: Address, nursery: trio.Nursery, *, reach_s: float = math.inf) -> Transport:
    """Connect. Background tasks of a WebSocket run in ``nursery``, which must outlive the transport.

    Args:
        address: The server.
        nursery: See above.
        reach_s: Bound on the TCP connection alone, before anything is sent.

    Raises:
        ConnectionLostError: No server answers there, or it is not a WebSocket server.
    """
    if address.kind in ("tcp", "tls"):
        try:
            stream = await _reach(address, reach_s)
        except OSError as error:
            raise _unanswered(address, error) from error
        return TcpTransport(stream, address) if address.kind == "tcp" else await _open_tls(address, stream)
    below: trio.abc.Stream | None = None
    try:
        below = await _reach(address, reach_s)
        if address.kind == "wss":
            context = await trio.to_thread.run_sync(address.tls_context)
            below = secure = trio.SSLStream(below, context, server_hostname=address.host, https_compatible=True)
            await _shake_hands(secure, address)
        return await _open_websocket(below, address, nursery)
    except BaseException as error:
        if below is not None:
            await trio.aclose_forcefully(below)
        if isinstance(error, OSError | trio.BrokenResourceError):
            raise _unanswered(address, error) from error
        raise


async def _reach(address: Address, within_s: float) -> trio.SocketStream:
    with trio.move_on_after(within_s):
        return await trio.open_tcp_stream(address.host, address.port)
    raise ConnectionLostError(f"nothing answers at {address.host}:{address.port} within {within_s:g} s")


async def _shake_hands(secure: trio.SSLStream[trio.SocketStream], address: Address) -> None:
    try:
        await secure.do_handshake()
    except trio.BrokenResourceError as error:
        if isinstance(error.__cause__, ssl.SSLCertVerificationError):
            raise _distrusted(address, error.__cause__) from error
        raise _not_agreed(address, error.__cause__) from None


async def _open_websocket(stream: trio.abc.Stream, address: Address, nursery: trio.Nursery) -> WebSocketTransport:
    from trio_websocket import wrap_client_stream

    opening = OpeningStream(stream)
    websocket = None
    with opening.until_refused:
        websocket = await wrap_client_stream(
            nursery,
            opening,  # type: ignore[arg-type]  # it takes any stream
            f"{address.host}:{address.port}",
            address.path,
            max_message_size=_MAX_MESSAGE_BYTES,
        )
    if websocket is None:
        raise not_a_websocket(address, opening.first)
    return WebSocketTransport(websocket, stream)


async def _open_tls(address: Address, stream: trio.SocketStream) -> TlsTransport:
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock = socket.socket(fileno=os.dup(stream.socket.fileno()))
    await trio.aclose_forcefully(stream)
    try:
        context = await trio.to_thread.run_sync(address.tls_context)
        secure = TlsSocket(sock, context, address.host)
    except BaseException:
        sock.close()
        raise
    try:
        await secure.handshake()
    except BaseException as error:
        secure.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            raise _distrusted(address, error) from error
        if isinstance(error, OSError):
            raise _not_agreed(address, error) from None
        raise
    return TlsTransport(secure, address)


def _unanswered(address: Address, error: Exception) -> ConnectionLostError:
    return ConnectionLostError(f"no server at {address}: {error}; is it running and is this its address?")


def _not_agreed(address: Address, error: BaseException | None) -> StorageError:
    """The error for a TLS handshake that failed for another reason than a certificate."""
    # Which exception a close during the handshake raises depends on the version of Python.
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        if error.reason in _NO_TLS:
            return no_tls(address)
        return ConnectionLostError(f"{address} and this client could not agree on TLS parameters: {_worded(error)}")
    return closed_without_answer(address)


def _distrusted(address: Address, error: ssl.SSLCertVerificationError) -> AuthenticationError:
    return AuthenticationError(
        f"the certificate of {address} is not trusted: {_worded(error)}; name the authority that signed it with "
        "ca_file, and use the host name that the certificate has"
    )
