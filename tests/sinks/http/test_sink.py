"""What requests look like, against a service that answers as configured and shows what came."""

from __future__ import annotations

import gc
import gzip
import json
import ssl
import tracemalloc
import warnings
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import h11
import pytest
import trio
import trustme
import zstandard

from broker_adapter.sinks import Batch, BatchRefusedError, RowsRefusedError, Sink, SinkContext, SinkUnavailableError
from broker_adapter.sinks.http.replies import MAX_BODY_BYTES
from broker_adapter.sinks.http.settings import Compression, Format, HttpSettings, Method, check
from broker_adapter.sinks.kinds import find_kind
from journal.settings.file import Schema
from journal.settings.values import ConfigurationError
from tests.sinks.stage import batch_of, row


@attrs.define
class Service:
    """Answers every request with `status`."""

    port: int = 0
    status: int = 204
    body: bytes = b""
    encoding: str = ""
    requests: list[tuple[bytes, bytes, dict[str, str], bytes]] = attrs.Factory(list)

    async def serve(self, stream: trio.abc.Stream) -> None:
        conversation = h11.Connection(h11.SERVER)
        body = b""
        request: h11.Request | None = None
        try:
            while True:
                event = conversation.next_event()
                if event is h11.NEED_DATA:
                    conversation.receive_data(bytes(await stream.receive_some(65_536)))
                elif isinstance(event, h11.Request):
                    request, body = event, b""
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    assert request is not None
                    headers = {name.decode(): value.decode() for name, value in request.headers}
                    self.requests.append((request.method, request.target, headers, body))
                    answer = [("content-length", str(len(self.body)))] if self.status != 204 else []
                    if self.encoding:
                        answer.append(("content-encoding", self.encoding))
                    await stream.send_all(
                        conversation.send(h11.Response(status_code=self.status, headers=answer))  # type: ignore[operator]
                        + conversation.send(h11.Data(data=self.body if answer else b""))
                        + conversation.send(h11.EndOfMessage())
                    )
                    conversation.start_next_cycle()
                else:
                    return
        except trio.BrokenResourceError:
            return


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(partial(trio.serve_tcp, made.serve, 0, host="127.0.0.1"))
        made.port = listeners[0].socket.getsockname()[1]
        yield made
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def sink_of(bridge: str = "plant", **settings: Any) -> AsyncIterator[Sink]:
    context = SinkContext(bridge=bridge, queue_id="q-1", columns=("n",), epoch=1)
    async with find_kind("http").open(HttpSettings(**settings), context) as sink:
        yield sink


def url_of(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}/rows?key=hidden"


async def test_a_refused_connection_is_reported_in_the_words_of_the_system() -> None:
    """It was reported as `all attempts to connect to localhost:1 failed (1 sub-exception)`."""
    async with sink_of(url="http://localhost:1/rows") as sink:
        with pytest.raises(
            SinkUnavailableError, match=r"^http://localhost:1/rows cannot be reached: Connection refused$"
        ):
            await sink.check()


async def test_a_request_says_which_part_of_which_queue_it_is(service: Service) -> None:
    async with sink_of("plänt", url=url_of(service), headers={"X-Site": "north"}) as sink:
        await sink.write(Batch(40, 60, [45, 59], [{"n": 1}, {"n": 2}], 10))
    ((method, target, headers, body),) = service.requests
    assert (method, target) == (b"POST", b"/rows?key=hidden")
    assert json.loads(body) == [{"n": 1}, {"n": 2}]
    telling = ("journal", "idempotency", "x-", "content-type")
    assert {name: value for name, value in headers.items() if name.startswith(telling)} == {
        "content-type": "application/json",
        "idempotency-key": "q-1-40-60",
        "journal-bridge": "pl%C3%A4nt",
        "journal-first-offset": "40",
        "journal-next-offset": "60",
        "journal-queue": "q-1",
        "x-site": "north",
    }


async def test_nothing_stays_of_what_was_sent(service: Service) -> None:
    """Not even until the collector looks for cycles, which it seldom does in a process of bridges."""
    body_bytes = 1 << 20
    async with sink_of(url=url_of(service)) as sink:
        await sink.write(batch_of([{"n": "x"}]))
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(8):
                await sink.write(batch_of([{"n": "x" * body_bytes}]))
                service.requests.clear()
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held_bytes < 2 * body_bytes


