"""A client that is frozen or has vanished says no goodbye: what it holds of a group goes to others within a bound."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import cast

import pytest
import trio

from journal.client import SessionTimes, open_client
from journal.net.output import Output
from journal.protocol import Op, frames
from journal.protocol.messages import CommitRequest, EndClientRequest, HelloRequest, ShardBatch, SubscribeRequest
from journal.server.connection import Connection
from tests.patience import PATIENCE_S
from tests.server.serving import RawClient, Served, batch_of, serving
from tests.steady_clock import SteadyClock

HEARTBEAT_S = 0.2
BOUND_S = 3 * HEARTBEAT_S

MEMBER = """
import sys, trio
from journal.client import SessionTimes, open_client
from shards.position import Start

async def main():
    async with open_client(sys.argv[1], times=SessionTimes(heartbeat_s=float(sys.argv[2]))) as client:
        async with client.subscribe(shard="a", start=Start.earliest(), group="g") as subscription:
            async for _ in subscription:
                print("got some", flush=True)

trio.run(main)
"""


async def join(client: RawClient) -> None:
    await client.call(Op.SUBSCRIBE, SubscribeRequest(1, "a", start="earliest", group="g"))


async def hello(client: RawClient, name: str, heartbeat_s: float = 0.0) -> None:
    await client.call(Op.HELLO, HelloRequest(frames.PROTOCOL_VERSION, name, None, round(heartbeat_s * 1000)))


async def assert_others_get(served: Served, within_s: float) -> None:
    """Another member gets what the first one held, no later than is promised."""
    async with served.client() as other:
        began_s = trio.current_time()
        await join(other)
        await other.push()
        assert trio.current_time() - began_s < within_s + 10, "the machine may be busy"


async def test_a_member_that_says_nothing_keeps_its_share_for_ever(tmp_path: Path, steady_clock: SteadyClock) -> None:
    """The server waited for a reset, which no frozen process and no machine without power sends."""
    async with serving(tmp_path) as served, served.client() as writer, served.stream() as stream:
        await writer.append_values(await writer.open("a"), b"held")
        silent = RawClient(stream)
        await hello(silent, "silent", HEARTBEAT_S)
        await join(silent)
        await silent.push()
        await assert_others_get(served, BOUND_S)
        assert served.server.statistics.connections_closed["silent"] == 1


async def test_a_frozen_process_keeps_its_share_for_ever(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        await writer.append_values(await writer.open("a"), b"held")
        command = [sys.executable, "-c", MEMBER, served.address, str(HEARTBEAT_S)]
        async with trio.open_nursery() as nursery:
            process = await nursery.start(
                lambda task_status: trio.run_process(command, capture_stdout=True, check=False, task_status=task_status)
            )
            with trio.fail_after(PATIENCE_S):
                while not served.engine.parts.subscriptions.count:
                    await trio.sleep(0.01)
            process.send_signal(signal.SIGSTOP)
            try:
                await assert_others_get(served, BOUND_S)
            finally:
                process.send_signal(signal.SIGKILL)


async def test_a_client_that_takes_nothing_keeps_the_server_from_listening_and_is_ended_as_well(tmp_path: Path) -> None:
    async with serving(tmp_path, socket_buffer_bytes=4096) as served, served.client() as writer:
        handle = await writer.open("a")
        for _ in range(8):
            await writer.append_values(handle, bytes(500_000))
        async with served.stream(receive_buffer_bytes=4096) as stream:
            stuck = RawClient(stream)
            await hello(stuck, "stuck", HEARTBEAT_S)
            await stuck.open("a")
            await stuck.send(*(frames.build_fetch(100 + number, 0, 0, 1 << 20, 0) for number in range(20)))
            with trio.fail_after(PATIENCE_S):
                while served.server.statistics.connections > 1:
                    await trio.sleep(0.01)


@pytest.mark.parametrize("scheme", ["journal", "journal+ws"])
async def test_a_client_that_has_nothing_to_say_keeps_its_promise(
    tmp_path: Path, scheme: str, steady_clock: SteadyClock
) -> None:
    async with serving(tmp_path) as served:
        port = served.ports["tcp" if scheme == "journal" else "websocket"]
        async with open_client(f"{scheme}://127.0.0.1:{port}", times=SessionTimes(heartbeat_s=HEARTBEAT_S)) as client:
            assert client.server is not None
            first = client.server.connection_id
            await trio.sleep(3 * BOUND_S)
            assert client.server.connection_id == first
        assert not served.server.statistics.connections_closed.get("silent")


async def test_a_client_that_promises_nothing_may_be_silent(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        await trio.sleep(2 * BOUND_S)
        await client.call(Op.PING)


async def test_a_client_is_ended_by_name_and_others_get_what_it_held(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as writer, served.stream() as stream:
        await writer.append_values(await writer.open("a"), b"held")
        member = RawClient(stream)
        await hello(member, "broker-7")
        await join(member)
        await member.push()
        assert (await writer.call(Op.END_CLIENT, EndClientRequest("nobody"))).connections == 0
        assert (await writer.call(Op.END_CLIENT, EndClientRequest("test"))).connections == 0, "not the one that asks"
        assert (await writer.call(Op.END_CLIENT, EndClientRequest("broker-7"))).connections == 1
        await assert_others_get(served, 0.0)
        told = await member.receive_until_closed()
        assert told[-1].status == 7, "it may connect again"


async def test_nothing_that_came_over_an_ended_connection_is_carried_out_after_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that waited for room outlived the answer while the peer took nothing, as a frozen one does."""
    room, drained = trio.Event(), trio.Event()
    async with serving(tmp_path) as served, served.client() as writer, served.stream() as stream:
        handle = await writer.open("a")
        frozen = RawClient(stream)
        await hello(frozen, "broker-7")
        (connection,) = [cast("Connection", one) for one in served.server._connections if one.client == "broker-7"]
        wait_drained = Output.wait_drained

        async def wait(output: Output) -> None:
            await (drained.wait() if output is connection.output else wait_drained(output))

        monkeypatch.setattr(Output, "wait_drained", wait)
        monkeypatch.setattr(served.engine.parts.transactions, "_wait_for_room", room.wait)
        _, request = frozen.start(Op.COMMIT, CommitRequest(appends=[ShardBatch("a", batch_of(b"late"))]))
        await frozen.send(request)
        with trio.fail_after(PATIENCE_S):
            while not connection._requests:
                await trio.sleep(0.005)
        correlation, request = writer.start(Op.END_CLIENT, EndClientRequest("broker-7"))
        await writer.send(request)
        with trio.move_on_after(0.2):
            raise AssertionError(f"{await writer.reply_to(Op.END_CLIENT, correlation)} came before the commit")
        room.set()
        assert (await writer.reply_to(Op.END_CLIENT, correlation)).connections == 1
        assert await writer.read_values(handle) == [b"late"]
        drained.set()
