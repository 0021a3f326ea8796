"""Who comes in the clear where TLS is spoken, or with TLS where none is: both sides say so, at once."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from journal.client import SessionTimes, open_client, session_keeper
from journal.net.protocol_sniffing import SniffedProtocol, spoken_in
from journal.protocol import FrameParser, Op, decode_error, encode, frames
from journal.protocol.errors import ConnectionLostError
from journal.protocol.messages import HelloRequest
from shards.errors import InvalidRequestError
from tests.patience import PATIENCE_S
from tests.server.people import AUTHORITY, client_context, write_server_certificate
from tests.server.serving import Served, serving
from tests.steady_clock import SteadyClock

AT_ONCE_S = 5.0
HELLO = frames.build(Op.HELLO, 1, encode(HelloRequest(frames.PROTOCOL_VERSION, "test", None)))
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x05" * 506


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    path = tmp_path / "trusted.pem"
    path.write_bytes(AUTHORITY.cert_pem.bytes())
    return path


@asynccontextmanager
async def server(path: Path, *, encrypted: bool) -> AsyncIterator[Served]:
    async with serving(path, **(write_server_certificate(path) if encrypted else {})) as served:
        yield served


@pytest.mark.parametrize(
    ("encrypted", "scheme", "listener", "told"),
    [
        (True, "journal", "tcp", r"the tcp listener at 127.0.0.1:\d+ accepts only TLS; connect with journals://"),
        (True, "journal+ws", "websocket", r"127.0.0.1:\d+ opened no WebSocket: 400 .*connect with journal\+wss://"),
        (True, "journal+ws", "tcp", r"127.0.0.1:\d+ opened no WebSocket: 400 .*connect with journals://"),
        (True, "journal", "websocket", r"127.0.0.1:\d+ uses HTTP; name the port of listen.tcp"),
        (True, "journal+ws", "http", r"127.0.0.1:\d+ opened no WebSocket: 400 .*connect with https://"),
        (True, "journal+wss", "tcp", r"127.0.0.1:\d+ does not use WebSocket"),
        (False, "journals", "tcp", r"127.0.0.1:\d+ does not use TLS; write journal://"),
        (False, "journal", "websocket", r"127.0.0.1:\d+ uses HTTP; name the port of listen.tcp"),
        (False, "journal", "http", r"127.0.0.1:\d+ uses HTTP; name the port of listen.tcp"),
        (False, "journal+wss", "websocket", r"127.0.0.1:\d+ does not use TLS; write journal\+ws://"),
        (False, "journals", "websocket", r"127.0.0.1:\d+ does not use TLS; write journal://"),
        (False, "journals", "http", r"127.0.0.1:\d+ does not use TLS; write journal://"),
        (False, "journal+ws", "tcp", r"127.0.0.1:\d+ does not use WebSocket"),
        (False, "journal+ws", "http", r"127.0.0.1:\d+ opened no WebSocket: 403"),
    ],
)
async def test_a_client_says_what_is_wrong_with_its_address(
    tmp_path: Path, ca_file: Path, encrypted: bool, scheme: str, listener: str, told: str, steady_clock: SteadyClock
) -> None:
    options = f"?ca_file={ca_file}" if scheme.endswith("s") and scheme != "journal+ws" else ""
    async with server(tmp_path, encrypted=encrypted) as served:
        with trio.fail_after(AT_ONCE_S), pytest.raises(InvalidRequestError, match=told):
            async with open_client(f"{scheme}://127.0.0.1:{served.ports[listener]}{options}"):
                pass


@pytest.mark.parametrize("listener", ["tcp", "websocket"])
@pytest.mark.parametrize("encrypted", [True, False])
async def test_a_server_logs_and_counts_it(
    tmp_path: Path, listener: str, encrypted: bool, steady_clock: SteadyClock
) -> None:
    async with server(tmp_path, encrypted=encrypted) as served:
        with capture_logs() as logs, trio.fail_after(AT_ONCE_S):
            async with await trio.open_tcp_stream("127.0.0.1", served.ports[listener]) as stream:
                await stream.send_all(HELLO if encrypted else CLIENT_HELLO)
                while await stream.receive_some(4096):
                    pass
        counted = served.server.statistics.connections_closed
        assert counted == ({"protocol": 1} if (listener, encrypted) == ("tcp", False) else {"tls": 1})
        (entry,) = (entry for entry in logs if entry["log_level"] == "warning")
        assert ("accepts only TLS" if encrypted else "does not use TLS") in entry["reason"]


@pytest.mark.parametrize(
    "connect",
    [
        b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
        b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00",
        b"\x10\x8c\x01\x00\x04MQTT\x04\x02\x00\x3c\x00\x80" + b"x" * 128,
        b"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x3c\x00\x00",
    ],
)
async def test_a_server_names_an_mqtt_client_that_connects_to_it(
    tmp_path: Path, connect: bytes, steady_clock: SteadyClock
) -> None:
    async with server(tmp_path, encrypted=False) as served:
        with capture_logs() as logs, trio.fail_after(AT_ONCE_S):
            async with await trio.open_tcp_stream("127.0.0.1", served.ports["tcp"]) as stream:
                await stream.send_all(connect)
                while await stream.receive_some(4096):
                    pass
        (line,) = [entry for entry in logs if entry["log_level"] == "warning"]
        assert "an MQTT client" in line["reason"]
        assert "client" not in line, "it has not named itself"


async def test_a_client_without_tls_gets_the_error_in_a_frame(tmp_path: Path, steady_clock: SteadyClock) -> None:
    async with server(tmp_path, encrypted=True) as served, served.stream() as stream:
        await stream.send_all(HELLO)
        parser = FrameParser(1 << 16)
        with trio.fail_after(AT_ONCE_S):
            while data := await stream.receive_some(4096):
                parser.feed(data)
        (frame,) = parser
        assert frame.correlation == 0
        assert isinstance(decode_error(frame.status, frame.body), InvalidRequestError)


@pytest.mark.parametrize("listener", ["tcp", "websocket", "http"])
async def test_http_in_the_clear_is_answered_with_a_text(
    tmp_path: Path, listener: str, steady_clock: SteadyClock
) -> None:
    async with server(tmp_path, encrypted=True) as served, httpx.AsyncClient(timeout=PATIENCE_S) as client:
        with trio.fail_after(AT_ONCE_S):
            answer = await client.get(f"http://127.0.0.1:{served.ports[listener]}/livez")
        assert answer.status_code == 400
        assert "accepts only TLS" in answer.text
        with trio.fail_after(AT_ONCE_S):
            async with httpx.AsyncClient(verify=client_context(), timeout=PATIENCE_S) as right:
                assert (await right.get(f"https://127.0.0.1:{served.ports['http']}/livez")).text == "ok\n"


async def test_a_handshake_in_single_bytes_is_accepted(tmp_path: Path, ca_file: Path) -> None:
    """Of a byte alone nothing can be said."""
    async with server(tmp_path, encrypted=True) as served:
        proxy = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            taken: list[int] = []

            async def pass_on(near: trio.SocketStream) -> None:
                far = await trio.open_tcp_stream("127.0.0.1", served.ports["tcp"])
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                async with far, trio.open_nursery() as inner:

                    async def back() -> None:
                        while data := await far.receive_some(4096):
                            await near.send_all(data)
                        inner.cancel_scope.cancel()

                    inner.start_soon(back)
                    while data := await near.receive_some(4096):
                        for at in range(len(data)):
                            await far.send_all(data[at : at + 1])
                            await trio.testing.wait_all_tasks_blocked(0.001)
                            taken.append(1)
                            if len(taken) > 6:
                                await far.send_all(data[at + 1 :])
                                break
                    inner.cancel_scope.cancel()

            nursery.start_soon(trio.serve_listeners, pass_on, proxy)
            port = proxy[0].socket.getsockname()[1]
            with trio.fail_after(PATIENCE_S), pytest.raises(Exception, match="no credentials"):
                async with open_client(f"journals://127.0.0.1:{port}?ca_file={ca_file}"):
                    pass
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def answering(answer: bytes, chunk_bytes: int = 4096) -> AsyncIterator[str]:
    """Something that is no server of ours: it takes a little, answers, and closes."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

    async def answered(stream: trio.SocketStream) -> None:
        # A client may have seen enough before all of it is sent.
        with suppress(trio.BrokenResourceError):
            async with stream:
                if answer:
                    await stream.receive_some(4096)
                    for at in range(0, len(answer), chunk_bytes):
                        await stream.send_all(answer[at : at + chunk_bytes])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, answered, listeners)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


