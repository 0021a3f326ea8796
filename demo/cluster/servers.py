"""The servers of a cluster, and what they say of themselves."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.request import urlopen

import attrs
import trio

from demo.cluster.network.host import Host
from demo.errors import DemoError
from demo.processes.process import ManagedProcess
from demo.processes.seaweedfs import BUCKET, Seaweedfs
from demo.waiting import ask_until
from journal.server.cluster.liveness import LSN_HEADER

STORE: Final = "plant"
"""Prefix of the store in its bucket."""

_STARTED_WITHIN_S: Final = 60.0
_ANSWER_S: Final = 1.0


@attrs.frozen(slots=True)
class Answer:
    """An answer to an HTTP request.

    Attributes:
        status: 0 if nothing answered in time.
        text: The body.
        lsn: The newest entry of the log that the server has; None if it does not say.
    """

    status: int = 0
    text: str = ""
    lsn: int | None = None


class StoreServer(ManagedProcess):
    """A server on a host.

    Args:
        host: Its host.
        directory: Directory of its data directory and its log.
    """

    def __init__(self, host: Host, directory: Path) -> None:
        self.host = host
        self.data = directory / f"data-{host.name}"
        settings = {
            "listen.http": host.http,
            "listen.websocket": "",
            "cluster.advertise": host.reached_at,
            # Hosts of the demo have a network of their own, which is not the loopback interface.
            "access.allow_insecure": "true",
            "storage.journal_file_bytes": "16 MiB",
            "storage.journal_budget_bytes": "64 MiB",
        }
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        command = [
            *host.command_prefix,
            *(sys.executable, "-m", "journal.cli.main", "serve", "--data", str(self.data)),
            *("--store", f"s3://{BUCKET}/{STORE}", "--listen", host.tcp, *options),
        ]
        log_path = directory / f"{host.name}.log"
        super().__init__(host.name, command, log_path, Seaweedfs.credentials(host.store_endpoint))
        self.address = host.reached_at

    async def begin(self) -> None:
        """Start it, and do not wait for it."""
        await self.host.open_ports()
        await self.launch()

    async def get(self, path: str) -> Answer:
        """The answer to an HTTP request."""
        return await trio.to_thread.run_sync(_get, f"http://{self.host.http_reached_at}{path}")

    def check_running(self) -> None:
        """Refuse to go on without it.

        Raises:
            DemoError: It has ended by itself.
        """
        if not self.is_running:
            raise DemoError(f"{self.name} has ended; {self.last_words()}")

    async def kill(self) -> None:
        await super().kill()
        await self.host.close_ports()

    async def stop(self) -> None:
        await super().stop()
        await self.host.close_ports()


class StoreServers:
    """All servers of a store."""

    def __init__(self, servers: Sequence[StoreServer]) -> None:
        self.all = servers

    @property
    def url(self) -> str:
        """The address of all servers, for brokers and clients."""
        return f"journal://{','.join(server.address for server in self.all)}"

    def others(self, server: StoreServer) -> list[StoreServer]:
        """All but one."""
        return [other for other in self.all if other is not server]

    async def owner(self, among: Collection[StoreServer]) -> StoreServer:
        """The server that owns the store and serves clients, as soon as one of these does.

        Raises:
            DemoError: None does in time, or one of them has ended.
        """
        found: list[StoreServer] = []

        async def is_found() -> bool:
            for server in among:
                server.check_running()
                if (await server.get("/readyz")).status == HTTPStatus.OK:
                    found.append(server)
            return bool(found)

        await ask_until("no server owns the store", is_found, within_s=_STARTED_WITHIN_S)
        return found[0]

    async def all_follow(self, owner: StoreServer) -> None:
        """Wait until the others have as much of the log as the owner has now.

        Raises:
            DemoError: It took too long, or one of them has ended.
        """
        newest_lsn = await self.newest_lsn(owner)
        for server in self.others(owner):
            await self.follows(server, newest_lsn)

    async def has_log(self, server: StoreServer, lsn: int) -> None:
        """Wait until a server that does not own the store has the log up to an entry.

        Raises:
            DemoError: It took too long, or it has ended.
        """

        async def is_there() -> bool:
            server.check_running()
            found = (await server.get("/livez")).lsn
            return found is not None and found >= lsn

        await ask_until(f"{server.name} does not have all of the log", is_there, within_s=_STARTED_WITHIN_S)

    async def follows(self, server: StoreServer, lsn: int) -> None:
        """Wait until a server follows the owner, which it does at the end of the log, and has it up to an entry.

        Raises:
            DemoError: It took too long, or it has ended.
        """

        async def is_there() -> bool:
            server.check_running()
            ready, living = await server.get("/readyz"), await server.get("/livez")
            return "follows it" in ready.text and living.lsn is not None and living.lsn >= lsn

        await ask_until(f"{server.name} does not follow the owner", is_there, within_s=_STARTED_WITHIN_S)

    async def newest_lsn(self, owner: StoreServer) -> int:
        """The newest entry that the owner has of the log.

        Raises:
            DemoError: It does not say so in time, or has ended.
        """
        found: list[int] = []

        async def is_told() -> bool:
            owner.check_running()
            lsn = (await owner.get("/livez")).lsn
            found.extend([] if lsn is None else [lsn])
            return bool(found)

        await ask_until(f"{owner.name} does not say how much of the log it has", is_told)
        return found[0]


def _get(url: str) -> Answer:
    try:
        with urlopen(url, timeout=_ANSWER_S) as reply:
            return _answer(reply)
    except HTTPError as error:
        with error:
            return _answer(error)
    except OSError:
        # It is down, or cut off.
        return Answer()


def _answer(reply: HTTPResponse | HTTPError) -> Answer:
    lsn = reply.headers.get(LSN_HEADER, "")
    return Answer(reply.status or 0, reply.read().decode(), int(lsn) if lsn.isdecimal() else None)
