"""The adapter with ``read=follower`` over an owner and a follower: it waits after a change until that is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from broker_adapter import StorageAdapter
from broker_adapter.engines.journal import JournalAdapter
from broker_adapter.shard_admin import DEFAULT_CONFIG
from journal.client import Client, open_client
from shards.format.record import Record
from shards.model import AckLevel, Appended, ShardConfig, ShardInfo
from tests.cluster.followed import followed


class CaughtUpAdapter(JournalAdapter):
    """What it has changed can be read when the call returns.

    Args:
        client: Changes the store.
        reader: Reads from the follower.
        wait: Waits until the follower has everything that is durable.
    """

    def __init__(self, client: Client, reader: Client, wait: Callable[[], Awaitable[object]]) -> None:
        super().__init__(client, reader)
        self._wait = wait

    async def create_shard(
        self, name: str, config: ShardConfig = DEFAULT_CONFIG, *, exist_ok: bool = False
    ) -> ShardInfo:
        info = await super().create_shard(name, config, exist_ok=exist_ok)
        await self._wait()
        return info

    async def append(
        self,
        shard: str,
        records: Sequence[Record] | Sequence[bytes],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
    ) -> Appended:
        appended = await super().append(shard, records, ack=ack, expected_offset=expected_offset)
        if ack is not AckLevel.MEMORY:
            # Otherwise it may not be in the log yet.
            await self._wait()
        return appended

    async def delete_shard(self, name: str) -> None:
        await super().delete_shard(name)
        await self._wait()

    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        info = await super().trim(name, before_offset)
        await self._wait()
        return info


@asynccontextmanager
async def open_followed(directory: Path) -> AsyncIterator[StorageAdapter]:
    """Both servers, and the adapter."""
    async with (
        followed(directory) as both,
        open_client(both.owner_tcp) as client,
        open_client(f"{both.follower_tcp}?read=follower") as reader,
        CaughtUpAdapter(client, reader, both.caught_up) as adapter,
    ):
        yield adapter
