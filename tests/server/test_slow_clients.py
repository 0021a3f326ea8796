"""What one client can make the server hold is bounded, and a slow or dead one never delays others."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from journal.protocol import Op, encode, frames, messages
from journal.settings.values import KIB, MIB
from tests.patience import PATIENCE_S
from tests.server.serving import RawClient, Served, acks_in, batch_of, serving

OUTPUT_LIMIT = 2 * MIB
SMALL_BUFFER = 4 * KIB


def waiting_bytes(served: Served) -> int:
    """The most that is in the server for one connection, beyond what it sent."""
    return max(connection.output.waiting_bytes for connection in served.server._connections)


@pytest.fixture(autouse=True)
def time_passes(mock_clock: MockClock) -> None:
    """Until a test stops it."""
    mock_clock.rate = 1.0


@contextmanager
def no_time_passes(clock: MockClock) -> Iterator[None]:
    """What waits for a time limit or a pause of the server does not go on, however slow the machine is."""
    clock.rate = 0.0
    try:
        yield
    finally:
        clock.rate = 1.0


async def assert_normal_speed(served: Served, clock: MockClock) -> None:
    """Another client's appends and reads wait for nothing; 50 round trips take far less than a second of work."""
    async with served.client() as client:
        handle = await client.open("other")
        began_s = time.thread_time()
        with no_time_passes(clock):
            for number in range(50):
                ack = await client.append_values(handle, b"%d" % number)
            assert len((await client.fetch(handle, ack.base_offset)).batches)
        assert time.thread_time() - began_s < 1


async def send_until_stuck(client: RawClient, part: bytes, most_bytes: int) -> int:
    """Send the same bytes until the server takes no more; gives how many went."""
    sent = 0
    stream = client.stream
    assert isinstance(stream, trio.SocketStream)
    with trio.move_on_after(0.5) as scope:
        while sent < most_bytes:
            at = sent % len(part)
            sent += await stream.socket.send(memoryview(part)[at : at + most_bytes - sent])
            scope.deadline = trio.current_time() + 0.5
    return sent


@asynccontextmanager
async def stuck_client(served: Served) -> AsyncIterator[RawClient]:
    async with served.client(receive_buffer_bytes=SMALL_BUFFER) as client:
        yield client


