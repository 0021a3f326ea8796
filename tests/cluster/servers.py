"""Servers that share a store in a directory, in processes of their own, which are killed, stopped and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from tests.patience import PATIENCE_S
from tests.ports import free_port

SETTINGS: Final = (
    "listen.websocket=",
    "storage.journal_file_bytes=1 MiB",
    "storage.journal_budget_bytes=2 MiB",
    "storage.segment_bytes=64 KiB",
    "storage.tail_budget_bytes=1 MiB",
    "storage.disk_reserve_bytes=0",
    "limits.max_batch_bytes=256 KiB",
    "limits.max_frame_bytes=512 KiB",
)


class Server:
    """One server of a store, on the same ports each time that it is started."""

    def __init__(
        self,
        directory: Path,
        store: str,
        name: str,
        environment: Mapping[str, str] = {},
        objects: str = "",
        config: Path | None = None,
        module: str = "journal.cli.main",
    ) -> None:
        self._module = module
        self._config = [] if config is None else ["--config", str(config)]
        self.data = directory / f"data-{name}"
        self.log = directory / f"{name}.log"
        self.tcp = f"127.0.0.1:{free_port()}"
        self.http = f"127.0.0.1:{free_port()}"
        self._store = store
        self._objects = objects
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, *settings: str) -> list[str]:
        # A setting that is given twice is refused.
        given = dict(setting.split("=", 1) for setting in (*SETTINGS, *settings))
        options = [option for name, value in given.items() for option in ("--set", f"{name}={value}")]
        places = ["--listen", self.tcp, "--set", f"listen.http={self.http}"]
        store = ["--store", self._store] if self._store else []
        store += ["--objects", self._objects] if self._objects else []
        return [
            sys.executable, "-m", self._module, "serve", "--data", str(self.data), *self._config, *store,
            *places, *options,
        ]  # fmt: skip

    def start(self, *settings: str) -> None:
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, *self.command(*settings)], stdout=log, stderr=log, env=self._environment
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def children(self) -> list[int]:
        """The processes that it has started."""
        assert self._process is not None
        found: list[int] = []
        for path in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):
                # A thread may end meanwhile.
                found += map(int, path.read_text().split())
        return found

    @property
    def exit_status(self) -> int | None:
        """None while it runs, or if it was not started."""
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def get(self, path: str) -> tuple[int, str]:
        """The answer to an HTTP request; 0 if nothing answers."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=2) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def owns_store(self) -> bool:
        return self.is_running and self.get("/readyz")[0] == 200


class Cluster:
    """Servers that share a store.

    Args:
        directory: Where everything lies.
        count: Number of servers.
        store: Address of the log store; a directory by default.
        environment: Its credentials.
        objects: Address of the place of its files; empty for beside the log.
        config: The configuration file of all servers; None for none.
        module: The program that they run.
        each: What is added to the environment of each of them.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        store: str = "",
        environment: Mapping[str, str] = {},
        objects: str = "",
        config: Path | None = None,
        module: str = "journal.cli.main",
        each: Sequence[Mapping[str, str]] = (),
    ) -> None:
        if not store:
            (directory / "store").mkdir()
        self.address_of_store = store or f"file://{directory / 'store'}"
        self.servers = [
            Server(directory, self.address_of_store, name, {**environment, **added}, objects, config, module)
            for name, added in zip("abcdef"[:count], each or ({},) * count, strict=True)
        ]

    @property
    def address(self) -> str:
        return "journal://" + ",".join(server.tcp for server in self.servers)

    async def owner(self) -> Server:
        """The server that owns the store, as soon as one does."""
        with trio.fail_after(PATIENCE_S):
            while True:
                for server in self.servers:
                    if await trio.to_thread.run_sync(server.owns_store):
                        return server
                await trio.sleep(0.05)

    async def followers(self, owner: Server) -> list[Server]:
        """The other running servers, as soon as all of them follow the log."""
        others = [server for server in self.servers if server is not owner and server.is_running]
        with trio.fail_after(PATIENCE_S):
            for server in others:
                while "follows it" not in (await trio.to_thread.run_sync(server.get, "/readyz"))[1]:
                    await trio.sleep(0.05)
        return others

    def logs(self) -> str:
        return "\n".join(f"{server.log}:\n{server.log.read_text()}" for server in self.servers if server.log.exists())


@contextmanager
def running(
    directory: Path,
    count: int,
    store: str = "",
    environment: Mapping[str, str] = {},
    settings: Sequence[str] = (),
    objects: str = "",
    config: Path | None = None,
    module: str = "journal.cli.main",
    each: Sequence[Mapping[str, str]] = (),
) -> Iterator[Cluster]:
    """A cluster whose servers are all started; they are killed at the end."""
    cluster = Cluster(directory, count, store, environment, objects, config, module, each)
    try:
        for server in cluster.servers:
            server.start(*settings)
        yield cluster
    except BaseException:
        sys.stderr.write(cluster.logs())
        raise
    finally:
        for server in cluster.servers:
            server.kill()


def format_of(data: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((data / "FORMAT").read_text())
    return content


def remove(data: Path) -> None:
    """Remove a data directory, as an operator may do while its server is down."""
    assert os.path.isdir(data)
    shutil.rmtree(data)
