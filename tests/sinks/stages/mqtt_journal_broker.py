"""A broker of ours on a store of its own. Rows are read back from what it has stored."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from broker_adapter.mqtt_codec import Version
from broker_adapter.sinks import Row, Value
from tests.mqtt.cluster.processes import Process, broker_command
from tests.mqtt.serving import Client
from tests.sinks.proxy import Proxy, open_proxy
from tests.sinks.stage import Misconfiguration, row
from tests.sinks.stages.mqtt_mosquitto import json_held

TOPIC = "contract/rows"
MARKER = b"marker"


class JournalBrokerStage:
    kind = "mqtt"

    def __init__(self, process: Process, proxy: Proxy) -> None:
        self.proxy = proxy
        self.address = proxy.address
        self.settings: dict[str, object] = {"address": proxy.address, "topic": TOPIC, "payload": ""}
        self._process = process
        self._markers = 0

    async def start(self) -> None:
        await trio.to_thread.run_sync(self._process.start)

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self._process.end, signal.SIGKILL)

    async def restart(self) -> None:
        await self.start()

    async def rows(self) -> Sequence[Row]:
        """Everything that is stored up to a marker, which is left out."""
        self._markers += 1
        marker = MARKER + str(self._markers).encode()
        async with await trio.open_tcp_stream("127.0.0.1", self._process.ports["mqtt"]) as stream:
            client = Client(stream, Version.V5)
            await client.connect("reader")
            await client.publish(TOPIC, marker, qos=1)
            await client.subscribe(f"$replay/earliest/{TOPIC}", qos=1)
            found: list[bytes] = []
            while not found or found[-1] != marker:
                found.append((await client.message()).payload)
            await client.leave()
        return [json.loads(payload) for payload in found if not payload.startswith(MARKER)]

    def refused(self) -> Row | None:
        return row(0, value="\ud800")

    def held(self, value: Value) -> object:
        return json_held(value)

    def misconfigured(self) -> dict[str, Misconfiguration]:
        return {
            "a name that no client can have": Misconfiguration({"client_id": "\x00"}, "client_id"),
            "TLS": Misconfiguration({"tls": True, "timeout_s": 1}, "timeout_s|broke|closed"),
        }


@asynccontextmanager
async def open_stage(directory: Path) -> AsyncIterator[JournalBrokerStage]:
    process = Process(broker_command(directory, "sink", f"embedded:{directory / 'store'}"), directory / "broker.log")
    try:
        await trio.to_thread.run_sync(process.start)
        async with open_proxy(process.ports["mqtt"]) as proxy:
            yield JournalBrokerStage(process, proxy)
    finally:
        process.end(signal.SIGKILL)
