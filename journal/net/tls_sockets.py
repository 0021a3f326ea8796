"""TLS over a connected socket, with the same non-blocking calls as a socket without TLS; for server and client.

The context has the certificates and trusted authorities. Many TLS records are received or sent with one system call:
two calls for each of 16 KiB would cost as much as their encryption.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from shards.segments.chunks import Readable

_RECEIVED_AT_ONCE_BYTES: Final = 256 * 1024
_SENT_AT_ONCE_BYTES: Final = 64 * 1024
# The buffers between the socket and TLS grow to this size and are kept as long as the connection.
_DECRYPTED_AT_ONCE_BYTES: Final = 32 * 1024
_RECORD_BYTES: Final = 17 * 1024
_LEAST_ROOM_BYTES: Final = 64 * 1024


class _Scratch(threading.local):
    """Buffer for received bytes until they are decrypted; used only during a call, so each thread has one."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_RECEIVED_AT_ONCE_BYTES))


_scratch: Final = _Scratch()


class TlsSocket:
    """A non-blocking socket with encryption. One task receives and one sends; call `handshake` before both.

    Args:
        sock: A connected socket, which this object owns from now on.
        context: Certificates and trusted authorities.
        server_hostname: Expected name of the server; None on the server's side.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        # Encrypted bytes that are not sent yet, and the number of plain bytes that they contain.
        self._unsent = memoryview(b"")
        self._owed_bytes = 0

    def fileno(self) -> int:
        """Number of the descriptor, for waiting."""
        return self._socket.fileno()

    @property
    def peer_certificate(self) -> object:
        """The peer's certificate, which was verified, in the form of the standard library; None if it has none."""
        return self._tls.getpeercert()

    @property
    def holds_some(self) -> bool:
        """Whether received bytes are buffered, so that the descriptor need not become readable for them."""
        return bool(self._incoming.pending or self._tls.pending())

    async def handshake(self) -> None:
        """Do the TLS handshake.

        Raises:
            OSError: The peer has disconnected, or one side does not accept the other's certificate.
        """
        is_done = False
        while not is_done:
            try:
                self._tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                with suppress(OSError):
                    # Sends the peer the reason.
                    self._push()
                raise
            await self._push_all()
            if not is_done:
                await self._pull()

    async def _push_all(self) -> None:
        while True:
            try:
                self._push()
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._socket)
            else:
                return

    async def _pull(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            with suppress(BlockingIOError):
                self._give(self._take(_RECORD_BYTES))
                return

    def _take(self, limit_bytes: int) -> memoryview:
        """Receive into the thread's buffer, which is valid during the call; no bytes mean the end.

        Raises:
            OSError: Nothing is available, or the connection has broken.
        """
        view = _scratch.view
        return view[: self._socket.recv_into(view[: min(limit_bytes, len(view))])]

    def _give(self, piece: memoryview) -> None:
        if piece:
            self._incoming.write(piece)
        else:
            self._incoming.write_eof()

    def recv_into(self, view: memoryview) -> int:
        """Receive available bytes into ``view``; 0 when the peer has closed its side.

        Raises:
            BlockingIOError: Nothing is available: wait until the socket is readable.
            OSError: The connection has broken.
        """
        received, is_end = self._decrypt(view)
        is_full = True
        while is_full and not is_end and (len(view) - received >= _LEAST_ROOM_BYTES or not received):
            asked = max(_RECORD_BYTES, min(len(view) - received, _RECEIVED_AT_ONCE_BYTES))
            try:
                taken = self._take(asked)
            except OSError:
                if not received:
                    raise
                break
            for at in range(0, max(1, len(taken)), _DECRYPTED_AT_ONCE_BYTES):
                self._give(taken[at : at + _DECRYPTED_AT_ONCE_BYTES])
                size, is_end = self._decrypt(view[received:])
                received += size
            # Continue after less than a record, but not after a receive that returned all that was available.
            is_full = len(taken) == asked or not received
        if self._outgoing.pending:
            # Keys are renewed. If the peer reads nothing, only its own connection waits.
            with suppress(BlockingIOError):
                self._push()
        return received

    def _decrypt(self, view: memoryview) -> tuple[int, bool]:
        """Fill ``view`` with decrypted bytes; returns their number, and whether the peer has closed its side."""
        received = 0
        limit = len(view)
        read = self._tls.read
        try:
            while received < limit:
                size: int = read(limit - received, view[received:])  # type: ignore[assignment]
                if not size:
                    return received, True
                received += size
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            # A truncated frame is detected by the code that parses frames.
            return received, True
        except ssl.SSLError:
            # The bytes before it are valid, and the next call gets the error again.
            if not received:
                raise
        return received, False

    def sendmsg(self, buffers: Sequence[Readable]) -> int:
        """Send the beginning of ``buffers``; returns the number of bytes.

        After a call that did not send everything, the next call must begin where it ended, with at least as much.

        Raises:
            BlockingIOError: Nothing can be sent: wait until the socket is writable.
            OSError: The connection has broken.
        """
        if not self._owed_bytes:
            # Small frames share a record. Encrypted bytes are sent unchanged, however long that takes.
            data = _beginning(buffers)
            if not data:
                return 0
            self._owed_bytes = self._tls.write(data)
        self._push()
        owed, self._owed_bytes = self._owed_bytes, 0
        return owed

    def _push(self) -> None:
        """Send encrypted bytes.

        Raises:
            BlockingIOError: Some bytes are left.
        """
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._unsent = memoryview(bytes(self._unsent) + more if self._unsent else more)
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def say_end(self) -> socket.socket:
        """Send the TLS close notification; returns the socket, which the caller closes."""
        # The answer is not awaited, and errors are ignored: the peer may have disconnected.
        with suppress(OSError, ValueError):
            self._tls.unwrap()
        with suppress(OSError):
            self._push()
        return self._socket

    def close(self) -> None:
        """Close at once."""
        self._socket.close()


def _beginning(buffers: Sequence[Readable]) -> Readable:
    if len(buffers) == 1 and len(buffers[0]) <= _SENT_AT_ONCE_BYTES:
        return buffers[0]
    data = bytearray()
    for buffer in buffers:
        data += memoryview(buffer)[: _SENT_AT_ONCE_BYTES - len(data)]
        if len(data) >= _SENT_AT_ONCE_BYTES:
            break
    return data
