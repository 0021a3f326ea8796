"""A payload that lacks a column: a dead letter, or the column's default; never an unexpected NULL.

A real server, a real broker that drives the bridge, MQTT clients, and PostgreSQL.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import trio

from broker_adapter.mqtt_codec import ReasonCode
from tests.mqtt.cluster.processes import REPOSITORY
from tests.mqtt.edges.broker_process import broker_process
from tests.patience import PATIENCE_S
from tests.server.serving import serving
from tests.sinks.stages.postgresql import open_stage

CONFIG: Final = """
[broker]
store = "journal://{store}"

[[bridge]]
name = "warehouse"
topics = ["plant/#"]
fields = {{ topic = "topic", n = "$.n", body = '$.unit ?? "celsius"', value = "$.value ?? null" }}

[bridge.sink]
type = "postgresql"
url = "{url}"
table = "rows"
password_file = "{password_file}"
"""
PUBLISHED: Final = (
    b'{"n": 1, "unit": "kelvin", "value": 22.5}',
    b'{"n": 2, "value": 22.50}',
    b'{"unit": "kelvin", "value": 3}',
    b'{"n": 4}',
    b'{"n": null, "unit": null}',
    b"22.5",
    b"no JSON at all",
    b'{"n": 8, "unit": ""}',
)
STORED: Final = [
    (1, "kelvin", "22.5"),
    (2, "celsius", "22.50"),
    (4, "celsius", None),
    # The payload has it, and it is null.
    (None, None, None),
    (8, "", None),
]
MISSING: Final = "the payload has nothing at $.n; to allow that, give a default as in $.n ?? null"
REFUSED: Final = {
    PUBLISHED[2].decode(): MISSING,
    PUBLISHED[5].decode(): MISSING,
    PUBLISHED[6].decode(): "the payload is not JSON: JSON is malformed: invalid character (byte 4)",
}


async def queue_command(store: str, *arguments: str) -> str:
    """What a `journal queue` command prints."""
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(
            [sys.executable, "-m", "journal.cli.main", "queue", *arguments, "--server", store],
            capture_stdout=True,
            stderr=subprocess.STDOUT,
            check=False,
            cwd=REPOSITORY,
        )
    assert done.returncode == 0, done.stdout
    return done.stdout.decode()


@pytest.mark.slow("starts a broker, and two commands to ask for what became of the messages")
async def test_a_payload_that_lacks_a_column_is_a_dead_letter_or_has_its_default(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage, serving(tmp_path / "data") as served:
        config = tmp_path / "broker.toml"
        url, password_file = stage.address, stage.server.password_file
        config.write_text(CONFIG.format(store=served.address, url=url, password_file=password_file))
        arguments = ("--config", str(config), "--listen", "127.0.0.1:0", "--anonymous")
        async with broker_process(tmp_path, *arguments) as broker:
            async with broker.client() as client:
                await client.connect("publisher")
                for payload in PUBLISHED:
                    assert await client.publish("plant/line1", payload, 1) == ReasonCode.SUCCESS
            await queue_command(served.address, "drain", "warehouse")
            assert await stage.execute("SELECT n, body, value FROM rows ORDER BY number") == STORED
            assert await stage.execute("SELECT DISTINCT topic FROM rows") == [("plant/line1",)]
            said = await queue_command(served.address, "dead-letters", "warehouse", "--json")
            letters = {each["value"]: each["reason"] for each in map(json.loads, said.splitlines())}
            assert letters == REFUSED
            assert await broker.stop() == 0
