"""A Redis server of its own for each test: it starts in a few milliseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from broker_adapter.sinks import Row, Value
from tests.sinks.proxy import Proxy, open_proxy
from tests.sinks.redis_server import PASSWORD, USER, RedisServer, redis_server
from tests.sinks.stage import REFUSED, Misconfiguration

STREAM = "rows"


class RedisStage:
    kind = "redis"

    def __init__(self, server: RedisServer, proxy: Proxy) -> None:
        self.proxy = proxy
        self.server = server
        self.address = f"redis://{proxy.address}/0"
        self.settings: dict[str, object] = {
            "url": self.address,
            "stream": STREAM,
            "user": USER,
            "password": PASSWORD,
        }

    async def start(self) -> None:
        await self.server.start()

    async def kill(self) -> None:
        await self.server.kill()

    async def restart(self) -> None:
        await self.server.start()

    async def rows(self) -> Sequence[Row]:
        async with self.server.client() as client:
            entries = await client.xrange(STREAM)
        return [
            {
                "topic": entry.field_values[b"topic"].decode(),
                "n": int(entry.field_values[b"n"]),
                "body": entry.field_values[b"body"].decode(),
                "value": entry.field_values.get(b"value"),
            }
            for entry in entries
        ]

    def refused(self) -> Row | None:
        return None

    def held(self, value: Value) -> object:
        if isinstance(value, bytes) or value is None:
            return value
        if value == "\ud800":
            return REFUSED
        if isinstance(value, dict):
            return b'{"a":[1,null,{"b":"c"}],"d":true}'
        if isinstance(value, list):
            return b'[1,"two",null]'
        return b"true" if value is True else str(value).encode()

    def misconfigured(self) -> dict[str, Misconfiguration]:
        return {
            "another password": Misconfiguration({"password": "wrong-secret"}, ".*WRONGPASS.*password_file"),
            "another user": Misconfiguration({"user": "nobody"}, ".*WRONGPASS.*user"),
            "no password": Misconfiguration({"user": "", "password": ""}, ".*NOAUTH.*password_file"),
            "no file of that name": Misconfiguration(
                {"password": "", "password_file": "/nowhere/at/all"}, ".*/nowhere/at/all.*read"
            ),
        }


@asynccontextmanager
async def open_stage(directory: Path) -> AsyncIterator[RedisStage]:
    async with redis_server(directory) as server, open_proxy(server.port) as proxy:
        yield RedisStage(server, proxy)
