"""Calls and connections: answers to the right callers, repeated reads, refusals, giving up, addresses."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio_websocket import ConnectionClosed, WebSocketRequest, serve_websocket

from journal.client import SessionTimes, open_client
from journal.client.address import Address
from journal.protocol import Op
from journal.protocol.errors import AuthenticationError, ConnectionLostError, UnknownOperationError
from shards.back_off import BackOff
from shards.errors import (
    InvalidRequestError,
    LimitExceededError,
    OffsetOutOfRangeError,
    OverloadedError,
    ShardNotFoundError,
)
from shards.format.batch import read_records
from shards.format.record import StoredRecord
from shards.model import ShardConfig
from shards.position import Start
from tests.client.fake_server import FakeServer

pytestmark = pytest.mark.trio
FAST: dict[str, Any] = {"backoff": BackOff(0.001, 0.01)}


async def test_shards_are_created_opened_and_listed_over_pages() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        for number in range(5):
            await client.create_shard(f"s{number}")
        assert (await client.open_shard("extra", create=ShardConfig())).name == "extra"
        page = await client.list_shards_page(limit=2)
        assert ([shard.name for shard in page.shards], page.more) == (["extra", "s0"], True)
        assert [shard.name for shard in await client.list_shards()] == ["extra", "s0", "s1", "s2", "s3", "s4"]


async def test_fetch_gives_whole_batches_from_the_one_that_holds_the_offset() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("a")
        await client.append("a", [b"0", b"1", b"2"])
        await client.append("a", [b"3"])
        reply = await client.fetch("a", 1)
        records = read_records(reply.batches, start_offset=1, max_raw_bytes=1 << 20)
        assert [record.offset for record in records if isinstance(record, StoredRecord)] == [1, 2, 3]
        assert reply.next_offset == 4
        assert (await client.fetch("a", 4)).next_offset == 4
        assert await client.find_offset("a", Start.latest()) == 4
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await client.fetch("a", 9)
        assert (caught.value.start_offset, caught.value.next_offset) == (0, 4)


async def test_large_batches_arrive_whole() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("a")
        value = bytes(range(256)) * 8192
        for _ in range(3):
            await client.append("a", [value])
        reply = await client.fetch("a", 0, max_bytes=8 << 20)
        records = read_records(reply.batches, max_raw_bytes=64 << 20)
        assert [record.value for record in records if isinstance(record, StoredRecord)] == [value] * 3


async def test_reads_are_repeated_after_a_lost_connection() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        await client.append("a", [b"0"])
        await server.kill_connections()
        assert (await client.fetch("a", 0)).next_offset == 1
        await server.kill_connections()
        assert len(await client.list_shards()) == 1


async def test_a_write_without_reply_is_of_unknown_outcome() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def put() -> None:
                with pytest.raises(ConnectionLostError):
                    await client.put_state(b"k", b"v")

            while Op.STATE_PUT not in server.seen:
                await trio.lowlevel.checkpoint()
            await server.kill_connections()
        await client.ping()


async def test_cancelled_call_leaves_the_connection_whole() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        with trio.move_on_after(0.01) as scope:
            await client.put_state(b"k", b"v")
        assert scope.cancelled_caught
        await client.ping()
        assert server.session_count == 1


async def test_errors_come_as_their_classes() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        with pytest.raises(ShardNotFoundError):
            await client.open_shard("nowhere")
        with pytest.raises(UnknownOperationError):
            await client.get_cursor("a", "c")
        server.fault = lambda op, request: OverloadedError("full")
        with pytest.raises(OverloadedError):
            await client.create_shard("a")


async def test_a_request_longer_than_a_frame_may_be_does_not_reach_the_server() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        with pytest.raises(LimitExceededError, match="STATE_PUT"):
            await client.put_state(b"k", bytes(17 << 20))
        await client.ping()
        assert server.session_count == 1


async def test_wrong_credentials_are_final() -> None:
    async with FakeServer().running() as server:
        server.token = "right"
        with pytest.raises(AuthenticationError):
            async with open_client(server.address, credentials={"token": "wrong"}, **FAST):
                pytest.fail("the block must not be entered")
        async with open_client(server.address, credentials={"token": "right"}) as client:
            await client.ping()


async def test_client_waits_for_a_server_that_is_not_there_yet_or_gives_up() -> None:
    async with FakeServer().running() as server:
        address = server.address
    with pytest.raises(ConnectionLostError, match="gave up"):
        async with open_client(address, times=SessionTimes(give_up_after_s=0.02), **FAST):
            pytest.fail("the block must not be entered")


async def test_garbage_greeting_is_survived() -> None:
    async with FakeServer().running() as server:
        server.greeting = b"220 smtp.example.org ESMTP\r\n"
        async with open_client(server.address, **FAST) as client:
            await client.ping()
            assert server.session_count == 2


async def test_errors_of_the_block_are_not_wrapped() -> None:
    async with FakeServer().running() as server:
        with pytest.raises(KeyError):
            async with open_client(server.address):
                raise KeyError("mine")


async def test_silent_server_is_noticed() -> None:
    async with (
        FakeServer().running() as server,
        open_client(server.address, times=SessionTimes(ping_interval_s=0.02), **FAST) as client,
    ):
        server.fault = lambda op, request: None
        silent = server.sessions[0]
        silent.handle = lambda op, correlation, body: None  # type: ignore[method-assign]
        while client.server is None or client.server.connection_id < 2:
            await trio.sleep(0)
        await client.ping()


async def test_the_same_frames_travel_in_websocket_messages() -> None:
    server = FakeServer()
    server.create("a")

    async def bridge(request: WebSocketRequest) -> None:
        websocket = await request.accept()
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def back() -> None:
                while data := await stream.receive_some(1000):
                    await websocket.send_message(data)

            try:
                while True:
                    message = await websocket.get_message()
                    assert isinstance(message, bytes)
                    await stream.send_all(message)
            except ConnectionClosed:
                nursery.cancel_scope.cancel()
        await stream.aclose()

    async with server.running(), trio.open_nursery() as nursery:
        web = await nursery.start(partial(serve_websocket, bridge, "127.0.0.1", 0, ssl_context=None))
        async with open_client(f"journal+ws://127.0.0.1:{web.port}") as client:
            assert (await client.append("a", [b"x" * 5000])).base_offset == 0
            assert (await client.fetch("a", 0)).next_offset == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:7420", Address("tcp", "localhost", 7420)),
        ("journal://db.example.org", Address("tcp", "db.example.org", 7420)),
        ("journal+ws://10.0.0.1:8000/journal", Address("ws", "10.0.0.1", 8000, "/journal")),
        ("wss://host", Address("wss", "host", 7421)),
        ("[::1]:99", Address("tcp", "::1", 99)),
        ("journal://[::1]", Address("tcp", "::1", 7420)),
    ],
)
async def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["", ":7420", "http://host:1", "host:port", "host:70000"])
async def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="address"):
        Address.parse(text)