async def test_a_service_that_closes_in_the_middle_of_a_request_leaves_nothing_to_the_garbage_collector() -> None:
    """The body was an async generator, which was abandoned: trio warned of it some time later."""

    async def close_at_once(stream: trio.SocketStream) -> None:
        await stream.receive_some(1)
        # What was not read resets the connection, so that the rest of the request cannot be sent.
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, close_at_once, listeners)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            async with sink_of(url=f"http://127.0.0.1:{port}/in") as sink:
                with pytest.raises(SinkUnavailableError, match="cannot be reached"):
                    await sink.write(batch_of([{"n": "x" * (8 << 20)}]))
            gc.collect()
        nursery.cancel_scope.cancel()
    assert [str(each.message) for each in warned] == []


async def test_a_reply_that_is_too_long_leaves_nothing_to_the_garbage_collector(service: Service) -> None:
    """It was read by generators, one within the other, which were abandoned in the middle."""
    service.status, service.body = 500, b"x" * (3 * MAX_BODY_BYTES)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        async with sink_of(url=url_of(service)) as sink:
            for _ in range(2):
                with pytest.raises(SinkUnavailableError, match="answered with status 500: xxx"):
                    await sink.write(batch_of([{"n": 1}]))
            await trio.lowlevel.checkpoint()
            gc.collect()
    assert [str(each.message) for each in warned] == []


async def test_rows_that_are_tried_again_are_distinguished(service: Service) -> None:
    async with sink_of(url=url_of(service)) as sink:
        for offset in (45, 59):
            await sink.write(Batch(60, 60, [offset], [{"n": 1}], 10))
    names = ("idempotency-key", "journal-first-offset", "journal-next-offset")
    assert [[headers[name] for name in names] for _, _, headers, _ in service.requests] == [
        ["q-1-45-46", "45", "46"],
        ["q-1-59-60", "59", "60"],
    ]


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("size", [1, 300_000])
async def test_lines_and_compression(service: Service, compression: str, size: int) -> None:
    open_body = {"none": bytes, "gzip": gzip.decompress, "zstd": zstandard.decompress}[compression]
    settings: dict[str, Any] = {
        "method": Method.PUT,
        "format": Format.LINES,
        "compression": Compression(compression),
    }
    async with sink_of(url=url_of(service), **settings) as sink:
        await sink.write(batch_of([{"n": 1}, {"n": "x" * size}]))
    ((method, _, headers, body),) = service.requests
    assert method == b"PUT"
    assert headers["content-type"] == "application/x-ndjson"
    assert headers.get("content-encoding", "none") == compression
    assert [json.loads(line) for line in open_body(body).splitlines()] == [{"n": 1}, {"n": "x" * size}]


@pytest.mark.parametrize("status", [200, 207, 400, 503])
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "deflate"])
async def test_a_compressed_response_is_not_decompressed(service: Service, status: int, encoding: str) -> None:
    size = 64 << 20
    body = b"0" * size
    service.body = {"gzip": gzip.compress, "zstd": zstandard.compress, "deflate": zlib.compress}[encoding](body)
    del body
    service.status, service.encoding = status, encoding
    async with sink_of(url=url_of(service)) as sink:
        tracemalloc.start()
        try:
            error: Exception | None = None
            try:
                await sink.write(batch_of([{"n": 1}]))
            except (BatchRefusedError, SinkUnavailableError) as raised:
                error = raised
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()
    assert service.requests[0][2]["accept-encoding"] == "identity"
    assert (error is None) == (status == 200)
    assert isinstance(error, BatchRefusedError) == (status == 400)
    if error is not None:
        assert f"body in Content-Encoding {encoding}" in str(error)


async def test_a_row_that_json_cannot_have_does_not_keep_the_others_back(service: Service) -> None:
    service.status, service.body = 207, b'{"refused": [{"index": 1, "reason": "old"}]}'
    async with sink_of(url=url_of(service)) as sink:
        with pytest.raises(RowsRefusedError) as told:
            await sink.write(batch_of([{"n": "\ud800"}, {"n": 1}, {"n": 2}]))
    assert [each.index for each in told.value.refusals] == [0, 2]
    assert json.loads(service.requests[0][3]) == [{"n": 1}, {"n": 2}]


