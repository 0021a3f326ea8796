"""TLS behind the calls of a socket: nothing is lost, repeated or left lying, whatever the pieces and however slow."""

from __future__ import annotations

import os
import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from journal.net.tls_sockets import TlsSocket
from journal.protocol import FrameParser, Op, encode, frames
from journal.protocol.messages import HelloRequest
from tests.patience import PATIENCE_S
from tests.server.people import AUTHORITY, PASSWORD, client_context, guarded, write_server_certificate


def server_context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    return context


@asynccontextmanager
async def ends(
    *, buffer_bytes: int = 0, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> AsyncIterator[tuple[TlsSocket, TlsSocket]]:
    """A client's end and a server's, which have agreed on keys."""
    near, far = socket.socketpair()
    for sock in (near, far):
        if buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    context = client_context()
    context.maximum_version = version
    client, server = TlsSocket(near, context, "127.0.0.1"), TlsSocket(far, server_context())
    try:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.handshake)
                nursery.start_soon(server.handshake)
            yield client, server
    finally:
        client.close()
        server.close()


async def send_all(sock: TlsSocket, data: bytes, piece_bytes: int) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.sendmsg([rest[:100], rest[100:piece_bytes]]) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock.fileno())


async def receive_all(sock: TlsSocket, buffer_bytes: int, *, pause_s: float = 0.0) -> bytes:
    received = bytearray()
    buffer = memoryview(bytearray(buffer_bytes))
    while True:
        try:
            size = sock.recv_into(buffer)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock.fileno())
            continue
        if not size:
            return bytes(received)
        received += buffer[:size]
        await trio.sleep(pause_s)


@pytest.mark.few_cases(3, "a connection for each size of buffer")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("buffer_bytes", [7, 1000, 16_384, 70_000, 1 << 20])
async def test_all_comes_in_order_whatever_the_buffer(version: ssl.TLSVersion, buffer_bytes: int) -> None:
    data = random.Random(buffer_bytes).randbytes(30_000 if buffer_bytes == 7 else 3_000_000)
    async with ends(version=version) as (client, server):
        for sender, receiver in ((client, server), (server, client)):
            received: list[bytes] = []

            async def receive(receiver: TlsSocket = receiver, into: list[bytes] = received) -> None:
                buffer = memoryview(bytearray(buffer_bytes))
                while sum(map(len, into)) < len(data):
                    try:
                        into.append(bytes(buffer[: receiver.recv_into(buffer)]))
                    except BlockingIOError:
                        await trio.lowlevel.wait_readable(receiver.fileno())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await send_all(sender, data, 400_000)
            assert b"".join(received) == data


async def test_a_slow_reader_holds_up_the_sender_and_gets_all_up_to_the_end() -> None:
    """What is encrypted and does not go is sent later, before anything else, and counts as sent no earlier."""
    data = random.Random(1).randbytes(1_000_000)
    async with ends(buffer_bytes=4096) as (client, server):
        rest = memoryview(data)
        with pytest.raises(BlockingIOError):
            while rest:
                rest = rest[client.sendmsg([rest]) :]
        with pytest.raises(BlockingIOError):
            client.sendmsg([rest])
        received: list[bytes] = []

        async def receive() -> None:
            received.append(await receive_all(server, 50_000, pause_s=0.001))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await send_all(client, bytes(rest), 400_000)
            client.say_end().close()
        assert received == [data]


async def test_the_end_is_reported_once_all_is_read() -> None:
    async with ends() as (client, server):
        assert client.sendmsg([b"last"]) == 4
        client.say_end()
        assert await receive_all(server, 1000) == b"last"
        assert server.recv_into(memoryview(bytearray(10))) == 0


async def test_a_connection_that_is_cut_ends_too() -> None:
    async with ends() as (client, server):
        client.sendmsg([b"last"])
        client._socket.shutdown(socket.SHUT_WR)
        assert await receive_all(server, 1000) == b"last"


async def test_what_is_no_tls_is_an_error() -> None:
    async with ends() as (client, server):
        os.write(client.fileno(), b"\x17\x03\x03\x00\x20" + b"forged" * 10)
        await trio.lowlevel.wait_readable(server.fileno())
        with pytest.raises(ssl.SSLError):
            server.recv_into(memoryview(bytearray(1000)))


async def test_a_hello_that_comes_with_the_end_of_the_handshake_is_answered(tmp_path: Path) -> None:
    """It is in the same segment, so the socket does not become readable for it again."""
    async with guarded(tmp_path, **write_server_certificate(tmp_path)) as served, served.stream() as stream:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await stream.send_all(outgoing.read())
                    incoming.write(await stream.receive_some(65_536))
            tls.write(
                frames.build(
                    Op.HELLO,
                    1,
                    encode(HelloRequest(frames.PROTOCOL_VERSION, "t", {"user": "anna", "password": PASSWORD})),
                )
            )
            await stream.send_all(outgoing.read())
            parser = FrameParser(1 << 20)
            found: list[int] = []
            while not found:
                incoming.write(await stream.receive_some(65_536))
                try:
                    parser.feed(tls.read(65_536))
                except ssl.SSLWantReadError:
                    continue
                found = [frame.status for frame in parser]
            assert found == [0]
