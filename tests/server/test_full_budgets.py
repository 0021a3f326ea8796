"""While the engine accepts no appends, as in a long checkpoint of very many shards, only clients that write wait.

With a million new shards the files of a checkpoint took a minute to make. The server received nothing of anybody
meanwhile, and refused new clients with "no HELLO within 10 s", although it had not looked for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from journal.protocol import Op, frames
from journal.protocol.messages import (
    CommitRequest,
    CreateShardRequest,
    CursorListRequest,
    DescribeShardRequest,
    OpenShardRequest,
    StatePutRequest,
    StateScanRequest,
)
from tests.patience import PATIENCE_S
from tests.server.json_protocol.talking import talking
from tests.server.serving import FILE, RawClient, Served, batch_of, serving


@contextmanager
def no_room(served: Served) -> Iterator[None]:
    """For the length of the block both budgets are used up."""
    checkpointer = served.engine.parts.checkpointer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointer, "has_room", lambda: False)
        yield
    checkpointer.wake()


async def assert_waits(client: RawClient, op: Op, correlation: int) -> None:
    with trio.move_on_after(0.2) as waiting:
        await client.reply_to(op, correlation)
    assert waiting.cancelled_caught


async def test_a_client_that_writes_waits_and_its_requests_are_carried_out_in_order_later(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        handle = await writer.open("a")
        await writer.append_values(handle, b"0")
        with no_room(served):
            correlation, request = writer.start(Op.PING)
            await writer.send(request)
            await assert_waits(writer, Op.PING, correlation)
        with trio.fail_after(PATIENCE_S):
            await writer.reply_to(Op.PING, correlation)
            await writer.append_values(handle, b"1")
        assert await writer.read_values(handle) == [b"0", b"1"]


async def test_clients_that_only_read_go_on_and_new_ones_are_greeted(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as writer, served.client() as reader:
        await writer.append_values(await writer.open("a"), b"0")
        with no_room(served), trio.fail_after(PATIENCE_S):
            handle = await reader.open("a", None)
            assert await reader.read_values(handle) == [b"0"]
            async with served.client() as late:
                info = await late.call(Op.DESCRIBE_SHARD, DescribeShardRequest("a"))
                assert info.next_offset == 1


async def test_the_first_append_of_a_client_waits_with_what_comes_after_it(tmp_path: Path) -> None:
    """It was stored: clients that connect, append and go filled the memory."""
    async with serving(tmp_path) as served, served.client() as writer, served.client() as reader:
        await writer.open("a")
        handle = await reader.open("a", None)
        with no_room(served):
            append = frames.build_append(7, handle, batch_of(b"0"))
            ping, request = reader.start(Op.PING)
            await reader.send(append, request)
            await assert_waits(reader, Op.PING, ping)
            assert served.engine.shard("a").published_offset == 0
        with trio.fail_after(PATIENCE_S):
            await reader.reply_to(Op.PING, ping)
            await reader.acks([7])
            assert await reader.read_values(handle) == [b"0"]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Op.OPEN_SHARD, OpenShardRequest("b", FILE)),
        (Op.CREATE_SHARD, CreateShardRequest("b", FILE)),
        (Op.STATE_PUT, StatePutRequest(b"key", b"value")),
        (Op.COMMIT, CommitRequest(puts=[StatePutRequest(b"key", b"value")])),
    ],
)
async def test_the_first_change_of_a_client_waits(tmp_path: Path, op: Op, message: object) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        with no_room(served):
            correlation, request = client.start(op, message)
            await client.send(request)
            await assert_waits(client, op, correlation)
            assert served.engine.committed_lsn == 0
        with trio.fail_after(PATIENCE_S):
            await client.reply_to(op, correlation)


async def test_cursors_and_states_are_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as writer, served.client() as reader:
        await writer.open("a")
        with no_room(served), trio.fail_after(PATIENCE_S):
            for _ in range(2):
                assert (await reader.call(Op.STATE_SCAN, StateScanRequest(b""))).values == []
                assert (await reader.call(Op.CURSOR_LIST, CursorListRequest("a"))).cursors == []


async def test_a_client_of_the_json_protocol_reads_on_and_waits_with_its_first_append(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as writer:
        await writer.append("a", "0", create={})
        async with talking(served) as reader:
            with no_room(served), trio.fail_after(PATIENCE_S):
                found = await reader.call("read", shard="a")
                assert [record["value"] for record in found["records"]] == ["0"]
                append = await reader.start("append", shard="a", records=[{"value": "1"}])
                with trio.move_on_after(0.2) as waiting:
                    await reader.result(append)
                assert waiting.cancelled_caught
            assert (await reader.result(append))["base_offset"] == 1
