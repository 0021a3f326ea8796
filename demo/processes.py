"""The processes of the demo: the server and the brokers, each ended by the handle that started it, never by name."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom
from typing import Final, Self

import msgspec
import trio

from demo.broker import Command, Finish, Message, News, Stop, Stopped

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
_PORTS: Final = range(20_000, 32_000)
_PORT_ATTEMPTS: Final = 200
_PIPE_BYTES: Final = 65536
_MESSAGES: Final = msgspec.json.Decoder(Message)


class DemoError(Exception):
    """The demo cannot go on; the message says what happened and where to look."""


def free_port() -> int:
    """A free loopback port below the range from which connections take theirs.

    From within that range a client that tries to reach a dead server may, by chance, connect to itself.

    Raises:
        DemoError: No port was free in many attempts.
    """
    for port in SystemRandom().sample(_PORTS, _PORT_ATTEMPTS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise DemoError(f"no free port among {_PORT_ATTEMPTS} between {_PORTS.start} and {_PORTS.stop}")


class Server:
    """A journal server on one data directory and port, which may die and be started again."""

    def __init__(self, data: Path, port: int, log_path: Path) -> None:
        self.url = f"journal://127.0.0.1:{port}"
        self._data = data
        self._port = port
        self._log_path = log_path
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the server and wait until it accepts.

        Raises:
            DemoError: It ended, or did not accept in time.
        """
        settings = {
            "listen.tcp": f"127.0.0.1:{self._port}",
            "listen.websocket": "",
            "listen.http": "",
            "storage.journal_file_bytes": "16 MiB",
            "storage.journal_budget_bytes": "64 MiB",
        }
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with self._log_path.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "journal.cli.main", "serve", "--data", str(self._data), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        said = b""
        with trio.move_on_after(_START_TIMEOUT_S):
            while b"\n" not in said and (data := await self._process.stdout.receive_some(_PIPE_BYTES)):
                said += data
        if not said.startswith(b"ready"):
            raise DemoError(f"the server did not start; {self._log_path} says why: {_last_line(self._log_path)}")

    async def kill(self) -> None:
        """SIGKILL: no chance to write anything more."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, as an operator would.

        Raises:
            DemoError: It did not end with status 0 in time.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(_STOP_TIMEOUT_S):
            if await self._process.wait() == 0:
                return
        raise DemoError(
            f"the server did not stop cleanly on SIGTERM (status {self._process.returncode}); "
            f"{self._log_path} says why: {_last_line(self._log_path)}"
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            with trio.CancelScope(shield=True):
                await self.kill()


class BrokerProcess:
    """A running broker, as whoever started it sees it. Get one from `broker_process`."""

    def __init__(self, name: str, ledger_path: Path, process: trio.Process, log_path: Path) -> None:
        self.name = name
        self.ledger_path = ledger_path
        self.news = News(0, 0, 0, 0, 0)
        self._process = process
        self._log_path = log_path
        self._stopped: Stopped | None = None
        self._has_ended = False
        self._changed = trio.Event()

    async def stop(self) -> Stopped:
        """End the sampling and wait until everything is acknowledged.

        Raises:
            DemoError: The broker has died.
        """
        await self._tell(Stop())
        await self.wait_until(lambda: self._stopped is not None)
        assert self._stopped is not None
        return self._stopped

    async def finish(self, next_offsets: dict[str, int]) -> None:
        """Wait until it has received everything up to these offsets, and has ended."""
        await self._tell(Finish(next_offsets))
        while not self._has_ended:
            await self._changed.wait()
        if await self._process.wait() != 0:
            raise self._death()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for news that make it so.

        Raises:
            DemoError: The broker has died.
        """
        while not is_so():
            if self._has_ended:
                raise self._death()
            await self._changed.wait()

    async def listen(self) -> None:
        """Take in what it says, until it ends."""
        assert self._process.stdout is not None
        pending = b""
        while data := await self._process.stdout.receive_some(_PIPE_BYTES):
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                message = _MESSAGES.decode(line)
                if isinstance(message, News):
                    self.news = message
                else:
                    self._stopped = message
            self._notify()
        self._has_ended = True
        self._notify()

    async def _tell(self, command: Command) -> None:
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(msgspec.json.encode(command) + b"\n")
        except trio.BrokenResourceError as error:
            raise self._death() from error

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _death(self) -> DemoError:
        return DemoError(f"{self.name} has died; {self._log_path} says why: {_last_line(self._log_path)}")


@asynccontextmanager
async def broker_process(
    name: str, url: str, rate: float, directory: Path, nursery: trio.Nursery
) -> AsyncIterator[BrokerProcess]:
    """Run a broker for the length of the block.

    Args:
        name: Its name, which is also a level of its topics.
        url: The store.
        rate: Records a second it samples.
        directory: Where its ledger and its log go.
        nursery: Listens to it.
    """
    ledger_path, log_path = directory / f"{name}.ledger", directory / f"{name}.log"
    with log_path.open("ab") as log:
        process = await trio.lowlevel.open_process(
            [
                *(sys.executable, "-m", "demo.broker", "--name", name, "--url", url),
                *("--ledger", str(ledger_path), "--rate", str(rate)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    broker = BrokerProcess(name, ledger_path, process, log_path)
    nursery.start_soon(broker.listen)
    try:
        yield broker
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text("utf-8", "replace").split("\n") if path.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
