"""HTTP peers that do not keep to the rules: they keep a connection for a while, and delay no other."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from trio.testing import MockClock, wait_all_tasks_blocked

from journal.server import http_connections
from journal.server.http import serve_http
from journal.server.http_senders import HttpSenders
from journal.settings.access import QuotaTable
from journal.settings.values import MIB
from tests.patience import PATIENCE_S
from tests.server.admin.test_api import admin
from tests.server.admin.test_strangers import basic
from tests.server.people import PASSWORD, guarded, rule

LARGE_BYTES = 32 * MIB


async def large(request: Request) -> Response:
    return PlainTextResponse(bytes(LARGE_BYTES))


async def small(request: Request) -> Response:
    return PlainTextResponse(request.scope["http_version"])


@asynccontextmanager
async def answering(stop: trio.Event, *routes: Route) -> AsyncIterator[int]:
    """An HTTP server for the length of the block, which then must end soon; gives its port."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as sock:
        async with trio.open_nursery() as nursery:
            app = Starlette(routes=[Route("/large", large), Route("/small", small), *routes])
            nursery.start_soon(serve_http, app, sock, stop)
            yield sock.getsockname()[1]
            stop.set()
            nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S
        assert not nursery.cancel_scope.cancelled_caught, "the server does not end"


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


