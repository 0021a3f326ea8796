"""Bad frames: what each costs the client that sends it, and no other."""

from __future__ import annotations

import struct
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio
import trio.testing

from journal.protocol import Op, decode_error, encode, frames, messages
from journal.protocol.errors import RemoteProtocolError, UnknownOperationError
from journal.protocol.frames import HEADER, HELLO_MAX_FRAME_BYTES
from shards.errors import FormatVersionError, StorageError
from tests.patience import PATIENCE_S
from tests.server.serving import RawClient, Served, batch_of, serving

HELLO = frames.build(Op.HELLO, 1, encode(messages.HelloRequest(frames.PROTOCOL_VERSION, "test")))


async def refusal_of(served: Served, *sent: bytes, greet: bool = True) -> StorageError:
    """The last error frame that comes before the connection is closed."""
    async with served.stream() as stream:
        client = RawClient(stream)
        if greet:
            await client.hello()
        await client.send(*sent)
        answers = await client.receive_until_closed()
        assert answers, "closed without a word"
        assert (answers[-1].correlation, answers[-1].status) != (0, 0)
        return decode_error(answers[-1].status, answers[-1].body)


async def assert_serves(served: Served) -> None:
    async with served.client() as client:
        handle = await client.open("still/served")
        ack = await client.append_values(handle, b"x")
        assert (await client.read_values(handle, ack.base_offset)) == [b"x"]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (HEADER.pack(3 << 20, Op.PING, 0, 1), "frame of 3145728 bytes: a frame has 12 to 2097152"),
        (HEADER.pack(11, Op.PING, 0, 1), "frame of 11 bytes: a frame has 12 to"),
        (HEADER.pack(0, 0, 0, 0), "frame of 0 bytes"),
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "frame of 542393671 bytes"),
        (struct.pack("<IHHIII", 20, Op.FETCH, 0, 1, 0, 0), "FETCH body of 8 bytes"),
        (frames.build(Op.CREDIT, 0, b"123"), "CREDIT body of 3 bytes"),
        (frames.build(Op.ACKNOWLEDGE, 0, bytes(25)), "ACKNOWLEDGE body of 25 bytes"),
        (frames.build(Op.APPEND, 1, b"123"), "APPEND frame of 15 bytes"),
    ],
)
async def test_broken_framing_gets_an_error_and_ends_the_connection(tmp_path: Path, sent: bytes, message: str) -> None:
    async with serving(tmp_path) as served:
        error = await refusal_of(served, sent)
        assert isinstance(error, RemoteProtocolError)
        assert message in str(error)
        await assert_serves(served)


