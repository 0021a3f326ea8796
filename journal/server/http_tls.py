"""TLS for the HTTP listener, below a library that takes one context for as long as it serves.

Every new connection gets the certificates of its moment, and who comes in the clear is told so over HTTP.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Self

import structlog

from journal.server.encryption import bad_request, speaks_tls

_IN_THE_CLEAR = "HTTP_REQUEST"

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class RenewedTls(ssl.SSLContext):
    """A context that is another one for every connection.

    Args:
        current: Gives the one for a new connection.
    """

    _current: Callable[[], ssl.SSLContext | None]

    def __new__(cls, current: Callable[[], ssl.SSLContext | None]) -> Self:
        self = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        self._current = current
        return self

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection; see the standard library."""
        context = self._current()
        assert context is not None  # there are certificates as long as it serves
        # Other listeners use the same context.
        context.sslobject_class = _Connection
        begun = context.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        context.sslobject_class = ssl.SSLObject
        assert isinstance(begun, _Connection)
        begun.outgoing = outgoing
        return begun


class _Connection(ssl.SSLObject):
    """One connection. Nobody waits for the end of a handshake that was not begun."""

    outgoing: ssl.MemoryBIO
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            log.info("TLS handshake failed", listener="http", reason=str(error))
            if error.reason != _IN_THE_CLEAR:
                raise
            self._failure = error
            self.outgoing.write(bad_request(speaks_tls("http")))
            # So that this is sent; then the peer goes, or the connection ends with the time for its handshake.
            raise ssl.SSLWantReadError from error
