"""What a server answers to clients while another one owns the store: who does."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

import trio

from journal.net.listening import accept, prepare
from journal.protocol.errors import encode_error
from journal.protocol.frames import HEADER, HELLO_MAX_FRAME_BYTES
from shards.errors import NotOwnerError

_PATIENCE_S: Final = 5.0
_MOST_AT_ONCE: Final = 100
"""Connections that are answered at the same time; more are closed at once."""


async def answer_clients(sock: socket.socket, owner: Callable[[], str], is_mute: bool) -> None:
    """Answer the first frame of each connection with `NotOwnerError`, until cancelled.

    A client tries its next address also if the connection is closed without an answer.

    Args:
        sock: A listening socket.
        owner: Returns ``HOST:PORT`` of the server that owns the store; empty if it is not known.
        is_mute: Close connections without an answer, because their clients begin with TLS or HTTP.
    """
    async with trio.open_nursery() as nursery:
        limiter = trio.CapacityLimiter(_MOST_AT_ONCE)

        async def answer(client: socket.socket) -> None:
            try:
                with client, trio.move_on_after(_PATIENCE_S):
                    prepare(client)
                    async with trio.SocketStream(trio.socket.from_stdlib_socket(client)) as stream:
                        await _answer(stream, owner())
            except (OSError, trio.BrokenResourceError):
                pass  # The client has disconnected.
            finally:
                limiter.release_on_behalf_of(client)

        def admit(client: socket.socket, peer: str) -> bool:
            if is_mute:
                return False
            try:
                limiter.acquire_on_behalf_of_nowait(client)
            except trio.WouldBlock:
                return False
            nursery.start_soon(answer, client)
            return True

        await accept(sock, admit)


async def _answer(stream: trio.SocketStream, owner: str) -> None:
    received = b""
    while len(received) < HEADER.size:
        if not (data := await stream.receive_some(HELLO_MAX_FRAME_BYTES)):
            return
        received += data
    _, op, _, correlation = HEADER.unpack_from(received)
    await stream.send_all(encode_error(correlation, op, NotOwnerError(owner)))
    await stream.send_eof()
    # A socket that is closed with unread bytes is reset, and the client may lose the answer.
    while await stream.receive_some():
        pass