async def test_the_first_frame_is_hello(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for sent in (frames.build(Op.PING, 1), frames.build_append(1, 0, batch_of(b"x"))):
            error = await refusal_of(served, sent, greet=False)
            assert "first frame must be HELLO" in str(error)
        error = await refusal_of(served, HEADER.pack(HELLO_MAX_FRAME_BYTES + 1, Op.HELLO, 0, 1), greet=False)
        assert "12 to 65536 bytes" in str(error)
        await assert_serves(served)


async def test_another_version_is_refused_and_ends_the_connection(tmp_path: Path) -> None:
    own = frames.PROTOCOL_VERSION
    async with serving(tmp_path) as served:
        for version, older in ((own - 1, "the client"), (own + 1, "this server")):
            hello = frames.build(Op.HELLO, 1, encode(messages.HelloRequest(version, "test")))
            error = await refusal_of(served, hello, greet=False)
            assert isinstance(error, FormatVersionError)
            assert f"the client uses protocol version {version} and this server (" in str(error)
            assert f") uses version {own}; update {older}" in str(error)
        garbled = frames.build(Op.HELLO, 1, b"\xc1")
        assert isinstance(await refusal_of(served, garbled, greet=False), RemoteProtocolError)
        await assert_serves(served)


async def test_who_says_nothing_is_sent_away(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__hello_timeout_s=1) as served:
        for beginning in (b"", HELLO[:5]):
            async with served.stream() as stream:
                await stream.send_all(beginning)
                client = RawClient(stream)
                with trio.fail_after(PATIENCE_S):
                    answers = await client.receive_until_closed()
                assert "no HELLO within 1 s" in str(decode_error(answers[-1].status, answers[-1].body))
        async with served.client() as client:
            await trio.sleep(1.2)
            await client.call(Op.PING)


async def test_a_request_that_makes_no_sense_costs_only_itself(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        for op, body, error, message in (
            (99, b"", UnknownOperationError, "operation 99"),
            (Op.PUSH, b"", UnknownOperationError, "operation 43"),
            (Op.CREATE_SHARD, b"\xc1", RemoteProtocolError, "CREATE_SHARD"),
            (Op.CREATE_SHARD, b"", RemoteProtocolError, "name"),
            (Op.CREATE_SHARD, encode({"name": 5}), RemoteProtocolError, "name"),
            (Op.CREATE_SHARD, encode({"name": "a"})[:-1], RemoteProtocolError, "CREATE_SHARD"),
            (Op.LIST_SHARDS, encode({"limit": -1}), RemoteProtocolError, "limit"),
            (Op.SUBSCRIBE, encode({"subscription": 1 << 40}), RemoteProtocolError, "subscription"),
            (Op.TRIM, encode({"name": "a", "before_offset": 1 << 63}), RemoteProtocolError, "before_offset"),
            (Op.STATE_SCAN, b"\x91" * 5000, RemoteProtocolError, "STATE_SCAN"),
        ):
            correlation = client.next_correlation()
            await client.send(frames.build(op, correlation, body))
            reply = await client.receive(lambda frame, wanted=correlation: frame.correlation == wanted)
            refused = decode_error(reply.status, reply.body)
            assert isinstance(refused, error), refused
            assert message in str(refused)
        await client.call(Op.PING)
        # Unknown fields are for newer clients.
        correlation = client.next_correlation()
        await client.send(frames.build(Op.CREATE_SHARD, correlation, encode({"name": "a", "colour": "blue"})))
        assert (await client.reply_to(Op.CREATE_SHARD, correlation)).name == "a"


async def test_a_connection_cut_anywhere_leaves_nothing_behind(tmp_path: Path) -> None:
    whole = HELLO + frames.build(Op.OPEN_SHARD, 2, encode(messages.OpenShardRequest("a", None)))
    whole += frames.build_append(3, 0, batch_of(b"x" * 1000)) + frames.build_fetch(4, 0, 0, 1000, 60_000)
    async with serving(tmp_path) as served:
        async with served.client() as client:
            await client.open("a")
        for cut in (*range(0, 60, 7), len(whole) - 40, len(whole) - 1, len(whole)):
            async with served.stream() as stream:
                await stream.send_all(whole[:cut])
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections:
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert served.engine.parts.table.by_name("a").listeners is None
        await assert_serves(served)


async def test_too_many_connections_are_turned_away(tmp_path: Path) -> None:
    async with serving(tmp_path, limits__max_connections=2) as served, served.client() as first:
        async with served.client():
            async with served.stream() as stream:
                assert await RawClient(stream).receive_until_closed() == []
            await first.call(Op.PING)
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections > 1:
                await trio.testing.wait_all_tasks_blocked(0.01)
        async with served.client() as again:
            await again.call(Op.PING)


@pytest.mark.parametrize("listener", ["tcp", "websocket"])
async def test_silent_connections_make_room_for_those_that_send_hello(tmp_path: Path, listener: str) -> None:
    """Otherwise a client that opens connections fast enough would keep all others out, without a password."""
    async with serving(tmp_path, limits__max_connections=5) as served, AsyncExitStack() as stack:
        known = [await stack.enter_async_context(served.client()) for _ in range(2)]
        strangers = [
            await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", served.ports[listener]))
            for _ in range(20)
        ]
        async with served.client() as late:
            await late.call(Op.PING)
        with trio.fail_after(PATIENCE_S):
            # The oldest are let go, the latest are not.
            assert await closed(strangers[0])
            for client in known:
                await client.call(Op.PING)
            assert served.server.statistics.connections <= 5


async def closed(stream: trio.SocketStream) -> bool:
    try:
        return not await stream.receive_some(1)
    except trio.BrokenResourceError:
        return True
