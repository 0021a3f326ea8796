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

from journal.protocol import Op
from journal.protocol.messages import DescribeShardRequest
from tests.patience import PATIENCE_S
from tests.server.json_protocol.talking import talking
from tests.server.serving import RawClient, Served, batch_of, serving


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


@pytest.mark.parametrize("creates", [False, True])
async def test_a_client_begins_to_wait_after_its_first_write(tmp_path: Path, creates: bool) -> None:
    """What it sends at once with its first append may exceed the budgets, and no more than that."""
    async with serving(tmp_path) as served, served.client() as writer, served.client() as reader:
        await writer.open("a")
        handle = await reader.open("a", None)
        with no_room(served):
            with trio.fail_after(PATIENCE_S):
                if creates:
                    await reader.open("b")
                else:
                    await reader.append(handle, batch_of(b"0"))
            correlation, request = reader.start(Op.PING)
            await reader.send(request)
            await assert_waits(reader, Op.PING, correlation)
        with trio.fail_after(PATIENCE_S):
            await reader.reply_to(Op.PING, correlation)


async def test_a_client_of_the_json_protocol_reads_on_and_waits_after_its_first_append(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, talking(served) as writer:
        await writer.append("a", "0", create={})
        with no_room(served), trio.fail_after(PATIENCE_S):
            async with talking(served) as reader:
                found = await reader.call("read", shard="a")
                assert [record["value"] for record in found["records"]] == ["0"]
                await reader.append("a", "1")
                ping = await reader.start("ping")
                with trio.move_on_after(0.2) as waiting:
                    await reader.result(ping)
                assert waiting.cancelled_caught
        assert (await writer.append("a", "2"))["base_offset"] == 2