async def test_a_changed_password_file_is_read_at_the_next_check(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "password"
    async with sink_of(url=url_of(service), user="bridge", password_file=str(path)) as sink:
        with pytest.raises(SinkUnavailableError, match=f"password_file = .*{path.name}.* cannot be read"):
            await sink.check()
        for word, pair in (("first", "YnJpZGdlOmZpcnN0"), ("second", "YnJpZGdlOnNlY29uZA==")):
            path.write_text(f"{word}\n")
            await sink.check()
            await sink.write(batch_of([row(0)]))
            assert [each[2]["authorization"] for each in service.requests[-2:]] == [f"Basic {pair}"] * 2
    assert [each[0] for each in service.requests] == [b"OPTIONS", b"POST"] * 2


async def test_secrets_are_in_no_message(service: Service) -> None:
    service.status = 503
    settings: dict[str, Any] = {"url": url_of(service), "token": "s3cret\n", "headers": {"X-Key": "s3cret"}}
    assert "s3cret" not in repr(HttpSettings(**settings))
    assert "hidden" not in repr(HttpSettings(**settings))
    async with sink_of(**settings) as sink:
        for call in (sink.check(), sink.write(batch_of([row(0)]))):
            with pytest.raises(SinkUnavailableError) as told:
                await call
            assert "s3cret" not in str(told.value)
            assert "hidden" not in str(told.value)


async def test_an_authority_of_ones_own(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    service = Service()
    async with trio.open_nursery() as tasks:
        listeners = await tasks.start(
            partial(trio.serve_tcp, lambda stream: served_tls(service, stream, context), 0, host="127.0.0.1")
        )
        url = f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}/rows"
        async with sink_of(url=url, ca_file=str(tmp_path / "ca.pem")) as sink:
            await sink.check()
            await sink.write(batch_of([row(0)]))
        async with sink_of(url=url) as sink:
            with pytest.raises(SinkUnavailableError, match=r"(?i)certificate"):
                await sink.check()
        tasks.cancel_scope.cancel()
    assert len(service.requests) == 2


async def served_tls(service: Service, stream: trio.SocketStream, context: Any) -> None:
    secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
    try:
        await secure.do_handshake()
    except trio.BrokenResourceError:
        return
    await service.serve(secure)


@pytest.mark.parametrize("text", [b"", b"no certificate"])
async def test_a_file_of_authorities_that_is_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"ca_file = .* holds no certificates"):
        async with sink_of(url="https://127.0.0.1/", ca_file=str(path)):
            pass


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"token": "a", "token_file": "b"}, "token and token_file are both given"),
        ({"token": "a", "user": "b"}, "user and token"),
        ({"password": "a"}, "without a user"),
        ({"user": "a:b"}, "colon"),
        ({"ca_file": "a"}, "not https"),
        ({"headers": {"Content-Length": "1"}}, "sets itself"),
        ({"headers": {"X Y": "1"}}, "not a valid header name"),
        ({"headers": {"X": "s3cret\n"}}, "characters that are not allowed"),
        ({"headers": {"authorization": "x"}, "token": "y"}, "Authorization, and user or token"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], told: str) -> None:
    (problem,) = check(HttpSettings("http://service/", **settings))
    assert told in problem
    assert "s3cret" not in problem


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "http://bridge:s3cret@service/"},
        {"url": "s3cret"},
        {"headers": {"X-Key": "s3cret", "X-Number": 1}},
        {"token": ["s3cret"]},
        {"pasword": "s3cret"},
    ],
)
def test_settings_that_cannot_be_used_are_reported_without_secrets(settings: dict[str, Any]) -> None:
    values = {f"sink.{name}": value for name, value in ({"url": "http://service/"} | settings).items()}
    with pytest.raises(ConfigurationError, match=next(iter(settings))) as told:
        Schema(attrs.make_class("Config", {"sink": attrs.field(type=HttpSettings)})).load(None, values)
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["", "service", "ftp://service/", "http://", "http://user:word@service/", "http://a:0/"]
)
def test_what_is_no_url_of_a_service(url: str) -> None:
    with pytest.raises(ConfigurationError):
        Schema(attrs.make_class("Config", {"sink": attrs.field(type=HttpSettings)})).load(None, {"sink.url": url})
