"""TLS over a connected socket, with the non-blocking calls that one without TLS has. Server and client use the same.

Whose certificates are trusted is said by the context; what is sent is not known here. Many records are taken and made
at a time: a call for each of 16 KiB would cost as much as their encryption.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from shards.chunks import Readable

_RECEIVED_AT_ONCE_BYTES: Final = 256 * 1024
_SENT_AT_ONCE_BYTES: Final = 128 * 1024


class TlsSocket:
    """A non-blocking socket that encrypts. One task receives and one sends; `handshake` comes before both.

    Args:
        sock: Connected; it is owned by this from now on.
        context: Certificates and whom to trust.
        server_hostname: Whom a client expects at the other end; None for a server.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        sock.setblocking(False)
        self._socket = context.wrap_socket(
            sock,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
            do_handshake_on_connect=False,
        )

    def fileno(self) -> int:
        """Number of the descriptor, to wait for."""
        return self._socket.fileno()

    @property
    def peer_name(self) -> str:
        """Common name of the certificate that the peer showed, and that was checked; empty if it showed none."""
        return common_name(self._socket.getpeercert())

    async def handshake(self) -> None:
        """Agree on keys.

        Raises:
            OSError: The peer is gone, or does not accept our certificate, or we do not accept its.
        """
        while True:
            try:
                self._socket.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._socket)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._socket)
            else:
                return

    def recv_into(self, view: memoryview) -> int:
        """Receive what is there into ``view``; 0 when the peer has ended its side.

        Raises:
            BlockingIOError: Nothing is there: wait until the socket is readable.
            OSError: The connection is broken.
        """
        received = 0
        limit = min(len(view), _RECEIVED_AT_ONCE_BYTES)
        while received < limit:
            try:
                size = self._socket.recv_into(view[received:limit])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                # Keys that are renewed while the peer takes nothing hold up that peer alone.
                break
            if not size:
                return received
            received += size
        if not received:
            raise BlockingIOError
        return received

    def sendmsg(self, buffers: Sequence[Readable]) -> int:
        """Send the beginning of ``buffers``; gives how many bytes went.

        After a call that did not send everything the next one must begin where it ended, with no less.

        Raises:
            BlockingIOError: Nothing goes: wait until the socket is writable.
            OSError: The connection is broken.
        """
        # Small frames share a record, and what was tried once is tried again with the same bytes, as TLS asks.
        data = memoryview(_beginning(buffers))
        sent = 0
        while sent < len(data):
            try:
                sent += self._socket.send(data[sent:])
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
                break
        if not sent and data:
            raise BlockingIOError
        return sent

    def say_end(self) -> socket.socket:
        """Tell the peer that nothing more comes, as TLS has it; gives the socket, to close."""
        # Without an answer it is said all the same, and a peer that is gone needs not hear it.
        with suppress(OSError, ValueError):
            self._socket.unwrap()
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
