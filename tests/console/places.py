"""Where the console of a node is, and shards to look at in it."""

from __future__ import annotations

from shards.model import ShardConfig
from tests.server.serving import Served


def url(served: Served, place: str = "") -> str:
    return f"http://127.0.0.1:{served.ports['http']}/{place}"


async def fill(served: Served, name: str, *values: bytes, config: ShardConfig | None = None) -> None:
    async with served.client() as client:
        handle = await client.open(name, config or ShardConfig())
        await client.append_values(handle, *values)
