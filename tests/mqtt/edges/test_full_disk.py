"""What publishers meet while the disk of the store is full, and when there is room again."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker_adapter.mqtt_codec import ReasonCode
from broker_adapter.mqtt_codec.packets import Pingreq, Pingresp, Puback, Publish
from tests.bridge.outages.disk import RESERVE_BYTES, SETTINGS, filled, small_disk
from tests.faults.processes import ServerProcess, running
from tests.mqtt.edges.broker_process import broker_process
from tests.patience import PATIENCE_S

KNOWN = "plant/known"


async def until_ready(server: ServerProcess, *, status: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while (await trio.to_thread.run_sync(server.http, "/readyz"))[0] != status:
            await trio.sleep(0.02)


@pytest.mark.slow("fills a disk under a server and a broker")
async def test_what_can_wait_waits_and_the_rest_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_mib=40) as disk, running(disk / "data", *SETTINGS) as server:
        store = f"journal://127.0.0.1:{server.ports['tcp']}"
        options = ("--anonymous", "--store", store, "--listen", "127.0.0.1:0")
        async with broker_process(tmp_path, *options) as broker, broker.client() as client:
            await client.connect()
            assert await client.publish(KNOWN, b"before", 1) < ReasonCode.UNSPECIFIED_ERROR
            with filled(disk, RESERVE_BYTES // 4):
                await until_ready(server, status=503)
                for topic, qos, retain in (
                    (KNOWN, 2, False),
                    (KNOWN, 1, True),
                    ("plant/new", 1, False),
                    (f"$delayed/1/{KNOWN}", 1, False),
                ):
                    assert await client.publish(topic, b"refused", qos, retain=retain) == ReasonCode.QUOTA_EXCEEDED
                waiting = client.packet_id()
                await client.send(Publish(KNOWN, b"waits", 1, packet_id=waiting), Pingreq())
                await client.expect(Pingresp)
            await until_ready(server, status=200)
            answer = await client.expect(Puback)
            assert answer.packet_id == waiting
            assert answer.reason_code < ReasonCode.UNSPECIFIED_ERROR
            assert await client.publish("plant/new", b"after", 2) < ReasonCode.UNSPECIFIED_ERROR
        log = server.log.read_text()
        assert "appends are refused: the disk of" in log
        assert "appends are accepted again: " in log
        assert server.stop() == 0
