"""Numbers that are appended to several shards, and servers that store checkpoints of them every few seconds."""

from __future__ import annotations

from typing import Final

from journal.client.client import Client
from shards.format.batch import read_records
from shards.format.record import Record
from shards.model import Mode, ShardConfig
from tests.cluster.servers import Server, remove
from tests.cluster.writing import value_of

SHARDS: Final = ("plant/line", "plant/press", "office")
QUICK: Final = ("conversion.max_age_s=2",)


class Numbers:
    """Appends numbers to some shards, and knows what they have to hold."""

    def __init__(self) -> None:
        self.count = 0

    async def append(self, client: Client, count: int) -> None:
        for _ in range(count):
            for name in SHARDS:
                await client.append(name, [Record(value=str(self.count).encode())])
            self.count += 1

    async def go_on(self, client: Client) -> None:
        """Append, and read everything back."""
        await self.append(client, 5)
        await self.require(client)

    async def require(self, client: Client) -> None:
        for name in SHARDS:
            info = await client.describe_shard(name)
            assert (info.start_offset, info.next_offset) == (0, self.count)
            values: list[int] = []
            while len(values) < self.count:
                reply = await client.fetch(name, len(values))
                values += map(value_of, read_records(reply.batches, start_offset=len(values)))
            assert values == list(range(self.count))


async def create(client: Client) -> None:
    for name in SHARDS:
        await client.create_shard(name, ShardConfig(mode=Mode.FILE), exist_ok=True)


def restart(server: Server, *, with_nothing: bool) -> None:
    server.kill()
    if with_nothing:
        remove(server.data)
    server.start(*QUICK)
