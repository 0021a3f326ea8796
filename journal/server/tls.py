"""Before the first frame of a connection: the check whether it speaks what its listener does, and the TLS handshake.

A peer without TLS at a TLS listener, with TLS at another one, or with frames at one of HTTP, gets an error at once, in
its own protocol where it has one. Certificates are in `journal.access`.
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
from journal.net.protocol_sniffing import ENOUGH_BYTES, LEAST_BYTES, SniffedProtocol, is_binary, spoken_in
from journal.protocol import encode_error
from journal.server.statistics import ServerStatistics
from shards.errors import InvalidRequestError

Listener: TypeAlias = Literal["tcp", "websocket", "http"]

_ENCRYPTED: Final[dict[Listener, str]] = {"tcp": "journals://", "websocket": "journal+wss://", "http": "https://"}
_CLEAR: Final[dict[Listener, str]] = {"tcp": "journal://", "websocket": "journal+ws://", "http": "http://"}
_CLOSED: Final = "tls"

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


def speaks_tls(listener: Listener, place: str = "") -> str:
    """The error for a peer that connects without TLS."""
    return f"the {listener} listener{place} accepts only TLS; connect with {_ENCRYPTED[listener]}"


def speaks_no_tls(listener: Listener, place: str = "") -> str:
    """The error for a peer that connects with TLS."""
    return (
        f"the {listener} listener{place} does not use TLS; connect with {_CLEAR[listener]}, or configure a "
        "certificate (tls.certificate_file)"
    )


def speaks_http(listener: Listener, place: str = "") -> str:
    """The error for a peer that sends frames to a listener of HTTP, where it would wait for the rest of a request."""
    return f"the {listener} listener{place} speaks HTTP; frames over TCP go to the port of listen.tcp"


def bad_request(text: str) -> bytes:
    """An HTTP answer that refuses the request and ends the connection."""
    body = f"{text}\n".encode()
    return (
        b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )


async def speaks_alike(
    sock: socket.socket, listener: Listener, *, encrypted: bool, timeout_s: float, statistics: ServerStatistics
) -> bool:
    """Whether an accepted peer uses TLS exactly if its listener does, and sends no frames to a listener of HTTP.

    If not, the error was sent, and the caller has to close the socket. The peer's first bytes stay unread.

    Raises:
        OSError: It sent nothing in time, or has disconnected.
    """
    try:
        with trio.fail_after(timeout_s):
            first = await _first_bytes(sock)
    except trio.TooSlowError as error:
        statistics.count_closed(_CLOSED if encrypted else "protocol")
        raise TimeoutError("nothing was received") from error
    spoken, place = spoken_in(first), f" at {listens_at(sock)}"
    # A single byte of a handshake may arrive first: then the handshake itself finds out.
    if len(first) < LEAST_BYTES:
        return True
    if encrypted != (spoken is SniffedProtocol.TLS):
        reason = speaks_tls(listener, place) if encrypted else speaks_no_tls(listener, place)
    elif not encrypted and listener != "tcp" and is_binary(first):
        reason = speaks_http(listener, place)
    else:
        return True
    if listener == "tcp" and spoken in (SniffedProtocol.OTHER, SniffedProtocol.MQTT):
        answer = encode_error(0, 0, InvalidRequestError(reason))
    else:
        # A TLS client takes any text for a record of a wrong version, and reports that.
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
    """Do the TLS handshake within a time limit.

    Raises:
        OSError: It failed.
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
