"""TLS over a connected socket, with the non-blocking calls that one without TLS has. Server and client use the same.

Whose certificates are trusted is said by the context; what is sent is not known here. Many records are taken from the
socket, and given to it, at a time: two calls of the system for each of 16 KiB cost as much as their encryption.
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
# What lies between the socket and TLS grows to this and is kept as long as the connection.
_DECRYPTED_AT_ONCE_BYTES: Final = 32 * 1024
_RECORD_BYTES: Final = 17 * 1024
_LEAST_ROOM_BYTES: Final = 64 * 1024


class _Scratch(threading.local):
    """Where what was received lies until it is decrypted: never for longer than a call, so a thread has one."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_RECEIVED_AT_ONCE_BYTES))


_scratch: Final = _Scratch()


class TlsSocket:
    """A non-blocking socket that encrypts. One task receives and one sends; `handshake` comes before both.

    Args:
        sock: Connected; it is owned by this from now on.
        context: Certificates and whom to trust.
        server_hostname: Whom a client expects at the other end; None for a server.
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
        # Encrypted and not sent yet, and how many bytes of what was to be sent that is.
        self._unsent = memoryview(b"")
        self._owed_bytes = 0

    def fileno(self) -> int:
        """Number of the descriptor, to wait for."""
        return self._socket.fileno()

    @property
    def peer_name(self) -> str:
        """Common name of the certificate that the peer showed, and that was checked; empty if it showed none."""
        return common_name(self._tls.getpeercert())

    @property
    def holds_some(self) -> bool:
        """Whether something was received that nobody has taken: the descriptor need not become readable for it."""
        return bool(self._incoming.pending or self._tls.pending())

    async def handshake(self) -> None:
        """Agree on keys.

        Raises:
            OSError: The peer is gone, or does not accept our certificate, or we do not accept its.
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
                    # Why, for the peer.
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
        """Receive into the thread's scratch, where it lies for the length of a call; nothing is the end.

        Raises:
            OSError: Nothing is there, or never will be.
        """
        view = _scratch.view
        return view[: self._socket.recv_into(view[: min(limit_bytes, len(view))])]

    def _give(self, piece: memoryview) -> None:
        if piece:
            self._incoming.write(piece)
        else:
            self._incoming.write_eof()

    def recv_into(self, view: memoryview) -> int:
        """Receive what is there into ``view``; 0 when the peer has ended its side.

        Raises:
            BlockingIOError: Nothing is there: wait until the socket is readable.
            OSError: The connection is broken.
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
            # Less than a record is no reason to stop; that this was all there is, is one.
            is_full = len(taken) == asked or not received
        if self._outgoing.pending:
            # Keys are renewed. A peer that takes nothing holds up itself alone.
            with suppress(BlockingIOError):
                self._push()
        return received

    def _decrypt(self, view: memoryview) -> tuple[int, bool]:
        """Fill ``view`` with what came; gives how many bytes, and whether the peer has ended its side."""
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
            # Who ends in the middle of a frame is found out where frames are known.
            return received, True
        except ssl.SSLError:
            # What came before it counts, and the next call meets it again.
            if not received:
                raise
        return received, False

    def sendmsg(self, buffers: Sequence[Readable]) -> int:
        """Send the beginning of ``buffers``; gives how many bytes went.

        After a call that did not send everything the next one must begin where it ended, with no less.

        Raises:
            BlockingIOError: Nothing goes: wait until the socket is writable.
            OSError: The connection is broken.
        """
        if not self._owed_bytes:
            # Small frames share a record. What is encrypted is sent as it is, however long that takes.
            data = _beginning(buffers)
            if not data:
                return 0
            self._owed_bytes = self._tls.write(data)
        self._push()
        owed, self._owed_bytes = self._owed_bytes, 0
        return owed

    def _push(self) -> None:
        """Send what is encrypted.

        Raises:
            BlockingIOError: Some is left.
        """
        if self._outgoing.pending:
            more = self._outgoing.read()
            self._unsent = memoryview(bytes(self._unsent) + more if self._unsent else more)
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]

    def say_end(self) -> socket.socket:
        """Tell the peer that nothing more comes, as TLS has it; gives the socket, to close."""
        # Without an answer it is said all the same, and a peer that is gone needs not hear it.
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


def common_name(certificate: object) -> str:
    """The common name in a certificate, as the standard library gives one; empty if it has none."""
    if not isinstance(certificate, dict):
        return ""
    return next(
        (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"),
        "",
    )
