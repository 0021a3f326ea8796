"""`journal-broker` as a process, and clients that come to it over each of its listeners."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from broker_adapter.mqtt.transport.streams import WebSocketStream
from broker_adapter.mqtt_codec import Version
from tests.mqtt.edges.listening import client_context, websocket_over
from tests.mqtt.serving import Client
from tests.patience import PATIENCE_S

PROGRAM = "broker_adapter.mqtt.cli.main"
REPOSITORY = Path(__file__).parents[3]


class BrokerProcess:
    """A running broker.

    Attributes:
        ready: Its first line.
        ports: Of its listeners, by name.
    """

    def __init__(self, process: trio.Process, log: Path, ready: str) -> None:
        self.process = process
        self.ready = ready
        self.ports = {name: int(port) for name, port in re.findall(r"(\w+)=\S+:(\d+)", ready)}
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def said(self, words: str, count: int = 1) -> None:
        """Wait until its log has the words so often."""
        with trio.fail_after(PATIENCE_S):
            while self.log.count(words) < count:
                await trio.sleep(0.01)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to end and wait for that; its exit status."""
        self.process.send_signal(number)
        with trio.fail_after(PATIENCE_S):
            return await self.process.wait()

    @asynccontextmanager
    async def client(
        self, listener: str = "mqtt", version: Version = Version.V5, context: ssl.SSLContext | None = None
    ) -> AsyncIterator[Client]:
        """A connection on which nothing has been said."""
        stream: trio.abc.Stream = await trio.open_tcp_stream("127.0.0.1", self.ports[listener])
        if listener in ("mqtts", "websockets"):
            stream = trio.SSLStream(stream, context or client_context(), server_hostname="127.0.0.1")
        if listener in ("websocket", "websockets"):
            async with websocket_over(stream) as websocket:
                yield Client(WebSocketStream(websocket), version)
            return
        async with stream:
            yield Client(stream, version)


@asynccontextmanager
async def broker_process(directory: Path, *arguments: str, under: Sequence[str] = ()) -> AsyncIterator[BrokerProcess]:
    """A broker for the length of the block, from its `ready` on. It is killed if it is not stopped in the block.

    Args:
        directory: Where its log goes.
        arguments: Its command line.
        under: The command that runs it, which is killed in its place.
    """
    log = directory / "broker.log"
    with log.open("wb") as log_file:
        process = await trio.lowlevel.open_process(
            [*under, sys.executable, "-m", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=log_file,
            cwd=REPOSITORY,
        )
    assert process.stdout is not None
    try:
        line = b""
        with trio.fail_after(PATIENCE_S):
            while not line.endswith(b"\n"):
                data = await process.stdout.receive_some()
                assert data, log.read_text()
                line += data
        yield BrokerProcess(process, log, line.decode().rstrip())
    finally:
        if process.returncode is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
        await process.stdout.aclose()
