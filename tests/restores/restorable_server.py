"""A journal server as a process, which is stopped, restored from a backup and started again at the same address."""

from __future__ import annotations

import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from journal.backup import Source, back_up, newest_lsn, restore
from journal.client import Client, open_client
from shards.model import ShardConfig
from shards.seams.os_file_system import OsFileSystem
from tests.mqtt.cluster.processes import Process, journal_server
from tests.patience import PATIENCE_S
from tests.ports import free_port

FILES = OsFileSystem()
FILE = ShardConfig()


class RestorableServer:
    """A server process that runs, but for the time of a backup or a restore.

    Attributes:
        address: The same in all its lives.
        process: The server's.
    """

    def __init__(self, directory: Path) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._data = directory / "data"
        self._backups = directory / "backups"
        self.process: Process = journal_server(directory, port)

    @property
    def url(self) -> str:
        return f"journal://{self.address}"

    async def start(self) -> None:
        await trio.to_thread.run_sync(self.process.start)

    async def stop(self) -> None:
        assert await trio.to_thread.run_sync(self.process.end, signal.SIGTERM) == 0

    def kill(self) -> None:
        self.process.end(signal.SIGKILL)

    async def back_up(self) -> None:
        """Back its data up; it is stopped meanwhile."""
        await self.stop()
        data = str(self._data)
        lsn = newest_lsn(FILES, f"{data}/journal")
        back_up(FILES, Source(data, lsn), str(self._backups), now_us=1, keep=10)
        await self.start()

    async def set_back(self, number: int | None = None) -> None:
        """Stop it, bring a backup (by default the newest) in the place of its data, and leave it stopped."""
        await self.stop()
        shutil.rmtree(self._data)
        restore(FILES, str(self._backups), str(self._data), number=number)

    async def restore(self, number: int | None = None) -> None:
        """Bring a backup in the place of its data, and start it again."""
        await self.set_back(number)
        await self.start()

    async def be_replaced(self) -> None:
        """Stop it, and start a server with an empty directory, and so a node id of its own, at the same address."""
        await self.stop()
        shutil.rmtree(self._data)
        await self.start()

    @asynccontextmanager
    async def short_client(self) -> AsyncIterator[Client]:
        """A client that is there only now: it knows nothing of earlier lives of the server."""
        with trio.fail_after(PATIENCE_S):
            async with open_client(self.address) as client:
                yield client

    async def append(self, shard: str, first: int, count: int) -> None:
        """Append records whose values are consecutive numbers, each in a batch of its own."""
        async with self.short_client() as client:
            await client.open_shard(shard, create=FILE)
            for number in range(first, first + count):
                await client.append(shard, [b"%d" % number])


@asynccontextmanager
async def restorable_server(directory: Path) -> AsyncIterator[RestorableServer]:
    """A running server for the length of the block."""
    directory.mkdir(exist_ok=True)
    server = RestorableServer(directory)
    await server.start()
    try:
        yield server
    finally:
        server.kill()
