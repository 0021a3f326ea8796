"""What a client says when something else answers than the server that its address asks for: what, and the way out.

An answer that shows that the address is wrong is an `InvalidRequestError`, after which nobody tries again. Where it may
come from a server that starts or stops it is a `ConnectionLostError`.
"""

from __future__ import annotations

from typing import Final

from journal.client.address import Address
from journal.net.protocol_sniffing import SniffedProtocol, spoken_in
from journal.protocol.errors import ConnectionLostError
from shards.errors import InvalidRequestError, StorageError

_TWIN: Final = {"tcp": "journals://", "tls": "journal://", "ws": "journal+wss://", "wss": "journal+ws://"}
_SHOWN_CHARACTERS: Final = 300
_SERVER_ERRORS: Final = 500


def check_answer(address: Address, first: bytes) -> None:
    """Look at the first bytes of an answer over TCP in the clear; none if the connection was closed.

    Raises:
        InvalidRequestError: No frames come from there.
        ConnectionLostError: It was closed before anything came.
    """
    if not first:
        raise closed_unheard(address)
    spoken = spoken_in(first)
    if spoken is SniffedProtocol.TLS:
        raise _wants_tls(address)
    if spoken is SniffedProtocol.HTTP:
        raise InvalidRequestError(
            f"{address} speaks HTTP; name the port of listen.tcp, or write journal+ws:// for that of listen.websocket"
        )


def closed_unheard(address: Address) -> ConnectionLostError:
    """The error for a connection that ended before anything came."""
    speaks = "no TLS" if address.is_encrypted else "TLS"
    return ConnectionLostError(
        f"{address} closed the connection without an answer: the server is stopping or has too many connections, or "
        f"speaks {speaks}: then write {_TWIN[address.kind]}"
    )


def no_tls(address: Address) -> InvalidRequestError:
    """The error for an answer that is no TLS."""
    return InvalidRequestError(
        f"{address} speaks no TLS; write {_TWIN[address.kind]}, or have the server given a certificate "
        "(tls.certificate_file)"
    )


def not_a_websocket(address: Address, first: bytes) -> StorageError:
    """The error for an answer that opens no WebSocket.

    Args:
        address: Where it came from.
        first: What came first; empty if the connection was closed.
    """
    if not first:
        return closed_unheard(address)
    spoken = spoken_in(first)
    if spoken is SniffedProtocol.TLS:
        return _wants_tls(address)
    if spoken is SniffedProtocol.OTHER:
        return InvalidRequestError(f"{address} speaks no WebSocket; name the port of listen.websocket")
    head, _, body = first.decode("latin-1").partition("\r\n\r\n")
    status = head.partition("\r\n")[0].partition(" ")[2].strip()
    told = f"{address} opens no WebSocket: {ascii(status)[1:-1]}"
    if said := ascii(body.strip())[1:-1]:
        told += f", {said[:_SHOWN_CHARACTERS]}"
    code = status.partition(" ")[0]
    if code.isdigit() and int(code) < _SERVER_ERRORS:
        return InvalidRequestError(f"{told}; name the port of listen.websocket")
    # A proxy whose server is not there yet.
    return ConnectionLostError(told)


def _wants_tls(address: Address) -> InvalidRequestError:
    return InvalidRequestError(f"{address} speaks TLS; write {_TWIN[address.kind]}")
