"""A few pages over HTTP: what is answered to good requests and to others, and what peers cannot do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from journal.net.listening import bind
from journal.telemetry import http_pages
from journal.telemetry.http_pages import HttpPages, Page, Reply, Request, Resource, health_reply
from tests.patience import PATIENCE_S

CLOSE = "Connection: close\r\n"


@asynccontextmanager
async def serving(others: Mapping[str, Page] = {}) -> AsyncIterator[int]:
    """Pages, and their port."""

    async def hello(request: Request) -> Reply:
        return Reply(f"hello {request.host} {request.authorization}".encode())

    async def broken(_request: Request) -> Reply:
        raise RuntimeError("a fault of the page")

    async def put(request: Request) -> Reply:
        kind = request.headers["content-type"]
        return Reply(f"{kind} {request.query} {request.body.decode()}".encode(), 202, headers={"ETag": '"1"'})

    pages = {"/hello": hello, "/broken": broken, "/put": Resource({"GET": hello, "PUT": put}, 20_000), **others}
    (sock,) = bind({"http": "127.0.0.1:0"}, main="http").values()
    with sock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(HttpPages(pages).serve, sock)
            yield sock.getsockname()[1]
            nursery.cancel_scope.cancel()


async def said(port: int, request: bytes) -> bytes:
    """All that is answered until the server closes."""
    with trio.fail_after(PATIENCE_S):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            return b"".join([piece async for piece in stream])


async def test_bytes_that_are_no_http_are_answered_at_once() -> None:
    """A client of the journal server waited for ten seconds, and the page for the end of a line."""
    async with serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(b"\x3e\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x83\xa7version\x02")
        with trio.fail_after(http_pages.REQUEST_S / 4):
            answer = b"".join([piece async for piece in stream])
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"this port speaks HTTP, and these bytes are none\n")


def asking(target: str, *, method: str = "GET", headers: str = "Connection: close\r\n", body: str = "") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: here\r\n{headers}\r\n{body}".encode()


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (asking("/hello"), b"200 OK", b"hello 127.0.0.1 "),
        (
            asking("/hello?a=b", headers="Authorization: x y\r\nConnection: close\r\n"),
            b"200 OK",
            b"hello 127.0.0.1 x y",
        ),
        (asking("/hello", method="HEAD"), b"200 OK", b"\r\n\r\n"),
        (b"GET /hello HTTP/1.0\r\n\r\n", b"200 OK", b"hello 127.0.0.1 "),
        (asking("/none"), b"404 Not Found", b"there is no such page; pages are /hello, /broken, /put\n"),
        (asking("/%ff"), b"404 Not Found", b"there is no such page; pages are /hello, /broken, /put\n"),
        (asking("/hello", method="POST"), b"405 Method Not Allowed", b"only GET and HEAD are supported\n"),
        (b"what is this\r\n\r\n", b"400 Bad Request", b"illegal request line\n"),
        (asking("/hello", headers="X: " + "x" * 60_000 + "\r\n"), b"431 Request Header Fields Too Large", b"\n"),
        (
            asking("/hello", method="POST", headers="Content-Length: 20000\r\n", body="x" * 20_000),
            b"413 ",
            b"this page takes no body\n",
        ),
        (
            asking(
                "/put?a=b",
                method="PUT",
                headers=f"{CLOSE}Content-Type: x\r\nContent-Length: 20000\r\n",
                body="x" * 20_000,
            ),
            b"202 Accepted",
            b"\r\n\r\nx a=b " + b"x" * 20_000,
        ),
        (
            asking("/put", method="PUT", headers="Content-Length: 20001\r\n", body="x" * 20_001),
            b"413 ",
            b"the body has more than 20000 bytes\n",
        ),
        (asking("/put", method="HEAD"), b"200 OK", b"\r\n\r\n"),
        (asking("/put", method="DELETE"), b"405 Method Not Allowed", b"only GET and HEAD and PUT are supported\n"),
    ],
)
async def test_each_request_has_its_answer(request_bytes: bytes, status: bytes, words: bytes) -> None:
    async with serving() as port:
        answer = await said(port, request_bytes)
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert answer.endswith(words), answer


async def test_a_connection_serves_one_request_after_the_other_also_in_pieces() -> None:
    async with serving() as port:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            request = asking("/hello", headers="")
            for piece in (request + request[:5], request[5:-1], request[-1:]):
                await stream.send_all(piece)
            answer = b""
            with trio.fail_after(PATIENCE_S):
                while answer.count(b"hello 127.0.0.1 ") < 2:
                    answer += await stream.receive_some()
            await stream.send_all(b"\x00\r\n\r\n")
            with trio.fail_after(PATIENCE_S):
                answer = b"".join([piece async for piece in stream])
            assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_expects_100_continue_gets_it() -> None:
    """curl waits a second for that otherwise."""
    async with serving() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        headers = f"{CLOSE}Content-Type: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n"
        await stream.send_all(asking("/put", method="PUT", headers=headers))
        with trio.fail_after(PATIENCE_S):
            assert await stream.receive_some() == b"HTTP/1.1 100 \r\n\r\n"
            await stream.send_all(b"body")
            answer = b"".join([piece async for piece in stream])
        assert answer.startswith(b"HTTP/1.1 202 Accepted")
        assert b'\r\nETag: "1"\r\n' in answer
        assert answer.endswith(b"x  body")


async def test_a_page_that_fails_ends_its_connection_and_no_other() -> None:
    async with serving() as port:
        assert await said(port, asking("/broken")) == b""
        assert b"200 OK" in await said(port, asking("/hello"))


async def test_who_says_nothing_does_not_keep_others_out_for_long(autojump_clock: MockClock) -> None:
    """Connections are few: without a bound on silence, one client could take them all."""
    async with serving() as port:
        began_s = trio.current_time()
        silent = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(http_pages.MAX_CONNECTIONS)]
        await silent[0].send_all(b"GET /hel")
        for stream in silent:
            assert await stream.receive_some() == b""
            await stream.aclose()
        assert trio.current_time() - began_s < 2 * http_pages.REQUEST_S
        assert b"200 OK" in await said(port, asking("/hello"))


@pytest.mark.parametrize("first", [b"", b"GET /hel", asking("/hello", headers="")], ids=["silent", "slow", "kept"])
async def test_connections_that_wait_without_a_request_are_closed_for_new_ones(first: bytes) -> None:
    """As many connections as there may be kept all others out, so that probes and metrics found the broker dead."""
    async with serving() as port:
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(http_pages.MAX_CONNECTIONS)]
        for stream in idle:
            await stream.send_all(first)
        with trio.fail_after(PATIENCE_S):
            if first.endswith(b"\r\n\r\n"):
                for stream in idle:
                    assert b"200 OK" in await stream.receive_some()
            for _ in range(3):
                assert b"200 OK" in await said(port, asking("/hello"))
            assert await idle[0].receive_some() == b""
            await idle[-1].send_all(asking("/hello")[len(first) if first == b"GET /hel" else 0 :])
            assert b"200 OK" in await idle[-1].receive_some()
        for stream in idle:
            await stream.aclose()


async def test_connections_that_are_answered_are_closed_for_no_other() -> None:
    asked, may_answer = trio.Semaphore(0), trio.Event()

    async def wait(_request: Request) -> Reply:
        asked.release()
        await may_answer.wait()
        return Reply(b"answered")

    async with serving({"/wait": wait}) as port:
        busy = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(http_pages.MAX_CONNECTIONS)]
        with trio.fail_after(PATIENCE_S):
            for stream in busy:
                await stream.send_all(asking("/wait"))
            for _ in busy:
                await asked.acquire()
            assert await said(port, b"") == b""
            may_answer.set()
            for stream in busy:
                assert b"answered" in b"".join([piece async for piece in stream])
                await stream.aclose()


def test_health_names_every_reason() -> None:
    assert health_reply([]) == Reply(b"ready\n", 200)
    assert health_reply(["a", "b"]) == Reply(b"not ready: a; b\n", 503)
