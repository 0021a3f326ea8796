"""The broker mosquitto. A subscriber sees at once what it has confirmed: killed, it loses what it has not saved."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from broker_adapter.sinks import Row, Value
from tests.mqtt.cluster.processes import Process
from tests.ports import free_port
from tests.sinks.mqtt_collector import PREFIX, Collector
from tests.sinks.proxy import Proxy, open_proxy
from tests.sinks.stage import REFUSED, Misconfiguration, row

CONFIG = """\
listener {port} 127.0.0.1
password_file {directory}/users
acl_file {directory}/rules
allow_anonymous true
persistence false
max_queued_messages 0
"""
RULES = f"""\
topic readwrite {PREFIX}/#
user bridge
topic readwrite {PREFIX}/#
topic deny {PREFIX}/forbidden
"""
USER, PASSWORD = "bridge", "right-secret"


class MosquittoStage:
    kind = "mqtt"

    def __init__(self, process: Process, port: int, proxy: Proxy, tasks: trio.Nursery) -> None:
        self.proxy = proxy
        self.address = proxy.address
        self.collector = Collector(port)
        self.settings: dict[str, object] = {
            "address": proxy.address,
            "user": USER,
            "password": PASSWORD,
            "topic": f"{PREFIX}/{{topic}}",
            "payload": "",
        }
        self._process = process
        self._tasks = tasks

    async def start(self) -> None:
        await trio.to_thread.run_sync(self._process.start)
        await self._tasks.start(self.collector.run)

    async def kill(self) -> None:
        await trio.to_thread.run_sync(self._process.end, signal.SIGKILL)
        # Nothing may be published before the collector is there again.
        assert self.proxy is not None
        self.proxy.refuse()

    async def restart(self) -> None:
        await self.start()
        assert self.proxy is not None
        await self.proxy.listen()

    async def rows(self) -> Sequence[Row]:
        return await self.collector.rows()

    def refused(self) -> Row | None:
        return {**row(0), "topic": "forbidden"}

    def held(self, value: Value) -> object:
        return json_held(value)

    def misconfigured(self) -> dict[str, Misconfiguration]:
        return {
            "another password": Misconfiguration({"password": "wrong-secret"}, "not authorized.*another user and pass"),
            "no such user": Misconfiguration({"user": "stranger"}, "not authorized.*another user and pass"),
            "an older version": Misconfiguration(
                {"version": "3.1.1", "password": "wrong-secret"}, "not authorized.*another user and password"
            ),
        }


def json_held(value: Value) -> object:
    """What a sink that writes JSON holds of a value."""
    if value == "\ud800":
        return REFUSED
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value


def mosquitto(directory: Path) -> tuple[Process, int]:
    """A mosquitto that is not started yet, with a user `USER` who may not publish everywhere."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    program, passwords = (shutil.which(name, path=path) for name in ("mosquitto", "mosquitto_passwd"))
    if program is None or passwords is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    user = "user root\n" if os.getuid() == 0 else ""  # it would else become one that may not read its files
    (directory / "mosquitto.conf").write_text(CONFIG.format(port=port, directory=directory) + user)
    (directory / "rules").write_text(RULES)
    (directory / "rules").chmod(0o600)
    subprocess.run([passwords, "-b", "-c", str(directory / "users"), USER, PASSWORD], check=True, capture_output=True)
    return Process([program, "-c", str(directory / "mosquitto.conf")], directory / "log", {"mqtt": port}), port


@asynccontextmanager
async def open_stage(directory: Path) -> AsyncIterator[MosquittoStage]:
    process, port = mosquitto(directory)
    try:
        async with open_proxy(port) as proxy, trio.open_nursery() as tasks:
            stage = MosquittoStage(process, port, proxy, tasks)
            await stage.start()
            yield stage
            tasks.cancel_scope.cancel()
    finally:
        process.end(signal.SIGKILL)
