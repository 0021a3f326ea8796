"""A client of a cluster that appends numbers, and the check that none of them is missing or there twice."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from journal.client.client import Client
from journal.client.opening import open_client
from journal.client.session_keeper import SessionTimes
from shards.format.batch import read_records
from shards.format.record import Gap, Record, StoredRecord
from shards.model import Mode, ShardConfig
from tests.cluster.servers import Cluster
from tests.patience import PATIENCE_S

SHARD: Final = "plant/line"


class Writer:
    """Appends numbers, one after the other, and keeps those that were acknowledged.

    Args:
        client: Appends them.
        shard: To this shard.
        longest_pause_s: Pauses between them are random, up to this. So those of several writers are not in step.
    """

    def __init__(self, client: Client, shard: str = SHARD, longest_pause_s: float = 0.0) -> None:
        self._longest_pause_s = longest_pause_s
        self._client = client
        self.shard = shard
        self.acknowledged: list[int] = []
        self._moved = trio.Condition()

    async def run(self) -> None:
        number = 0
        while True:
            await self._client.append(self.shard, [Record(value=str(number).encode())])
            self.acknowledged.append(number)
            number += 1
            async with self._moved:
                self._moved.notify_all()
            if self._longest_pause_s:
                await trio.sleep(random.random() * self._longest_pause_s)

    async def wait_for(self, count: int) -> None:
        """Until so many more were acknowledged."""
        target = len(self.acknowledged) + count
        with trio.fail_after(PATIENCE_S):
            async with self._moved:
                while len(self.acknowledged) < target:
                    await self._moved.wait()


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Client]:
    async with open_client(cluster.address, times=SessionTimes(first_within_s=PATIENCE_S)) as client:
        yield client


@asynccontextmanager
async def writing(cluster: Cluster) -> AsyncIterator[Writer]:
    async with connected(cluster) as client:
        await client.create_shard(SHARD, ShardConfig(mode=Mode.FILE), exist_ok=True)
        writer = Writer(client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            yield writer
            nursery.cancel_scope.cancel()


def value_of(record: StoredRecord | Gap) -> int:
    assert isinstance(record, StoredRecord)
    return int(bytes(record.value or b""))


async def stored(cluster: Cluster, shard: str = SHARD) -> list[int]:
    """All numbers of the shard, in order."""
    values: list[int] = []
    async with connected(cluster) as client:
        info = await client.describe_shard(shard)
        offset = info.start_offset
        while offset < info.next_offset:
            reply = await client.fetch(shard, offset)
            values += map(value_of, read_records(reply.batches, start_offset=offset))
            offset = reply.next_offset
    return values


async def check(cluster: Cluster, writer: Writer) -> None:
    found = await stored(cluster, writer.shard)
    assert found == sorted(set(found)), "out of order, or twice"
    assert set(writer.acknowledged) <= set(found)
