"""Asks a port that gave no answer what listens there, by sending it the first bytes of other protocols.

It is done once for a client, before its first session, so that a wrong port is reported within seconds.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

import trio

from journal.client.address import Address
from journal.client.peer_diagnosis import other_server
from journal.net.protocol_sniffing import ENOUGH_BYTES, SniffedProtocol, is_accepting_connack, spoken_in
from shards.errors import InvalidRequestError

SILENCE_S: Final = 1.5
"""Seconds without an answer after which a port is asked."""

_ANSWER_S: Final = 0.5
_OVER_HTTP: Final = ("ws", "wss")
_HTTP_REQUEST: Final = b"HEAD / HTTP/1.0\r\n\r\n"
# MQTT 3.1.1, a clean session without a client identifier, keep-alive 5 s; then DISCONNECT.
_MQTT_CONNECT: Final = b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x05\x00\x00" + b"\xe0\x00"


async def find_other_server(address: Address) -> InvalidRequestError | None:
    """The error for a port where another program listens; None if the answers tell nothing.

    TLS comes first: programs with TLS often answer other protocols with HTTP in the clear.
    """
    if not address.is_encrypted:
        answer = await _answer_to(address, _client_hello(address.host))
        if answer:
            return other_server(address, spoken_in(answer))
    for request in (_HTTP_REQUEST, _MQTT_CONNECT):
        answer = await _answer_to(address, request)
        if answer:
            is_mqtt = request is _MQTT_CONNECT and is_accepting_connack(answer)
            spoken = SniffedProtocol.MQTT if is_mqtt else spoken_in(answer)
            if spoken is SniffedProtocol.HTTP and address.kind in _OVER_HTTP:
                # So does the right port, which refused the client for another reason.
                return None
            return other_server(address, spoken)
    return None


async def _answer_to(address: Address, request: bytes) -> bytes:
    """The first bytes of the answer; none if the peer closes the connection or is silent."""
    with trio.move_on_after(_ANSWER_S):
        with suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(request)
                return bytes(await stream.receive_some(ENOUGH_BYTES))
    return b""


def _client_hello(host: str) -> bytes:
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(received, sent, server_hostname=host).do_handshake()
    return sent.read()
