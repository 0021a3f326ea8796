"""The TCP transport of the client: parts arrive whole and in order, and long ones are not copied."""

from __future__ import annotations

import random
import socket
import tracemalloc

import pytest
import trio

from journal.client.address import Address
from journal.client.transport import TcpTransport
from journal.protocol.errors import ConnectionLostError


def connected(send_buffer_bytes: int = 0) -> tuple[TcpTransport, trio.SocketStream]:
    """A transport, and the stream of its peer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    if send_buffer_bytes:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, send_buffer_bytes)
    streams = [trio.SocketStream(trio.socket.from_stdlib_socket(sock)) for sock in (ours, theirs)]
    return TcpTransport(streams[0], Address("tcp", "127.0.0.1", 1)), streams[1]


async def test_receiving_after_the_connection_was_closed_is_a_lost_connection() -> None:
    transport, peer = connected()
    await transport.aclose()
    with pytest.raises(ConnectionLostError, match="closed by this side"):
        await transport.receive_into(memoryview(bytearray(100)))
    await peer.aclose()


@pytest.mark.parametrize(
    ("sizes", "rounds"),
    [((28, 131_032), 8), ((28, 300), 50), ((0, 15_000, 0), 350), ((1 << 22, 1, 0, 1), 1), ((0,), 3), ((), 1)],
    ids=["large-batches", "small-batches", "more-than-one-call-takes", "one-long", "empty", "none"],
)
async def test_parts_arrive_whole_and_in_order(sizes: tuple[int, ...], rounds: int) -> None:
    """The socket takes a part of them at a time."""
    transport, peer = connected(send_buffer_bytes=20_000)
    source = random.Random(1)
    parts = [source.randbytes(size) for _ in range(rounds) for size in sizes]
    received = bytearray()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await transport.send(list(parts))
                await transport.aclose()

            nursery.start_soon(send)
            async for data in peer:
                received += data
    assert bytes(received) == b"".join(parts)
    await peer.aclose()


async def test_long_parts_are_sent_without_a_copy_of_them() -> None:
    transport, peer = connected()
    parts = [bytes(28), bytes(131_032)] * 32
    size_bytes = sum(map(len, parts))
    buffer = bytearray(1 << 18)

    async def drain() -> None:
        left = size_bytes
        while left:
            left -= await socket_of_peer.recv_into(buffer)

    socket_of_peer = peer.socket
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            tracemalloc.start()
            await transport.send(parts)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert peak < size_bytes // 8
    await transport.aclose()
    await peer.aclose()


async def test_sending_long_parts_on_a_closed_or_broken_connection_is_a_lost_connection() -> None:
    for end_by_peer in (False, True):
        transport, peer = connected()
        await (peer if end_by_peer else transport).aclose()
        with pytest.raises(ConnectionLostError, match="while sending"), trio.fail_after(60):
            while True:
                await transport.send([bytes(1 << 20)])
        await transport.aclose()
        await peer.aclose()
