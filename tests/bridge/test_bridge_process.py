"""`journal-broker bridge` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from broker_adapter import open_adapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.stored import Lease
from broker_adapter.state_forms import decode
from shards import compiled
from tests.mqtt.cluster.processes import REPOSITORY, journal_server
from tests.mqtt.edges.broker_process import PROGRAM, BrokerProcess, broker_process
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.server.serving import serving

CONFIG = """\
[broker]
store = "journal://127.0.0.1:{port}"

[access]
anonymous = true

[[bridge]]
name = "plant"
topics = ["plant/#"]

[bridge.sink]
type = "files"
directory = "{directory}"
format = "ndjson"
"""


async def test_when_it_is_stopped_it_releases_its_lease(tmp_path: Path) -> None:
    """It once closed its connection before its leases were given back."""
    async with serving(tmp_path) as served:
        store = f"journal://127.0.0.1:{served.ports['tcp']}"
        config = tmp_path / "broker.toml"
        config.write_text(CONFIG.format(port=served.ports["tcp"], directory=tmp_path))
        argv = [sys.executable, "-m", "broker_adapter.mqtt.cli.main", "bridge", "--config", str(config)]
        async with open_adapter(store) as adapter, trio.open_nursery() as nursery:
            process = await nursery.start(
                lambda task_status: trio.run_process(
                    argv, task_status=task_status, cwd=REPOSITORY, stdout=subprocess.DEVNULL
                )
            )

            async def lease() -> Lease | None:
                found = await adapter.get_state(names.lease_key("plant"))
                return None if found is None else decode(Lease, found.key, found.value)

            while (held := await lease()) is None:
                await trio.sleep(0.02)
            assert held.holder
            process.send_signal(signal.SIGTERM)
            await process.wait()
            assert process.returncode == 0
            given_back = await lease()
            assert given_back is not None
            assert given_back.holder == ""


@pytest.mark.slow("starts and stops servers and brokers")
async def test_brokers_and_bridges_say_that_their_store_is_lost_and_that_it_is_back(tmp_path: Path) -> None:
    """A broker without `listen.http` said nothing, a bridge only spoke of leases. Four processes are started."""
    server = journal_server(tmp_path, port := free_port())
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG.format(port=port, directory=tmp_path))
    log = tmp_path / "bridge.log"

    async def both_said(broker: BrokerProcess, words: str) -> None:
        await broker.said(words)
        with trio.fail_after(PATIENCE_S):
            while words not in log.read_text():
                await trio.sleep(0.02)

    await trio.to_thread.run_sync(server.start)
    try:
        async with (
            broker_process(tmp_path, "--config", str(config), "--listen", "127.0.0.1:0") as broker,
            trio.open_nursery() as nursery,
        ):
            with log.open("wb") as log_file:
                argv = [sys.executable, "-m", PROGRAM, "bridge", "--config", str(config)]
                await nursery.start(
                    lambda task_status: trio.run_process(
                        argv, task_status=task_status, cwd=REPOSITORY, stderr=log_file, stdout=log_file
                    )
                )
            with trio.fail_after(PATIENCE_S):
                while "ready" not in log.read_text():
                    await trio.sleep(0.02)
            await both_said(broker, compiled.DESCRIPTION)
            server.end(signal.SIGKILL)
            await both_said(broker, "the store does not answer")
            await trio.to_thread.run_sync(server.start)
            await both_said(broker, "the store answers again")
            nursery.cancel_scope.cancel()
    finally:
        server.end(signal.SIGKILL)
