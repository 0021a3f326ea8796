"""More shards than the server lets one connection have open: those that are not in use are closed, and opened again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


async def test_a_limit_of_shards_is_still_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path, shards__max_shards=2) as served, open_client(served.address) as client:
        for name in ("a", "b"):
            await client.create_shard(name, ShardConfig())
            await client.append(name, [Record(b"x")])
        with pytest.raises(LimitExceededError, match="max_shards"):
            await client.open_shard("c", create=ShardConfig())
        await client.append("a", [Record(b"y")])
