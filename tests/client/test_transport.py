"""Receiving from a connection that the client itself has closed reports a lost connection."""

from __future__ import annotations

import socket

import pytest
import trio

from journal.client.address import Address
from journal.client.transport import TcpTransport
from journal.protocol.errors import ConnectionLostError


async def test_receiving_after_the_connection_was_closed_is_a_lost_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        ours.setblocking(False)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        transport = TcpTransport(stream, Address("tcp", "127.0.0.1", 1))
        await transport.aclose()
        with pytest.raises(ConnectionLostError, match="closed by this side"):
            await transport.receive_into(memoryview(bytearray(100)))
