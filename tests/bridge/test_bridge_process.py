"""`journal-broker bridge` as a process. It once closed its connection before its leases were given back."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import trio

from broker_adapter import open_adapter
from broker_adapter.cache_queue import names
from broker_adapter.cache_queue.stored import Lease
from broker_adapter.state_forms import decode
from tests.mqtt.cluster.processes import REPOSITORY
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


async def test_told_to_stop_it_gives_its_lease_back(tmp_path: Path) -> None:
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
