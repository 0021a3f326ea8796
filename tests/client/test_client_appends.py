"""Appends through a real connection: joined, acknowledged, and exactly once whatever happens to the connection."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from journal.client import AppendFuture, Client, open_client
from journal.client.appends import AppendLimits
from journal.protocol import Op
from journal.protocol.errors import ConnectionLostError
from journal.protocol.frames import HEADER
from shards.back_off import BackOff
from shards.errors import (
    BatchError,
    InvalidRequestError,
    LimitExceededError,
    OffsetConflictError,
    OverloadedError,
    ShardNotFoundError,
    StaleEpochError,
)
from shards.format.batch import encode, encode_values, values
from shards.format.record import Record
from shards.model import AckLevel, Appended
from tests.client.fake_server import FakeServer, FakeShard

pytestmark = pytest.mark.trio
FAST: dict[str, Any] = {"backoff": BackOff(0.001, 0.01)}


def stored(shard: FakeShard) -> list[bytes]:
    return [value for _, _, batch in shard.batches for value in values(batch)]


async def appends_seen(server: FakeServer, count: int) -> None:
    """Wait until the server has seen this many APPEND frames."""
    while server.append_count < count:
        await trio.lowlevel.checkpoint()


async def outcomes(pending: list[AppendFuture]) -> list[Appended]:
    return [await one.wait() for one in pending]


async def test_append_returns_offset_and_level() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("a")
        assert await client.append("a", [b"1", b"2"]) == Appended(0, AckLevel.DURABLE)
        assert await client.append("a", [Record(b"3", key=b"k")], ack=AckLevel.MEMORY) == Appended(2, AckLevel.MEMORY)
        batch = encode([Record(b"4")], now_us=1)
        assert (await client.append_batch("a", batch)).base_offset == 3
        assert stored(server.shards["a"]) == [b"1", b"2", b"3", b"4"]


async def test_appends_of_one_tick_share_a_batch_and_keep_their_own_offsets() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        shard = server.create("a")
        pending = [client.append_nowait("a", [b"%d" % number] * 2) for number in range(50)]
        assert [one.base_offset for one in await outcomes(pending)] == list(range(0, 100, 2))
        assert len(shard.batches) == 1


async def test_appends_collect_while_one_is_in_flight() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        shard = server.create("a")
        server.hold_acks = True
        first = client.append_nowait("a", [b"first"])
        await appends_seen(server, 1)
        later = []
        for number in range(10):
            later.append(client.append_nowait("a", [b"%d" % number]))
            await trio.lowlevel.checkpoint()
        await server.release_acks()
        assert [one.base_offset for one in await outcomes([first, *later])] == list(range(11))
        assert len(shard.batches) == 2


async def test_an_append_that_is_the_last_of_its_caller_is_sent_in_the_same_step() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        shard = server.create("a")
        await client.append("a", [b"opened"])
        await wait_all_tasks_blocked()
        sent = sent_by(client)
        alone = client.append_nowait("a", [b"alone"], is_last=True)
        assert len(sent) == 1
        # What follows while it is under way shares the next batch, however it is announced.
        later = [client.append_nowait("a", [b"%d" % number], is_last=True) for number in range(10)]
        assert len(sent) == 1
        assert [one.base_offset for one in await outcomes([alone, *later])] == list(range(1, 12))
        assert len(shard.batches) == 3


async def test_what_waits_for_an_answer_is_sent_in_the_step_of_the_answer() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        server.create("a")
        await client.append("a", [b"opened"])
        server.hold_acks = True
        first = client.append_nowait("a", [b"first"], is_last=True)
        await appends_seen(server, 2)
        second = client.append_nowait("a", [b"second"])
        await wait_all_tasks_blocked()
        sent = sent_by(client)
        counts: list[int] = []
        first.call_when_done(lambda: counts.append(len(sent)))
        await server.release_acks()
        assert [one.base_offset for one in await outcomes([first, second])] == [1, 2]
        assert counts == [1]


def sent_by(client: Client) -> list[bytes]:
    """What the client sends from now on without waiting for its writer."""
    connection = client._connection
    assert connection is not None
    transport = connection._transport
    send, sent = transport.send_nowait, list[bytes]()

    def send_nowait(data: bytes) -> int:
        sent.append(data)
        return send(data)

    transport.send_nowait = send_nowait  # type: ignore[method-assign]
    return sent


async def test_levels_kinds_and_expected_offsets_do_not_mix() -> None:
    async with FakeServer().running() as server, open_client(server.address) as client:
        shard = server.create("a")
        pending = [
            client.append_nowait("a", [b"0"]),
            client.append_nowait("a", [b"1"], ack=AckLevel.MEMORY),
            client.append_nowait("a", [Record(b"2")]),
            client.append_nowait("a", [b"3"], expected_offset=3),
            client.append_nowait("a", [b"4"]),
        ]
        assert [one.base_offset for one in await outcomes(pending)] == list(range(5))
        assert len(shard.batches) == 5


@pytest.mark.parametrize("served", [0, 1, 30])
async def test_unacknowledged_appends_are_stored_once_across_a_lost_connection(served: int) -> None:
    async with FakeServer().running() as server, open_client(server.address, join_appends=False, **FAST) as client:
        shard = server.create("a")
        await client.append("a", [b"before"])
        server.hold_acks = True
        pending = [client.append_nowait("a", [b"%d" % number]) for number in range(100)]
        if served:
            await appends_seen(server, served)
        await server.kill_connections()
        server.hold_acks = False
        assert [one.base_offset for one in await outcomes(pending)] == list(range(1, 101))
        assert stored(shard) == [b"before"] + [b"%d" % number for number in range(100)]
        assert server.names == {next(iter(server.names)): 1}
        assert server.epochs == {1: 1}


async def test_retriable_refusals_are_sent_again_in_order() -> None:
    async with FakeServer().running() as server, open_client(server.address, join_appends=False, **FAST) as client:
        shard = server.create("a")
        refusals = iter([None, None, OverloadedError("full"), OverloadedError("full")])
        server.append_fault = lambda name, batch: next(refusals, None)
        pending = [client.append_nowait("a", [b"%d" % number]) for number in range(20)]
        assert [one.base_offset for one in await outcomes(pending)] == list(range(20))
        assert stored(shard) == [b"%d" % number for number in range(20)]


async def test_a_refused_append_fails_alone() -> None:
    async with FakeServer().running() as server, open_client(server.address, join_appends=False, **FAST) as client:
        shard = server.create("a")
        server.append_fault = lambda name, batch: LimitExceededError("bad") if values(batch) == [b"5"] else None
        pending = [client.append_nowait("a", [b"%d" % number]) for number in range(10)]
        await client.flush()
        with pytest.raises(LimitExceededError):
            pending.pop(5).result_nowait()
        assert [one.base_offset for one in await outcomes(pending)] == list(range(9))
        assert stored(shard) == [b"%d" % number for number in range(10) if number != 5]


async def test_expected_offset_that_does_not_hold_is_a_conflict() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        with pytest.raises(OffsetConflictError) as caught:
            await client.append("a", [b"x"], expected_offset=7)
        assert caught.value.next_offset == 0
        assert (await client.append("a", [b"x"], expected_offset=0)).base_offset == 0


async def test_fenced_client_fails_for_ever() -> None:
    async with FakeServer().running() as server, open_client(server.address, producer_name="p", **FAST) as client:
        server.create("a")
        await client.append("a", [b"1"])
        async with open_client(server.address, producer_name="p") as newer:
            await newer.append("a", [b"2"])
            with pytest.raises(StaleEpochError):
                await client.append("a", [b"3"])
            with pytest.raises(StaleEpochError):
                client.append_nowait("a", [b"4"])
            assert stored(server.shards["a"]) == [b"1", b"2"]


async def test_server_that_forgot_the_producer_gets_it_registered_again() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        await client.append("a", [b"1"])
        server.epochs.clear()
        server.names.clear()
        server.shards["a"].producers.clear()
        assert (await client.append("a", [b"2"])).base_offset == 1


async def test_unknown_shard_is_an_error_until_it_is_made() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        with pytest.raises(ShardNotFoundError):
            await client.append("a", [b"1"])
        server.create("a")
        assert (await client.append("a", [b"1"])).base_offset == 0
        del server.shards["a"]
        with pytest.raises(ShardNotFoundError):
            await client.append("a", [b"2"])
        server.create("a")
        assert (await client.append("a", [b"3"])).base_offset == 0


async def test_cancelled_append_is_carried_out_and_harms_no_other() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        shard = server.create("a")
        server.hold_acks = True
        with trio.move_on_after(0.01) as scope:
            await client.append("a", [b"1"])
        assert scope.cancelled_caught
        await server.release_acks()
        assert (await client.append("a", [b"2"])).base_offset == 1
        assert stored(shard) == [b"1", b"2"]


async def test_window_is_bounded_and_append_waits_for_room() -> None:
    async with (
        FakeServer().running() as server,
        open_client(server.address, limits=AppendLimits(window_bytes=10_000), **FAST) as client,
    ):
        server.create("a")
        server.hold_acks = True
        for _ in range(8):
            client.append_nowait("a", [b"x" * 1000])
        with pytest.raises(OverloadedError, match="window"):
            client.append_nowait("a", [b"x" * 1000])
        assert client.unacknowledged_bytes <= 10_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.append, "a", [b"y" * 1000])
            await appends_seen(server, 1)
            await server.release_acks()
        await client.append("a", [b"z" * 50_000])
        assert server.shards["a"].next_offset == 10


@pytest.mark.parametrize("records", [[], b"text", ["text"], [1], [b"good", "bad"], [Record(b"good"), b"bad"]])
async def test_what_is_no_record_is_refused_and_spoils_no_other(records: list[bytes]) -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        good = client.append_nowait("a", [b"1"])
        with pytest.raises(InvalidRequestError):
            await client.append("a", records)
        last = client.append_nowait("a", [b"2"])
        await outcomes([good, last])
        assert stored(server.shards["a"]) == [b"1", b"2"]


async def test_damaged_encoded_batch_is_refused_before_it_is_sent() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        batch = bytearray(encode_values([b"value"], timestamp_us=1))
        batch[-9] ^= 1
        with pytest.raises(BatchError):
            await client.append_batch("a", bytes(batch))


async def test_batch_over_the_servers_limit_is_refused_here() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        with pytest.raises(LimitExceededError, match="max_batch_bytes"):
            await client.append("a", [bytes(9 << 20)])
        assert (await client.append("a", [b"1"])).base_offset == 0


@pytest.mark.parametrize(
    "garbage", [b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(100), HEADER.pack(13, Op.APPENDED, 0, 0) + b"x"]
)
async def test_garbage_from_the_server_ends_the_connection_and_a_new_one_is_made(garbage: bytes) -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        await client.append("a", [b"1"])
        await server.sessions[0].stream.send_all(garbage)
        await wait_for_session(client, server, 2)
        assert (await client.append("a", [b"2"])).base_offset == 1


async def test_half_a_frame_and_the_end_is_survived() -> None:
    async with FakeServer().running() as server, open_client(server.address, **FAST) as client:
        server.create("a")
        await client.append("a", [b"1"])
        await server.sessions[0].stream.send_all(HEADER.pack(500, Op.APPENDED, 0, 0) + b"half")
        await server.kill_connections()
        assert (await client.append("a", [b"2"])).base_offset == 1


async def test_closing_waits_for_unacknowledged_appends() -> None:
    async with FakeServer().running() as server:
        shard = server.create("a")
        async with open_client(server.address, **FAST) as client:
            pending = [client.append_nowait("a", [b"x"]) for _ in range(100)]
        assert all(one.is_done for one in pending)
        assert shard.next_offset == 100
        with pytest.raises(ConnectionLostError, match="closed"):
            client.append_nowait("a", [b"x"])


async def wait_for_session(client: Client, server: FakeServer, number: int) -> None:
    while client.server is None or client.server.connection_id < number:
        await trio.lowlevel.checkpoint()
