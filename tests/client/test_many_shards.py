"""More shards than the server lets one connection have open: those that are not in use are closed, and opened again."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio

from journal.client import Client
from journal.client.opening import open_client
from shards.errors import LimitExceededError
from shards.format.batch import read_records
from shards.format.record import Record
from shards.model import ShardConfig
from tests.patience import PATIENCE_S
from tests.server.serving import serving

MOST = 5
SHARDS = 23


@asynccontextmanager
async def more_than_may_be_open(directory: Path) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client, and the names of more shards than one connection may have open."""
    async with (
        serving(directory, limits__max_handles_per_connection=MOST) as served,
        open_client(served.address) as client,
    ):
        names = [f"s/{number}" for number in range(SHARDS)]
        for name in names:
            await client.create_shard(name, ShardConfig())
        yield client, names


async def test_appends_and_reads_go_on_with_more_shards_than_may_be_open(tmp_path: Path) -> None:
    """From the 200,001st topic of its life on, a broker could store nothing for new ones."""
    async with more_than_may_be_open(tmp_path) as (client, names):
        with trio.fail_after(PATIENCE_S):
            for turn in range(3):
                for name in names:
                    await client.append(name, [Record(b"%d of %s" % (turn, name.encode()))])
                    reply = await client.fetch(name, turn)
                    assert [one.value for one in read_records(reply.batches, start_offset=turn)] == [
                        b"%d of %s" % (turn, name.encode())
                    ]


async def test_many_at_once_wait_for_each_other(tmp_path: Path) -> None:
    async with more_than_may_be_open(tmp_path) as (client, names):

        async def use(name: str) -> None:
            for turn in range(5):
                await client.append(name, [Record(name.encode())])
                assert (await client.fetch(name, turn)).next_offset > turn

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(use, name)
        for name in names:
            reply = await client.fetch(name, 0)
            assert {one.value for one in read_records(reply.batches, start_offset=0)} == {name.encode()}
            assert reply.next_offset == 5


class Turns:
    """How many uses of others end while one waits."""

    def __init__(self) -> None:
        self.ended_count = 0
        self.most_waited = 0

    @contextmanager
    def use(self) -> Iterator[None]:
        before = self.ended_count
        yield
        self.most_waited = max(self.most_waited, self.ended_count - before)
        self.ended_count += 1


async def test_an_append_waits_only_for_those_that_came_before_it(tmp_path: Path) -> None:
    """One waited until all others had ended, for 40 s, since each refusal made its next pause longer."""
    async with more_than_may_be_open(tmp_path) as (client, names):
        turns, rng = Turns(), random.Random(1)

        async def write() -> None:
            for _ in range(40):
                with turns.use():
                    await client.append(rng.choice(names), [Record(b"x")])

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(4 * MOST):
                    nursery.start_soon(write)
        assert turns.most_waited < 8 * 4 * MOST


async def test_shards_that_are_always_appended_to_give_way_to_others(tmp_path: Path) -> None:
    async with more_than_may_be_open(tmp_path) as (client, names):
        turns = Turns()
        is_over = False

        async def fill(name: str) -> None:
            """A deep pipeline: its shard always has something in flight."""
            while not is_over:
                futures = [client.append_nowait(name, [Record(b"x")]) for _ in range(10)]
                await futures[0].wait()

        async def write(name: str) -> None:
            for turn in range(10):
                with turns.use():
                    assert (await client.append(name, [Record(b"x")])).base_offset == turn

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as filling:
                for name in names[: 2 * MOST]:
                    filling.start_soon(fill, name)
                async with trio.open_nursery() as nursery:
                    for name in names[2 * MOST :]:
                        nursery.start_soon(write, name)
                is_over = True
            await client.flush()


async def test_reads_and_appends_take_turns(tmp_path: Path) -> None:
    async with more_than_may_be_open(tmp_path) as (client, names):
        turns, rng = Turns(), random.Random(1)

        async def write() -> None:
            for _ in range(80):
                with turns.use():
                    await client.append(rng.choice(names), [Record(b"x")])

        async def read() -> None:
            for _ in range(80):
                with turns.use():
                    await client.fetch(rng.choice(names), 0)

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for _ in range(2 * MOST):
                    nursery.start_soon(write)
                    nursery.start_soon(read)
        assert turns.most_waited < 20 * 4 * MOST


async def test_those_who_wait_go_on_after_the_connection_was_lost(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, limits__max_handles_per_connection=MOST) as served,
        open_client(served.address) as client,
    ):
        names = [f"s/{number}" for number in range(SHARDS)]
        for name in names:
            await client.create_shard(name, ShardConfig())

        async def write(name: str) -> None:
            for turn in range(20):
                assert (await client.append(name, [Record(b"x")])).base_offset == turn

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for name in names:
                    nursery.start_soon(write, name)
                for _ in range(3):
                    await trio.sleep(0.02)
                    connection = await client.wait_connected()
                    connection.close()


async def test_a_limit_of_shards_is_still_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path, shards__max_shards=2) as served, open_client(served.address) as client:
        for name in ("a", "b"):
            await client.create_shard(name, ShardConfig())
            await client.append(name, [Record(b"x")])
        with pytest.raises(LimitExceededError, match="max_shards"):
            await client.open_shard("c", create=ShardConfig())
        await client.append("a", [Record(b"y")])