async def test_unread_fetches_are_bounded(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        handle = await writer.open("a")
        for _ in range(16):
            await writer.append_values(handle, bytes(256 * KIB))
        await served.engine.parts.checkpointer.flush()
        held: list[int] = []
        async with stuck_client(served) as client:
            await client.open("a")
            fetches = [frames.build_fetch(number + 10, 0, 0, 512 * KIB, 0) for number in range(1000)]
            await send_until_stuck(client, b"".join(fetches), sum(map(len, fetches)))
            await trio.testing.wait_all_tasks_blocked(0.005)
            held.append(waiting_bytes(served))
            await assert_normal_speed(served, mock_clock)
            held.append(waiting_bytes(served))
        # The limit, and the one reply that passed it.
        assert max(held) <= OUTPUT_LIMIT + 768 * KIB
        assert max(held) > 0


async def test_unread_replies_to_small_requests_are_bounded(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        for number in range(100):
            await writer.call(Op.CREATE_SHARD, messages.CreateShardRequest(f"a/{number}"))
        async with stuck_client(served) as client:
            _, listing = client.start(Op.LIST_SHARDS, messages.ListShardsRequest())
            sent = await send_until_stuck(client, listing * 100, 8 * MIB)
            assert sent < 8 * MIB, "the server went on taking requests whose replies the client does not read"
            assert waiting_bytes(served) <= OUTPUT_LIMIT + 256 * KIB
            await assert_normal_speed(served, mock_clock)


async def test_unread_pages_of_state_are_bounded(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        for number in range(8):
            await writer.call(Op.STATE_PUT, messages.StatePutRequest(b"k%d" % number, bytes(32 * KIB)))
        async with stuck_client(served) as client:
            _, scan = client.start(Op.STATE_SCAN, messages.StateScanRequest(b"k"))
            sent = await send_until_stuck(client, scan * 100, 8 * MIB)
            assert sent < 8 * MIB, "the server went on taking requests whose replies the client does not read"
            assert waiting_bytes(served) <= OUTPUT_LIMIT + 512 * KIB
            await assert_normal_speed(served, mock_clock)


async def test_appends_with_unread_acknowledgements_are_bounded(tmp_path: Path, mock_clock: MockClock) -> None:
    """Single records of a few bytes: an acknowledgement is a tenth of what was sent."""
    limits = {"limits__max_output_bytes_per_connection": 64 * KIB}
    async with serving(tmp_path, socket_buffer_bytes=64 * KIB, **limits) as served:
        async with stuck_client(served) as client:
            assert isinstance(client.stream, trio.SocketStream)
            client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
            handle = await client.open("a")
            part = b"".join([frames.build_append(number + 10, handle, batch_of(b"x")) for number in range(500)])
            sent = await send_until_stuck(client, part, 32 * MIB)
            assert sent < 32 * MIB, "the server went on taking appends whose acknowledgements the client does not read"
            assert waiting_bytes(served) <= 320 * KIB  # the limit, and the acknowledgements of what was in flight
            await assert_normal_speed(served, mock_clock)
            # What was taken is acknowledged once the client reads again, in order.
            count = 0
            while count < sent // (len(part) // 500):
                acks = list(acks_in(await client.receive()))
                assert [ack.base_offset for ack in acks] == list(range(count, count + len(acks)))
                count += len(acks)


async def test_unread_pushes_are_bounded_by_the_output_as_well(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        handle = await writer.open("a")
        async with stuck_client(served) as client:
            await client.call(
                Op.SUBSCRIBE, messages.SubscribeRequest(1, shard="a", start="earliest", credit_bytes=1 << 31)
            )
            for _ in range(24):
                await writer.append_values(handle, bytes(256 * KIB))
            await trio.testing.wait_all_tasks_blocked(0.005)
            assert waiting_bytes(served) <= OUTPUT_LIMIT + 2 * MIB
            await assert_normal_speed(served, mock_clock)


async def test_half_frames_do_not_use_up_the_receive_buffers(tmp_path: Path, mock_clock: MockClock) -> None:
    """As many clients as there are buffers stop in the middle of a frame, and go on later."""
    async with serving(tmp_path, storage__receive_buffers=4, storage__receive_buffer_bytes=64 * KIB) as served:
        async with trio.open_nursery() as nursery:
            cut = trio.Event()
            go_on = trio.Event()
            began = 0

            async def hold_up(number: int) -> None:
                nonlocal began
                async with served.client() as client:
                    handle = await client.open("a")
                    frame = frames.build_append(99, handle, batch_of(bytes([number]) * 30_000))
                    await client.send(frame[: 1 + number * 3000])
                    began += 1
                    if began == 8:
                        cut.set()
                    await go_on.wait()
                    await client.send(frame[1 + number * 3000 :])
                    await client.acks([99])

            for number in range(8):
                nursery.start_soon(hold_up, number)
            await cut.wait()
            await trio.testing.wait_all_tasks_blocked(0.005)
            await assert_normal_speed(served, mock_clock)
            go_on.set()
        async with served.client() as reader:
            values = await reader.read_values(await reader.open("a"))
            assert sorted(values) == [bytes([number]) * 30_000 for number in range(8)]


async def test_clients_that_take_nothing_do_not_use_up_the_receive_buffers(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path, storage__receive_buffers=2, storage__receive_buffer_bytes=64 * KIB) as served:
        async with served.client() as writer:
            handle = await writer.open("a")
            for _ in range(8):
                await writer.append_values(handle, bytes(256 * KIB))
            async with stuck_client(served) as one, stuck_client(served) as two, stuck_client(served) as three:
                fetches = b"".join([frames.build_fetch(number + 10, 0, 0, 512 * KIB, 0) for number in range(1000)])
                for client in (one, two, three):
                    await client.open("a")
                    await send_until_stuck(client, fetches, len(fetches))
                await assert_normal_speed(served, mock_clock)


async def test_a_fetch_larger_than_all_limits_gives_one_batch(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        handle = await client.open("a")
        for _ in range(3):
            await client.append_values(handle, bytes(1000 * KIB))
        reply = await client.fetch(handle, 0, max_bytes=0xFFFFFFFF)
        assert 1 <= reply.next_offset <= 2
        assert (await client.fetch(handle, 0, max_bytes=0)).next_offset == 1


async def test_a_stop_waits_for_no_slow_client(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as served, served.client() as writer:
        handle = await writer.open("a")
        for _ in range(16):
            await writer.append_values(handle, bytes(256 * KIB))
        async with stuck_client(served) as client, served.client() as good:
            await client.open("a")
            fetches = b"".join([frames.build_fetch(number + 10, 0, 0, 512 * KIB, 0) for number in range(100)])
            await send_until_stuck(client, fetches, len(fetches))
            appended = frames.build_append(7, await good.open("a"), batch_of(b"last"))
            polling = frames.build_fetch(8, 0, 17, 1000, 60_000)
            await good.send(appended, polling)
            await good.acks([7])
            with no_time_passes(mock_clock):
                served.server.stopping.set()
                answers = await good.receive_until_closed()
            # The long poll ends, then the reason is told, then the stream ends in order.
            assert [frame.op for frame in answers] == [Op.FETCH, 0]
            assert b"shutting_down" in bytes(answers[-1].body)
        with trio.fail_after(PATIENCE_S):
            while served.server.statistics.connections:
                await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("op", [Op.CREATE_SHARD, Op.STATE_PUT])
async def test_more_requests_than_may_be_under_way_wait_their_turn(tmp_path: Path, op: Op) -> None:
    async with serving(tmp_path) as served, served.client() as client:
        count = 3000
        make = {
            Op.CREATE_SHARD: lambda number: messages.CreateShardRequest(f"a/{number}"),
            Op.STATE_PUT: lambda number: messages.StatePutRequest(b"%d" % number, b"x"),
        }[op]
        sent = [frames.build(op, number + 10, encode(make(number))) for number in range(count)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, *sent)
            for _ in range(count):
                frame = await client.receive()
                assert (frame.op, frame.status) == (op, 0)
