"""A ban outlives every process: brokers and the server are killed right after the command has said that it holds."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.mqtt.clients.paho_client import V5, V311, PahoClient
from tests.mqtt.cluster.processes import BROKER, NEEDS_CLUSTER, REPOSITORY, Cluster, running_cluster
from tests.patience import PATIENCE_S

pytestmark = [NEEDS_CLUSTER, pytest.mark.slow("kills a server and two brokers")]


def command(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    """What a command prints as JSON; it must succeed."""
    assert cluster.server is not None
    store = f"journal://127.0.0.1:{cluster.server.ports['tcp']}"
    done = subprocess.run(
        [sys.executable, "-m", *BROKER, *arguments, "--store", store, "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refusal(port: int, client_id: str, version: MQTTProtocolVersion) -> str:
    """Why a client is refused, in paho's words; empty if it is accepted."""
    client = PahoClient(port, client_id, version=version)
    try:
        client.connect()
    except AssertionError as error:
        return str(error).removeprefix("refused: ")
    finally:
        client.disconnect()
    return ""


def test_bans_survive_the_kill_of_brokers_and_server(tmp_path: Path) -> None:
    with running_cluster(tmp_path, brokers=2) as cluster:
        assert cluster.server is not None
        client = PahoClient(cluster.port(1), "gateway", durable=True)
        client.connect()
        (added,) = command(cluster, "ban", "add", "client", "gateway", "--for", "1h", "--reason", "floods the plant")
        assert (added["version"], added["behind"]) == (1, [])
        assert client.wait_disconnected() == "Administrative action"
        for process in (*cluster.brokers, cluster.server):
            process.end(signal.SIGKILL)
        for process in (cluster.server, *cluster.brokers):
            process.start()
        for number in range(2):
            assert refusal(cluster.port(number), "gateway", V5) == "Banned"
            assert refusal(cluster.port(number), "gateway", V311) == "Not authorized"
            assert refusal(cluster.port(number), "other", V5) == ""
        (ban,) = command(cluster, "ban", "list")
        assert (ban["kind"], ban["name"], ban["reason"]) == ("client", "gateway", "floods the plant")
        assert ban["until"]

        # The whole machine is banned, and the command still reaches the store.
        command(cluster, "ban", "add", "network", "127.0.0.0/8")
        assert refusal(cluster.port(0), "other", V5) == "Banned"
        for kind, name in (("network", "127.0.0.0/8"), ("client", "gateway")):
            command(cluster, "ban", "remove", kind, name)
        assert refusal(cluster.port(0), "gateway", V5) == ""
