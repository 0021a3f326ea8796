"""The same frames over WebSocket, and health and metrics over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket

from journal.client import open_client
from journal.protocol import FrameParser, Op, decode_error, encode, frames, messages
from journal.settings.server import OnFailure
from shards.errors import StorageFailedError
from shards.model import ShardConfig
from tests.patience import PATIENCE_S
from tests.server.serving import FILE, RawClient, Served, batch_of, serving, values_of


class MessageStream:
    """A WebSocket as the byte stream that the raw client expects; checks that messages hold whole frames."""

    def __init__(self, websocket: WebSocketConnection) -> None:
        self.websocket = websocket

    async def send_all(self, data: bytes) -> None:
        await self.websocket.send_message(data)

    async def receive_some(self, size_bytes: int) -> bytes:
        try:
            message = await self.websocket.get_message()
        except ConnectionClosed:
            return b""
        parser = FrameParser(64 << 20)
        parser.feed(message)
        list(parser)
        assert parser.is_empty, "a message ends inside a frame"
        return bytes(message)


@asynccontextmanager
async def websocket_client(served: Served, *, greet: bool = True, messages_ahead: int = 1) -> AsyncIterator[RawClient]:
    """A client; with ``messages_ahead`` it can be closed while so many messages are unread."""
    async with open_websocket(
        "127.0.0.1",
        served.ports["websocket"],
        "/",
        use_ssl=False,
        max_message_size=64 << 20,
        message_queue_size=messages_ahead,
    ) as raw:
        client = RawClient(MessageStream(raw))  # type: ignore[arg-type]
        if greet:
            await client.hello()
        yield client
        # trio-websocket leaves the socket of a client open when the server was the first to close.
        await trio.aclose_forcefully(raw._stream)


async def test_the_same_frames_travel_in_binary_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, websocket_client(served) as client, served.client() as tcp:
        handle = await client.open("a", FILE)
        assert (await client.append_values(handle, b"0", b"1")).level == 2
        await client.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, shard="a", start="earliest"))
        push = await client.push()
        assert values_of(push.batches) == [b"0", b"1"]
        await tcp.append_values(await tcp.open("a"), b"2")
        assert values_of((await client.push()).batches) == [b"2"]
        assert await client.read_values(handle) == [b"0", b"1", b"2"]


async def test_a_message_holds_whole_frames_however_much_waits(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, websocket_client(served) as client:
        handle = await client.open("a")
        for _ in range(8):
            await client.append_values(handle, *[bytes(1000)] * 100)
        requests = [frames.build_fetch(number + 10, handle, 0, 1 << 20, 0) for number in range(40)]
        await client.send(*requests)
        for number in range(40):
            assert (await client.fetched(number + 10)).next_offset > 0


@pytest.mark.parametrize("message", ["text", frames.build(Op.PING, 1)[:-1], b"x" * 11, b"\xff" * 12])
async def test_a_message_that_is_no_frame_ends_the_connection_with_the_reason(
    tmp_path: Path, message: str | bytes
) -> None:
    async with serving(tmp_path) as served, websocket_client(served) as client, websocket_client(served) as other:
        await client.stream.websocket.send_message(message)  # type: ignore[attr-defined]
        answers = await client.receive_until_closed()
        error = str(decode_error(answers[-1].status, answers[-1].body))
        assert "binary" in error or "complete frame" in error or "bytes: a frame has" in error
        await other.call(Op.PING)


async def test_clients_without_websocket_are_refused_and_harm_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__hello_timeout_s=1) as served:
        for sent in (
            b"",
            b"\x00" * 100,
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            frames.build(1, 1),
        ):
            async with await trio.open_tcp_stream("127.0.0.1", served.ports["websocket"]) as stream:
                await stream.send_all(sent)
        async with await trio.open_tcp_stream("127.0.0.1", served.ports["websocket"]) as stream:
            with trio.fail_after(PATIENCE_S):
                while await stream.receive_some(1000):
                    pass
        async with websocket_client(served) as client:
            await client.call(Op.PING)
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections:
                await trio.sleep(0.01)


async def test_a_websocket_client_that_disappears_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        async with websocket_client(served) as client:
            await client.open("a")
            await client.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, filter="#"))
            await trio.aclose_forcefully(client.stream.websocket._stream)  # type: ignore[attr-defined]
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections or served.engine.parts.subscriptions.count:
                await trio.sleep(0.01)


async def test_the_limit_of_connections_holds_for_all_listeners_together(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__max_connections=1) as served, served.client() as client:
        async with await trio.open_tcp_stream("127.0.0.1", served.ports["websocket"]) as stream:
            assert await stream.receive_some(1) == b""
        await client.call(Op.PING)


async def test_the_product_s_client_works_over_both(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for address in (served.address, f"journal+ws://127.0.0.1:{served.ports['websocket']}"):
            async with open_client(address) as client:
                await client.open_shard("a", create=ShardConfig())
                appended = await client.append("a", [b"x"])
                async with client.subscribe(shard="a") as subscription:
                    await client.append("a", [b"y"])
                    delivery = await anext(subscription)
                    assert values_of(delivery.batches, delivery.first_offset) == [b"y"]
                    assert delivery.first_offset == appended.base_offset + 1


# HTTP


@asynccontextmanager
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.ports['http']}", timeout=PATIENCE_S) as client:
        yield client


async def test_health_and_metrics(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, http(served) as browser, served.client() as client:
        assert (await browser.get("/livez")).status_code == 200
        ready = await browser.get("/readyz")
        assert (ready.status_code, ready.text) == (200, "ready\n")
        missing = await browser.get("/nothing")
        assert (missing.status_code, missing.text[:40]) == (404, "there is no such page; pages are / (the ")
        handle = await client.open("a")
        await client.append_values(handle, b"x")
        await client.send(frames.build(Op.DELETE_SHARD, 99, encode(messages.NameRequest("none"))))
        await client.receive()
        page = await browser.get("/metrics")
        families = {family.name: family for family in text_string_to_metric_families(page.text)}
        samples = {name: family.samples[0].value for name, family in families.items() if family.samples}
        assert samples["journal_appends"] == 1
        assert samples["journal_shards"] == 1
        assert samples["journal_connections"] == 1
        assert samples["journal_failed"] == 0
        refusals = {
            sample.labels["code"]: sample.value for sample in families["journal_refusals"].samples if sample.value
        }
        assert refusals == {"shard_not_found": 1}
        assert all(family.documentation for family in families.values())


async def test_a_page_whose_name_was_made_to_point_to_the_server_sees_no_metrics(tmp_path: Path) -> None:
    rebound = {"host": "attacker.example:7422"}
    elsewhere = {"origin": "https://attacker.example"}
    listed = {"host": "journal.example:7422"}
    async with (
        serving(
            tmp_path,
            storage__on_failure=OnFailure.READ_ONLY,
            listen__websocket_origins=("https://journal.example:7422",),
        ) as served,
        http(served) as browser,
    ):
        for headers in (rebound, elsewhere):
            refused = await browser.get("/metrics", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "origin_refused")
        for path in ("/livez", "/readyz"):
            assert (await browser.get(path, headers=rebound)).status_code == 200
        assert (await browser.get("/metrics", headers=listed)).status_code == 200
        served.engine.parts.committer.fail(OSError(5, "Input/output error"))
        assert "Input/output error" not in (await browser.get("/readyz", headers=rebound)).text
        assert "Input/output error" in (await browser.get("/readyz", headers=listed)).text


async def test_after_a_storage_failure_the_server_is_alive_but_not_ready(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, storage__on_failure=OnFailure.READ_ONLY) as served,
        http(served) as browser,
        served.client() as client,
    ):
        handle = await client.open("a")
        await client.append_values(handle, b"x")
        served.engine.parts.committer.fail(OSError(5, "Input/output error"))
        ready = await browser.get("/readyz")
        assert ready.status_code == 503
        assert "Input/output error" in ready.text
        assert "Restart the server" in ready.text
        assert (await browser.get("/livez")).status_code == 200
        assert await client.read_values(handle) == [b"x"]
        with pytest.raises(StorageFailedError, match="Input/output error"):
            await client.append(handle, batch_of(b"y"))
        with pytest.raises(StorageFailedError, match="Input/output error"):
            await client.call(Op.STATE_PUT, messages.StatePutRequest(b"k", b"v"))
        for request in (messages.CreateShardRequest("b"),):
            with pytest.raises(StorageFailedError):
                await client.call(Op.CREATE_SHARD, request)
        with pytest.raises(StorageFailedError):
            await client.call(Op.DELETE_SHARD, messages.NameRequest("a"))
        assert await client.read_values(handle) == [b"x"]
