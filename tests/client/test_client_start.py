"""No append is left lying: fresh clients, appends before, while and after the connection is made, small windows."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from journal.client import AppendFuture, Client, open_client
from journal.client.address import Address
from journal.client.appends import AppendLimits
from journal.client.transport import Transport, open_transport
from shards.back_off import BackOff
from shards.errors import LimitExceededError, OverloadedError
from shards.format.batch import values
from shards.format.record import Record
from shards.model import AckLevel
from tests.client.fake_server import FakeServer
from tests.patience import PATIENCE_S


@pytest.fixture
async def server() -> FakeServer:
    return FakeServer()


def stored(server: FakeServer, name: str) -> list[bytes]:
    return [value for _, _, batch in server.shards[name].batches for value in values(batch)]


@pytest.mark.parametrize("join", [True, False])
@pytest.mark.parametrize("count", [1, 1001])
async def test_the_first_append_of_a_fresh_client_is_answered(server: FakeServer, join: bool, count: int) -> None:
    lines = [b"%d" % number for number in range(count)]
    async with server.running():
        for attempt in range(100):
            server.create(f"s{attempt}")
            with trio.fail_after(PATIENCE_S):
                async with open_client(server.address, join_appends=join) as client:
                    assert (await client.append(f"s{attempt}", lines)).base_offset == 0
            assert stored(server, f"s{attempt}") == lines


@pytest.mark.slow("starts servers")
@pytest.mark.parametrize("join", [True, False])
async def test_appends_made_while_there_is_no_connection_are_carried_out_once(server: FakeServer, join: bool) -> None:
    """The connection ends and is made again at random steps while single and pipelined appends come in."""
    choose = random.Random(7)
    async with server.running():
        for attempt in range(60):
            names = [f"{attempt}/{number}" for number in range(choose.choice([1, 3, 40]))]
            for name in names:
                server.create(name)
            window_bytes = choose.choice([200, 2_000, 1 << 20])
            steps = choose.randrange(6)

            async def connect(nursery: trio.Nursery, steps: int = steps) -> Transport:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                return await open_transport(Address.parse(server.address), nursery)

            with trio.fail_after(PATIENCE_S):
                async with open_client(
                    server.address,
                    join_appends=join,
                    limits=AppendLimits(window_bytes=window_bytes),
                    backoff=BackOff(0.001, 2.0),
                    connect=connect,
                ) as client:
                    made = await _append_all(client, names, choose)
                    await server.kill_connections()
                    made += await _append_all(client, names, choose)
            assert sorted(value for name in names for value in stored(server, name)) == sorted(made)


async def _append_all(client: Client, names: list[str], choose: random.Random) -> list[bytes]:
    """Some tasks that wait for each append, and one that does not; every single append must be answered."""
    pending: list[AppendFuture] = []
    appended: list[bytes] = []

    async def one_by_one(name: str) -> None:
        for _ in range(choose.randrange(4)):
            appended.append(number := _next_number())
            await client.append(name, [number])

    async with trio.open_nursery() as nursery:
        for name in choose.sample(names, min(len(names), 10)):
            nursery.start_soon(one_by_one, name)
        for _ in range(choose.randrange(100)):
            name = choose.choice(names)
            ack = choose.choice([AckLevel.DEFAULT, AckLevel.MEMORY])
            made = [_next_number() for _ in range(choose.choice([1, 2]))]
            records = choose.choice([made, [Record(number) for number in made]])
            try:
                pending.append(client.append_nowait(name, records, ack=ack))
            except OverloadedError:
                await client.wait_for_room(1000)
            else:
                appended += made
            if choose.random() < 0.2:
                await trio.lowlevel.checkpoint()
    for one in pending:
        await one.wait()
    return appended


_numbers = iter(range(1_000_000_000))


def _next_number() -> bytes:
    return b"%d" % next(_numbers)


async def test_a_lone_append_and_a_pipeline_of_others_alternate(server: FakeServer) -> None:
    """What goes out without the writer task must not be overtaken by, or leave behind, what goes through it."""
    choose = random.Random(3)
    async with server.running():
        server.create("s")
        with trio.fail_after(PATIENCE_S):
            async with open_client(server.address) as client:
                made: list[bytes] = []
                for _ in range(300):
                    for _ in range(choose.choice([0, 0, 1, 5])):
                        made.append(_next_number())
                        client.append_nowait("s", [made[-1]])
                    made.append(_next_number())
                    await client.append("s", [made[-1]])
                    if choose.random() < 0.05:
                        # Larger than the socket takes at once.
                        made.append(bytes(4_000_000))
                        await client.append("s", [made[-1]])
        assert stored(server, "s") == made


async def test_beyond_some_batches_in_flight_appends_collect_and_join(server: FakeServer) -> None:
    names = [f"s{number}" for number in range(300)]
    for name in [*names, "lone"]:
        server.create(name)
    async with server.running(), open_client(server.address, limits=AppendLimits(max_in_flight=128)) as client:
        await client.append("s0", [b"first"])
        server.hold_acks = True
        pending = [client.append_nowait(name, [b"%d" % turn]) for turn in range(3) for name in names]
        with trio.fail_after(PATIENCE_S):
            while server.append_count < 1 + 128:
                await trio.testing.wait_all_tasks_blocked(0.01)
            assert server.append_count == 1 + 128
            # An append whose caller waits is not held back by those.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.append, "lone", [b"waiting"])
                while not stored(server, "lone"):
                    await trio.testing.wait_all_tasks_blocked(0.01)
                await server.release_acks()
            for one in pending:
                await one.wait()
    assert server.append_count < 2 * len(names)
    assert [value for value in stored(server, "s7") if value != b"first"] == [b"0", b"1", b"2"]


async def test_refusals_make_room_for_the_shards_that_wait(server: FakeServer) -> None:
    names = [f"s{number}" for number in range(300)]
    for name in names:
        server.create(name)
    server.append_fault = lambda shard, batch: LimitExceededError("refused") if int(shard[1:]) < 200 else None
    async with server.running(), open_client(server.address, limits=AppendLimits(max_in_flight=10)) as client:
        pending = {name: client.append_nowait(name, [b"v"]) for name in names}
        with trio.fail_after(PATIENCE_S):
            for name, one in pending.items():
                if int(name[1:]) < 200:
                    with pytest.raises(LimitExceededError):
                        await one.wait()
                else:
                    assert (await one.wait()).base_offset == 0
