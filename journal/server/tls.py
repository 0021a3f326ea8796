"""Before a connection speaks: whether it is encrypted as its listener is, and the TLS handshake.

Who comes in the clear where TLS is spoken, or with TLS where none is, is told so at once, in words that it understands.
Certificates are `journal.access`'s, what follows the handshake is the server's.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal, TypeAlias

import structlog
import trio

from journal.net.listening import linger, listens_at
from journal.net.protocol_sniffing import ENOUGH_BYTES, LEAST_BYTES, SniffedProtocol, spoken_in
from journal.protocol import encode_error
from journal.server.statistics import ServerStatistics
from shards.errors import InvalidRequestError

Listener: TypeAlias = Literal["tcp", "websocket", "http"]

_ENCRYPTED: Final[dict[Listener, str]] = {"tcp": "journals://", "websocket": "journal+wss://", "http": "https://"}
_CLEAR: Final[dict[Listener, str]] = {"tcp": "journal://", "websocket": "journal+ws://", "http": "http://"}
_CLOSED: Final = "tls"

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


def speaks_tls(listener: Listener, place: str = "") -> str:
    """What a peer is told that comes in the clear."""
    return f"the {listener} listener{place} speaks TLS alone; connect with {_ENCRYPTED[listener]}"


def speaks_no_tls(listener: Listener, place: str = "") -> str:
    """What a peer is told that comes with TLS."""
    return (
        f"the {listener} listener{place} speaks no TLS; connect with {_CLEAR[listener]}, or give the server a "
        "certificate (tls.certificate_file)"
    )


def bad_request(text: str) -> bytes:
    """An answer of HTTP, the last on its connection, for a peer whose request is not looked at."""
    body = f"{text}\n".encode()
    return (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )


async def is_encrypted_alike(
    sock: socket.socket, listener: Listener, *, encrypted: bool, timeout_s: float, statistics: ServerStatistics
) -> bool:
    """Whether a peer that was accepted speaks TLS if its listener does, and none if it does not.

    If not it is told, and nothing is left to do but to close. Its first bytes are looked at and not taken.

    Raises:
        OSError: It sent nothing in time, or is gone.
    """
    try:
        with trio.fail_after(timeout_s):
            first = await _first_bytes(sock)
    except trio.TooSlowError as error:
        statistics.count_closed(_CLOSED if encrypted else "protocol")
        raise TimeoutError("nothing came") from error
    spoken, place = spoken_in(first), f" at {listens_at(sock)}"
    # One byte of a handshake may come alone: the handshake itself will find out.
    if encrypted == (spoken is SniffedProtocol.TLS) or len(first) < LEAST_BYTES:
        return True
    reason = speaks_tls(listener, place) if encrypted else speaks_no_tls(listener, place)
    if listener == "tcp" and spoken is SniffedProtocol.OTHER:
        answer = encode_error(0, 0, InvalidRequestError(reason))
    else:
        # To a TLS client any text is the record of a wrong version, which is what it says then.
        answer = bad_request(reason)
    statistics.count_closed(_CLOSED)
    log.warning("connection refused", reason=reason)
    with suppress(OSError):
        sock.send(answer)
    await linger(sock)
    return False


async def _first_bytes(sock: socket.socket) -> bytes:
    while True:
        try:
            return sock.recv(ENOUGH_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)


async def shake_hands(
    handshake: Callable[[], Awaitable[None]], *, timeout_s: float, statistics: ServerStatistics
) -> None:
    """Agree on keys in time.

    Raises:
        OSError: That cannot be.
    """
    try:
        with trio.fail_after(timeout_s):
            await handshake()
    except trio.TooSlowError as error:
        statistics.count_closed(_CLOSED)
        raise TimeoutError("the TLS handshake took too long") from error
    except (ssl.SSLError, trio.BrokenResourceError) as error:
        statistics.count_closed(_CLOSED)
        log.info("TLS handshake failed", reason=_reason(error))
        raise ConnectionAbortedError("the TLS handshake failed") from error


def _reason(error: Exception) -> str:
    cause = error.__cause__
    return str(cause if isinstance(cause, ssl.SSLError) else error) or type(error).__name__
