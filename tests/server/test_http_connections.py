"""HTTP peers that do not keep to the rules: they hold a connection for a while, and nobody else up."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from journal.server import http_connections
from journal.server.http import serve_http
from journal.settings.values import MIB
from tests.patience import PATIENCE_S

LARGE_BYTES = 32 * MIB


async def large(request: Request) -> Response:
    return PlainTextResponse(bytes(LARGE_BYTES))


async def small(request: Request) -> Response:
    return PlainTextResponse(request.scope["http_version"])


@asynccontextmanager
async def answering(stop: trio.Event) -> AsyncIterator[int]:
    """An HTTP server for the length of the block, which then must end soon; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        async with trio.open_nursery() as nursery:
            app = Starlette(routes=[Route("/large", large), Route("/small", small)])
            nursery.start_soon(serve_http, app, sock, stop)
            yield sock.getsockname()[1]
            with trio.fail_after(PATIENCE_S):
                stop.set()
                while nursery.child_tasks:
                    await trio.sleep(0.01)


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", "")).encode()


async def received(stream: trio.SocketStream) -> bytes:
    """All that comes until the server closes."""
    data = bytearray()
    with trio.fail_after(PATIENCE_S):
        try:
            async for part in stream:
                data += part
        except trio.BrokenResourceError:
            pass
    return bytes(data)


async def test_who_reads_no_answer_does_not_keep_the_server_from_stopping() -> None:
    stop = trio.Event()
    async with answering(stop) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(get("/large"))
        assert await stream.receive_some(100)
        stop.set()


async def test_who_reads_no_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "PATIENCE_S", 0.2)
    async with answering(trio.Event()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(get("/large"))
        assert await stream.receive_some(100)
        await trio.sleep(1.0)
        assert len(await received(stream)) < LARGE_BYTES


async def test_who_reads_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "PATIENCE_S", 0.5)
    async with answering(trio.Event()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(get("/large", "Connection: close"))
        count = 0
        for _ in range(10):
            # Each for itself is soon enough, all of them are not.
            count += len(await stream.receive_some(1 * MIB))
            await trio.sleep(0.1)
        assert count + len(await received(stream)) > LARGE_BYTES


@pytest.mark.slow("opens as many connections as there may be, or waits for their timeout")
async def test_there_are_no_more_connections_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "MOST_CONNECTIONS", 2)
    async with answering(trio.Event()) as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as first:
            async with (
                await trio.open_tcp_stream("127.0.0.1", port),
                await trio.open_tcp_stream("127.0.0.1", port) as third,
            ):
                assert await received(third) == b""
                await first.send_all(get("/small"))
                assert (await first.receive_some(4096)).startswith(b"HTTP/1.1 200")
        with trio.fail_after(PATIENCE_S):
            while True:
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(get("/small", "Connection: close"))
                    if (await received(stream)).startswith(b"HTTP/1.1 200"):
                        break


@pytest.mark.slow("opens as many connections as there may be, or waits for their timeout")
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (
            get("/small", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__", "Connection: Upgrade, HTTP2-Settings"),
            b"1.1",
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
    ],
)
async def test_another_http_than_1_1_is_not_spoken(sent: bytes, answer: bytes) -> None:
    """Its streams and windows are ways to hold a server up that nobody here needs."""
    async with answering(trio.Event()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(sent)
        await stream.send_eof()
        found = await received(stream)
        assert found.startswith(b"HTTP/1.1 ")
        assert not found.startswith(b"HTTP/1.1 101")
        assert found.endswith(answer)