async def test_who_reads_slowly_gets_all_of_it(monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock) -> None:
    monkeypatch.setattr(http_connections, "PATIENCE_S", 0.5)
    async with answering(trio.Event()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(get("/large", "Connection: close"))
        count = 0
        for _ in range(10):
            # Each for itself is soon enough, all of them are not.
            count += len(await stream.receive_some(1 * MIB))
            await wait_all_tasks_blocked(0.005)
            mock_clock.jump(0.4)
        assert count + len(await received(stream)) > LARGE_BYTES
        mock_clock.rate = 1.0


@attrs.define
class Counting:
    """A page that counts how often it was requested."""

    requests: int = 0

    def route(self, path: str = "/counted") -> Route:
        async def page(request: Request) -> Response:
            self.requests += 1
            await trio.lowlevel.checkpoint()
            return PlainTextResponse("counted")

        return Route(path, page)


async def small_answer(stream: trio.SocketStream) -> None:
    """Request the small page and read the answer. The connection stays open."""
    await stream.send_all(get("/small"))
    answer = b""
    with trio.fail_after(PATIENCE_S):
        while not answer.endswith(b"\r\n\r\n1.1"):
            part = await stream.receive_some(4096)
            assert part, answer
            answer += part


async def answer_from(port: int, source: str = "127.0.0.1") -> bytes:
    """The answer to one request, from an address of this machine."""
    async with await trio.open_tcp_stream("127.0.0.1", port, local_address=source) as stream:
        await stream.send_all(get("/small", "Connection: close"))
        return await received(stream)


async def test_requests_of_a_peer_that_has_disconnected_are_not_carried_out() -> None:
    page = Counting()
    async with answering(trio.Event(), page.route()) as port:
        for _ in range(3):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(get("/counted") * 500)
            await stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while not page.requests:
                await trio.sleep(0.01)
        # The requests of another connection are carried out in turn with those that are left.
        for _ in range(20):
            await answer_from(port)
    assert page.requests < 30


async def test_a_peer_that_reads_gets_all_answers_to_what_it_sent_ahead() -> None:
    page = Counting()
    async with answering(trio.Event(), page.route()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(get("/counted") * 50)
        await stream.send_eof()
        assert (await received(stream)).count(b"HTTP/1.1 200") == 50
    assert page.requests == 50


async def test_requests_of_one_address_are_delayed_and_those_of_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "REQUESTS_PER_S", 20)
    page = Counting()
    async with answering(trio.Event(), page.route()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        begun_s = trio.current_time()
        await stream.send_all(get("/counted") * 500)
        with trio.fail_after(PATIENCE_S):
            while page.requests < 20:
                await trio.sleep(0.01)
        for _ in range(20):
            assert (await answer_from(port, "127.0.0.2")).startswith(b"HTTP/1.1 200")
        # What may come at once, and what the time since the beginning adds to it.
        assert page.requests <= 20 + 20 * (trio.current_time() - begun_s) + 2
        await stream.aclose()


async def test_a_principal_has_a_rate_of_its_own_at_whatever_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others behind the same address used up its rate."""
    monkeypatch.setattr(http_connections, "REQUESTS_PER_S", 5)
    quota = QuotaTable("anna", http_requests_per_s=1000)
    async with guarded(tmp_path, rule("#"), quotas=(quota,)) as served:
        async with admin(served, authorization=basic("anna", PASSWORD)) as anna:
            assert (await anna.get("/shards")).status_code == 200
            answered = 0

            async def ask_without_credentials() -> None:
                nonlocal answered
                async with await trio.open_tcp_stream("127.0.0.1", served.ports["http"]) as stream:
                    await stream.send_all(get("/api/v1/shards", "Connection: close"))
                    await received(stream)
                answered += 1

            async with trio.open_nursery() as others:
                for _ in range(60):
                    others.start_soon(ask_without_credentials)
                with trio.fail_after(PATIENCE_S):
                    while not answered:
                        await trio.sleep(0.01)
                for _ in range(20):
                    assert (await anna.get("/shards")).status_code == 200
                assert answered < 60
                others.cancel_scope.cancel()


async def test_several_addresses_do_not_multiply_the_rate_of_a_principal(tmp_path: Path) -> None:
    quota = QuotaTable("anna", http_requests_per_s=5)
    async with guarded(tmp_path, rule("#"), quotas=(quota,)) as served:
        port = served.ports["http"]
        authorization = f"Authorization: {basic('anna', PASSWORD)}"
        begun_s = trio.current_time()
        for number in range(12):
            source = f"127.0.0.{2 + number}"
            async with await trio.open_tcp_stream("127.0.0.1", port, local_address=source) as stream:
                await stream.send_all(get("/api/v1/shards", "Connection: close", authorization))
                assert (await received(stream)).startswith(b"HTTP/1.1 200")
        assert trio.current_time() - begun_s > 0.8


def test_credentials_are_known_until_they_are_refused() -> None:
    senders = HttpSenders(lambda _name: 7)
    senders.valid("Bearer x", "anna")
    assert (senders.name_of(b"Bearer x"), senders.name_of(b"Bearer y"), senders.rate_of("anna")) == ("anna", None, 7)
    senders.invalid("Bearer x")
    assert senders.name_of(b"Bearer x") is None
    for number in range(10_001):
        senders.valid(f"Bearer {number}", "anna")
    assert senders.name_of(b"Bearer 0") is None
    assert senders.name_of(b"Bearer 1") == "anna"


@pytest.mark.parametrize("path", ["/metrics", "/%6Detrics?name=x"])
async def test_a_page_of_metrics_costs_as_much_as_twenty_other_requests(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(http_connections, "REQUESTS_PER_S", 40)
    page = Counting()
    async with answering(trio.Event(), page.route("/metrics")) as port:
        begun_s = trio.current_time()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(get(path) * 2 + get(path, "Connection: close"))
            assert (await received(stream)).count(b"HTTP/1.1 200") == page.requests == 3
        assert trio.current_time() - begun_s > 0.4


async def test_probes_do_not_wait_for_other_requests_of_the_same_address(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(http_connections, "REQUESTS_PER_S", 20)
    monkeypatch.setattr(http_connections, "MOST_OF_A_NETWORK", 5)
    mock_clock.rate = 1.0
    page = Counting()
    health = Route("/livez", small)
    async with answering(trio.Event(), page.route("/metrics"), health) as port, AsyncExitStack() as held:
        for _ in range(8):
            stream = await held.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            await stream.send_all(get("/metrics") * 10)
        with trio.fail_after(PATIENCE_S):
            while not page.requests:
                await trio.sleep(0.01)
        # No time passes now: what waits for its turn is not answered.
        mock_clock.rate = 0.0
        for _ in range(3):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(get("/livez", "Connection: close"))
                assert (await received(stream)).startswith(b"HTTP/1.1 200")
        mock_clock.rate = 1.0


async def test_a_request_whose_sender_left_while_it_waited_is_not_carried_out_and_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(http_connections, "REQUESTS_PER_S", 20)
    page = Counting()
    async with answering(trio.Event(), page.route("/metrics")) as port:
        for _ in range(50):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(get("/metrics"))
            await stream.aclose()
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await answer_from(port))

        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            for _ in range(20):
                await wait_all_tasks_blocked(0.005)
                mock_clock.jump(0.25)
            await wait_all_tasks_blocked(0.005)
            assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"]
        mock_clock.rate = 1.0
    assert page.requests <= 3


async def test_connections_that_end_while_they_wait_do_not_delay_later_ones(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(http_connections, "REQUESTS_PER_S", 10)
    networks = http_connections.Networks()
    async with trio.open_nursery() as connections:
        for _ in range(1000):
            connections.start_soon(networks.turn, "192.0.2.1")
        await wait_all_tasks_blocked()
        connections.cancel_scope.cancel()
    with trio.fail_after(1.0):
        await networks.turn("192.0.2.1")


async def test_a_new_connection_takes_the_place_of_the_one_that_has_been_idle_for_longest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_connections, "MOST_OF_A_NETWORK", 2)
    async with (
        answering(trio.Event()) as port,
        await trio.open_tcp_stream("127.0.0.1", port) as first,
        await trio.open_tcp_stream("127.0.0.1", port) as second,
    ):
        for stream in (second, first):
            await small_answer(stream)
        assert (await answer_from(port)).startswith(b"HTTP/1.1 200")
        assert await received(second) == b""
        await small_answer(first)


async def test_busy_connections_of_one_address_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "MOST_OF_A_NETWORK", 2)
    async with (
        answering(trio.Event()) as port,
        await trio.open_tcp_stream("127.0.0.1", port) as first,
        await trio.open_tcp_stream("127.0.0.1", port) as second,
    ):
        for stream in (first, second):
            await stream.send_all(get("/large"))
            assert await stream.receive_some(100)
        assert await answer_from(port) == b""
        assert (await answer_from(port, "127.0.0.2")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("is_busy", [False, True])
async def test_there_are_no_more_connections_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch, *, is_busy: bool
) -> None:
    """Among idle ones, that of the address with most connections makes room."""
    monkeypatch.setattr(http_connections, "MOST_CONNECTIONS", 3)
    async with answering(trio.Event()) as port, AsyncExitStack() as held:
        streams = [
            await held.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port, local_address=source))
            for source in ("127.0.0.2", "127.0.0.3", "127.0.0.3")
        ]
        for stream in streams:
            if is_busy:
                await stream.send_all(get("/large"))
                assert await stream.receive_some(100)
            else:
                await small_answer(stream)
        answer = await answer_from(port, "127.0.0.4")
        if is_busy:
            assert answer == b""
        else:
            assert answer.startswith(b"HTTP/1.1 200")
            await small_answer(streams[0])


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
    """Its streams and windows are ways to delay a server, and are not needed here."""
    async with answering(trio.Event()) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(sent)
        await stream.send_eof()
        found = await received(stream)
        assert found.startswith(b"HTTP/1.1 ")
        assert not found.startswith(b"HTTP/1.1 101")
        assert found.endswith(answer)
