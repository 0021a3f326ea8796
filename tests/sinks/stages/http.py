"""A web service in a process of its own, on hypercorn."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from broker_adapter.sinks import Row, Value
from tests.mqtt.cluster.processes import Process
from tests.ports import free_port
from tests.sinks.http_receiver import TOKEN
from tests.sinks.proxy import Proxy, open_proxy
from tests.sinks.stage import Misconfiguration, row
from tests.sinks.stages.mqtt_mosquitto import json_held


class HttpStage:
    kind = "http"

    def __init__(self, process: Process, path: Path, proxy: Proxy) -> None:
        self.proxy = proxy
        self.address = f"http://{proxy.address}/rows"
        self.settings: dict[str, object] = {"url": self.address, "token": TOKEN}
        self._process = process
        self._path = path

    async def start(self) -> None:
        await trio.to_thread.run_sync(self._process.start)

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self._process.end, signal.SIGKILL)

    async def restart(self) -> None:
        await trio.to_thread.run_sync(self._process.start)

    async def rows(self) -> Sequence[Row]:
        return [each for batch in self.batches() for each in batch["rows"]]

    def batches(self) -> list[dict]:
        whole = self._path.read_bytes() if self._path.exists() else b""
        return [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]

    def refused(self) -> Row | None:
        return row(0, body="bad")

    def held(self, value: Value) -> object:
        return json_held(value)

    def misconfigured(self) -> dict[str, Misconfiguration]:
        assert self.proxy is not None
        elsewhere = f"http://{self.proxy.address}/rows/nowhere"
        return {
            "another token": Misconfiguration({"token": "wrong-secret"}, "401.*credentials"),
            "no token": Misconfiguration({"token": ""}, "401.*credentials"),
            "a service that is not well": Misconfiguration({"check_url": elsewhere}, "404.*set url"),
        }


@asynccontextmanager
async def open_stage(directory: Path) -> AsyncIterator[HttpStage]:
    port, path = free_port(), directory / "received"
    process = Process(
        [sys.executable, "-m", "tests.sinks.http_receiver", str(port), str(path)], directory / "log", {"http": port}
    )
    try:
        async with open_proxy(port) as proxy:
            stage = HttpStage(process, path, proxy)
            await stage.start()
            yield stage
    finally:
        process.end(signal.SIGKILL)
