"""A Redis server of a test's own, on loopback, that has what it confirmed for good."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio
from coredis import Redis

from tests.mqtt.cluster.processes import Process
from tests.ports import free_port

HOST: Final = "127.0.0.1"
USER: Final = "bridge"
PASSWORD: Final = "not-so-secret"


class RedisServer:
    """One server.

    Attributes:
        port: Where it listens, also after it was killed.
    """

    def __init__(self, program: str, directory: Path, settings: Sequence[str]) -> None:
        self.port = free_port()
        # So that it does not outlive tests that were killed: it goes with the thread that starts it, the main one.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        self._process = Process(
            [
                *guard,
                *(program, "--bind", HOST, "--port", str(self.port), "--dir", str(directory)),
                *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
                *("--user", USER, "on", f">{PASSWORD}", "~*", "+@all"),
                # Not switched off: Redis 7.0 reads its file as this user, and leaves out what that one may not do.
                *("--requirepass", PASSWORD),
                *settings,
            ],
            directory / "redis.log",
            {"redis": self.port},
        )

    async def start(self) -> None:
        self._process.start()

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self._process.end, signal.SIGKILL)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Redis[bytes]]:
        client = Redis(host=HOST, port=self.port, username=USER, password=PASSWORD)
        async with client:
            yield client


@asynccontextmanager
async def redis_server(directory: Path, settings: Sequence[str] = ()) -> AsyncIterator[RedisServer]:
    """A started server; skips the test where Redis is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("Redis is not installed (Debian: apt-get install redis-server; scripts/install-peers does it)")
    server = RedisServer(program, directory, settings)
    try:
        await server.start()
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await server.kill()
