"""Asking another server whether it is alive: over real connections to servers that answer in different ways."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio

from journal.server.cluster.liveness import (
    ANSWER_S,
    CLAIMED_HEADER,
    FOLLOWS_HEADER,
    Life,
    Notice,
    Seen,
    ask,
    send_notice,
)
from tests.ports import free_port

SERVER: Final = "ab" * 16
EPOCH: Final = 3
NOTICE: Final = Notice(4, "store-2.example:7420", bytes(range(16)))
OK: Final = (
    b"HTTP/1.1 200 \r\njournal-server: " + SERVER.encode() + b"\r\njournal-epoch: 3\r\ncontent-length: 3\r\n\r\nok\n"
)


@asynccontextmanager
async def answering(answer: bytes | None, requests: list[bytes] | None = None) -> AsyncIterator[str]:
    """A server that gives one answer to everything, or none and keeps the connection open. It notes the requests."""

    async def serve(stream: trio.SocketStream) -> None:
        request = await stream.receive_some()
        if requests is not None:
            requests.append(bytes(request))
        if answer is None:
            await trio.sleep_forever()
        else:
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("address", ["", "no address", "a:b", "store-1..example:7420", f"{'a' * 64}.example:7420"])
async def test_a_server_that_tells_a_false_address_is_silent(address: str) -> None:
    """A mistyped cluster.advertise of the owner ended each follower, and no server could start any more."""
    assert (await ask(address, SERVER, EPOCH, encrypted=False)).life is Life.SILENT


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(OK, Life.ALIVE, id="the server that was asked for"),
        pytest.param(OK.replace(b"ab", b"cd"), Life.GONE, id="another process at the same address"),
        pytest.param(OK.replace(b": 3", b": 0", 1), Life.WITHOUT_STORE, id="a server that has lost the store"),
        pytest.param(OK.replace(b": 3", b": 4", 1), Life.WITHOUT_STORE, id="a server that owns another epoch"),
        pytest.param(b"HTTP/1.1 200 \r\n\r\nok\n", Life.SILENT, id="a server that does not say who it is"),
        pytest.param(OK[:40], Life.SILENT, id="an answer that was cut off"),
        pytest.param(b"", Life.SILENT, id="a connection that is closed without an answer"),
        pytest.param(b"\x00" * 10_000, Life.SILENT, id="something else"),
    ],
)
async def test_the_answer_says_whether_the_server_is_alive(answer: bytes, expected: Life) -> None:
    async with answering(answer) as address:
        assert (await ask(address, SERVER, EPOCH, encrypted=False)).life is expected


async def test_a_server_that_does_not_answer_is_silent_after_a_second() -> None:
    async with answering(None) as address:
        began = trio.current_time()
        assert (await ask(address, SERVER, EPOCH, encrypted=False)).life is Life.SILENT
        assert trio.current_time() - began >= ANSWER_S


async def test_a_server_that_was_ended_is_gone() -> None:
    assert (await ask(f"127.0.0.1:{free_port()}", SERVER, EPOCH, encrypted=False)).life is Life.GONE


async def test_a_server_without_tls_where_tls_is_expected_is_silent() -> None:
    async with answering(OK) as address:
        assert (await ask(address, SERVER, EPOCH, encrypted=True)).life is Life.SILENT


@pytest.mark.parametrize(("text", "expected"), [(b"204", 204), (b"0", 0), (b"-1", None), ("٣".encode(), None)])
async def test_the_answer_says_how_much_of_the_log_the_server_has(text: bytes, expected: int | None) -> None:
    answer = OK.replace(b"content-length", b"journal-lsn: " + text + b"\r\ncontent-length")
    async with answering(answer) as address:
        assert await ask(address, SERVER, EPOCH, encrypted=False) == Seen(Life.ALIVE, expected)


async def test_a_server_that_does_not_say_how_much_it_has_may_be_of_another_version() -> None:
    async with answering(OK) as address:
        assert await ask(address, SERVER, EPOCH, encrypted=False) == Seen(Life.ALIVE, None)


def headers_of(request: bytes) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in request.decode().split("\r\n")[1:] if line)


async def test_a_former_owner_is_told_by_a_header_of_the_same_request() -> None:
    requests: list[bytes] = []
    async with answering(OK, requests) as address:
        assert await send_notice(address, NOTICE, encrypted=False)
    head = requests[0].decode().split("\r\n")
    assert head[0] == "GET /livez HTTP/1.1"
    assert Notice.decode(headers_of(requests[0])[CLAIMED_HEADER]) == NOTICE


async def test_an_owner_learns_that_the_server_which_asks_follows_it() -> None:
    """Others ask as well: supervisors, load balancers, `journal cluster status`."""
    requests: list[bytes] = []
    async with answering(OK, requests) as address:
        for follows in (True, False):
            assert (await ask(address, SERVER, EPOCH, encrypted=False, follows=follows)).life is Life.ALIVE
    assert [headers_of(request).get(FOLLOWS_HEADER) for request in requests] == [str(EPOCH), None]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(b"HTTP/1.1 200 \r\n\r\nok\n", True, id="an owner that its log store does not answer"),
        pytest.param(b"HTTP/1.1 429 \r\n\r\n", False, id="a refusal"),
        pytest.param(b"", False, id="a connection that is closed without an answer"),
        pytest.param(None, False, id="no answer"),
    ],
)
async def test_a_former_owner_that_has_not_taken_the_notice_is_to_be_told_again(
    answer: bytes | None, expected: bool
) -> None:
    async with answering(answer) as address:
        assert await send_notice(address, NOTICE, encrypted=False) is expected


async def test_a_former_owner_whose_process_has_ended_needs_no_notice() -> None:
    assert await send_notice(f"127.0.0.1:{free_port()}", NOTICE, encrypted=False)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "4",
        "4 store-2.example:7420",
        "4 store-2.example:7420 zz",
        "4 store-2.example 00",
        "4 store-2.example:7420 00 00",
        "-4 store-2.example:7420 00",
        "\u0664 store-2.example:7420 00",
        f"{'4' * 5000} store-2.example:7420 00",
    ],
)
def test_a_header_that_is_no_notice_is_not_one(value: str) -> None:
    assert Notice.decode(value) is None
