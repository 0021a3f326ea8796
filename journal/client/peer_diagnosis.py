"""Errors for a peer that is not the server that the address describes: what answers there, and what can be done.

An answer that shows that the address is wrong is an `InvalidRequestError`, after which the client stops trying. If it
may come from a server that starts or stops, it is a `ConnectionLostError`.
"""

from __future__ import annotations

from typing import Final

from journal.client.address import DEFAULT_PORTS, Address
from journal.net.protocol_sniffing import SniffedProtocol, spoken_in
from journal.protocol.errors import ConnectionLostError
from shards.errors import InvalidRequestError, StorageError

_TWIN: Final = {"tcp": "journals://", "tls": "journal://", "ws": "journal+wss://", "wss": "journal+ws://"}
_SHOWN_CHARACTERS: Final = 300
_SERVER_ERRORS: Final = 500


def check_answer(address: Address, first: bytes) -> None:
    """Check the first bytes of an answer over TCP without TLS; none if the connection was closed.

    Raises:
        InvalidRequestError: These are not frames of the protocol.
        ConnectionLostError: The connection was closed before anything was received.
    """
    if not first:
        raise closed_without_answer(address)
    error = other_server(address, spoken_in(first))
    if error is not None:
        raise error


def other_server(address: Address, spoken: SniffedProtocol) -> InvalidRequestError | None:
    """The error for a port where another protocol is used than that of the address; None for an unknown one."""
    if spoken is SniffedProtocol.TLS and not address.is_encrypted:
        return _wants_tls(address)
    # WebSocket begins with HTTP, so such an answer proves nothing for an address of WebSocket.
    if spoken is SniffedProtocol.HTTP and address.kind in ("tcp", "tls"):
        secure = "s" if address.is_encrypted else ""
        return InvalidRequestError(
            f"{address} uses HTTP; name the port of listen.tcp (by default {DEFAULT_PORTS['tcp']}), or write "
            f"journal+ws{secure}:// for that of listen.websocket (by default {DEFAULT_PORTS['ws']})"
        )
    if spoken is SniffedProtocol.MQTT:
        return InvalidRequestError(
            f"{address} is an MQTT broker; name the port of the journal server: its listen.tcp, by default "
            f"{DEFAULT_PORTS['tcp']}"
        )
    return None


class ClosedWithoutAnswerError(ConnectionLostError):
    """The peer closed the connection before it had sent anything: the server stops, or another program listens."""


def closed_without_answer(address: Address) -> ClosedWithoutAnswerError:
    """The error for a connection that ended before anything was received."""
    speaks = "no TLS" if address.is_encrypted else "TLS"
    return ClosedWithoutAnswerError(
        f"{address} closed the connection without an answer: the server is stopping or has too many connections, or "
        f"uses {speaks}: then write {_TWIN[address.kind]}; or another program has this port, such as an MQTT broker"
    )


def no_tls(address: Address) -> InvalidRequestError:
    """The error for an answer that is not TLS."""
    return InvalidRequestError(
        f"{address} does not use TLS; write {_TWIN[address.kind]}, or configure a certificate on the server "
        "(tls.certificate_file)"
    )


def not_a_websocket(address: Address, first: bytes) -> StorageError:
    """The error for an answer that does not open a WebSocket.

    Args:
        address: The address that was used.
        first: The first bytes of the answer; empty if the connection was closed.
    """
    if not first:
        return closed_without_answer(address)
    spoken = spoken_in(first)
    if spoken is SniffedProtocol.TLS:
        return _wants_tls(address)
    if spoken is SniffedProtocol.MQTT:
        return other_server(address, spoken) or closed_without_answer(address)
    if spoken is SniffedProtocol.OTHER:
        return InvalidRequestError(f"{address} does not use WebSocket; name the port of listen.websocket")
    head, _, body = first.decode("latin-1").partition("\r\n\r\n")
    status = head.partition("\r\n")[0].partition(" ")[2].strip()
    told = f"{address} opened no WebSocket: {ascii(status)[1:-1]}"
    if said := ascii(body.strip())[1:-1]:
        told += f", {said[:_SHOWN_CHARACTERS]}"
    code = status.partition(" ")[0]
    if code.isdigit() and int(code) < _SERVER_ERRORS:
        return InvalidRequestError(f"{told}; name the port of listen.websocket")
    # Perhaps a proxy whose server is not running yet.
    return ConnectionLostError(told)


def _wants_tls(address: Address) -> InvalidRequestError:
    return InvalidRequestError(
        f"{address} uses TLS; write {_TWIN[address.kind]} if it is the journal server, otherwise name the port of the "
        f"server (by default {DEFAULT_PORTS[address.kind]})"
    )