ALERT = bytes.fromhex("15030100020246")


@pytest.mark.parametrize(
    ("scheme", "answer", "told"),
    [
        ("journal+ws", ALERT, r"uses TLS; write journal\+wss://"),
        ("journal+ws", b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone", "404 Not Found, none"),
        ("journal+ws", b"\x00" * 40, "does not use WebSocket"),
        ("journals", b"SSH-2.0-OpenSSH\r\n", "does not use TLS; write journal://"),
        ("journal+wss", b"HTTP/1.1 400 Bad Request\r\n\r\n", r"does not use TLS; write journal\+ws://"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 4096])
async def test_a_wrong_answer_ends_it(
    scheme: str, answer: bytes, told: str, chunk_bytes: int, steady_clock: SteadyClock
) -> None:
    async with answering(answer, chunk_bytes) as place:
        with trio.fail_after(AT_ONCE_S), pytest.raises(InvalidRequestError, match=f"{place} .*{told}"):
            async with open_client(f"{scheme}://{place}"):
                pass


@pytest.mark.parametrize(
    ("answer", "told"),
    [(ALERT, "uses TLS; write journals://"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "uses HTTP; name the port")],
)
async def test_an_answer_that_is_no_frame_ends_it(answer: bytes, told: str, steady_clock: SteadyClock) -> None:
    async with answering(answer) as place:
        with trio.fail_after(AT_ONCE_S), pytest.raises(InvalidRequestError, match=f"{place} {told}"):
            async with open_client(place):
                pass


@pytest.mark.parametrize(
    ("scheme", "answer", "told"),
    [
        ("journal", b"", "closed the connection without an answer.*uses TLS: then write journals://"),
        ("journals", b"", "closed the connection without an answer.*uses no TLS: then write journal://"),
        ("journal+ws", b"", r"closed the connection without an answer.*uses TLS: then write journal\+wss://"),
        ("journal+wss", b"", r"closed the connection without an answer.*uses no TLS: then write journal\+ws://"),
        ("journal+ws", b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "503 Service Unavailable"),
    ],
)
async def test_what_a_server_that_starts_or_stops_may_do_is_tried_again(
    scheme: str, answer: bytes, told: str, steady_clock: SteadyClock
) -> None:
    async with answering(answer) as place:
        with trio.fail_after(AT_ONCE_S), pytest.raises(ConnectionLostError, match=f"gave up after .*{place} .*{told}"):
            async with open_client(f"{scheme}://{place}", times=SessionTimes(first_within_s=0.1)):
                pass


CONNACK = b"\x20\x02\x00\x00"


async def mqtt_broker(stream: trio.abc.Stream) -> None:
    """Closes at once if the first packet is no CONNECT, as brokers of other makers do."""
    if (await stream.receive_some(4096)).startswith(b"\x10"):
        await stream.send_all(CONNACK)


async def web_server(stream: trio.abc.Stream) -> None:
    """Waits for the end of a line, whatever comes."""
    received = b""
    while b"\r\n\r\n" not in received:
        more = await stream.receive_some(4096)
        if not more:
            return
        received += more
    await stream.send_all(b"HTTP/1.0 200 OK\r\n\r\n")


async def secure_web_server(stream: trio.abc.Stream) -> None:
    """As many with TLS, answers HTTP in the clear to HTTP in the clear."""
    first = bytes(await stream.receive_some(4096))
    if first.startswith(b"\x16\x03"):
        await stream.send_all(b"\x16\x03\x03\x00\x7a\x02\x00\x00\x76\x03\x03" + b"\x05" * 32)
    elif first.startswith((b"GET", b"HEAD")):
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("scheme", "program", "told"),
    [
        ("journal", mqtt_broker, "is an MQTT broker; name the port of the journal server"),
        ("journals", mqtt_broker, "is an MQTT broker; name the port of the journal server"),
        ("journal+ws", mqtt_broker, "is an MQTT broker; name the port of the journal server"),
        ("journal", web_server, "uses HTTP; name the port of listen.tcp"),
        ("journals", web_server, "uses HTTP; name the port of listen.tcp"),
        ("journal", secure_web_server, "uses TLS; write journals:// if it is the journal server"),
        ("journal+ws", secure_web_server, r"opened no WebSocket: 400 Bad Request"),
    ],
)
async def test_a_port_without_an_answer_is_asked_what_listens_there(
    scheme: str, program: Callable[[trio.abc.Stream], Awaitable[None]], told: str, steady_clock: SteadyClock
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            async with stream:
                await program(stream)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        place = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        with trio.fail_after(AT_ONCE_S), pytest.raises(InvalidRequestError, match=f"{place} {told}"):
            async with open_client(f"{scheme}://{place}"):
                pass
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_slow_is_asked_once_and_then_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is behind something that passes on nothing of a connection for a while."""
    monkeypatch.setattr(session_keeper, "SILENCE_S", 0.1)
    asked = 0
    was_asked = trio.Event()
    async with serving(tmp_path) as served, trio.open_nursery() as nursery:

        async def pass_on(near: trio.SocketStream) -> None:
            nonlocal asked
            asked += 1
            async with near, await trio.open_tcp_stream("127.0.0.1", served.ports["tcp"]) as far:
                if asked > 1:
                    was_asked.set()
                await was_asked.wait()
                async with trio.open_nursery() as inner:

                    async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
                        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                            async for data in source:
                                await target.send_all(data)
                        inner.cancel_scope.cancel()

                    inner.start_soon(copy, near, far)
                    inner.start_soon(copy, far, near)

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, pass_on, listeners)
        with trio.fail_after(PATIENCE_S):
            async with open_client(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}") as client:
                await client.create_shard("a")
        assert asked == 2
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("first", "spoken"),
    [
        (b"\x20\x02\x00\x01", SniffedProtocol.MQTT),
        (b"\x20\x03\x00\x84\x00", SniffedProtocol.MQTT),
        (b"\x10\x0c\x00\x04MQTT", SniffedProtocol.MQTT),
        (ALERT, SniffedProtocol.TLS),
        (CLIENT_HELLO[:3], SniffedProtocol.TLS),
        (CLIENT_HELLO[:2], SniffedProtocol.OTHER),
        (b"", SniffedProtocol.OTHER),
        (b"GET /liv", SniffedProtocol.HTTP),
        (b"HTTP/1.1", SniffedProtocol.HTTP),
        (HELLO[:8], SniffedProtocol.OTHER),
    ],
)
def test_what_is_spoken_shows_in_the_first_bytes(first: bytes, spoken: SniffedProtocol) -> None:
    assert spoken_in(first) is spoken


def test_no_frame_before_the_end_of_hello_looks_like_something_else() -> None:
    for length in range(frames.HEADER.size, frames.HELLO_MAX_FRAME_BYTES + 1):
        assert spoken_in(frames.HEADER.pack(length, Op.HELLO, 0, 1)[:8]) is SniffedProtocol.OTHER
        assert spoken_in(frames.HEADER.pack(length, 0, 9, 0)[:8]) is SniffedProtocol.OTHER
