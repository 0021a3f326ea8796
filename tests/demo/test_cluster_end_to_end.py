"""The demo of docs/cluster.md itself, shortened: a real object store, MQTT clients, a SIGKILL, a server cut off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from demo.cluster.network.namespaces import isolated
from tests.logstore.seaweed_server import find_program

ROOT = Path(__file__).parents[2]
SERVERS = {"server-1", "server-2", "server-3"}


@pytest.mark.slow("runs SeaweedFS, three servers and three brokers, and waits for takeovers")
@pytest.mark.timeout(400)
@pytest.mark.skipif(find_program() is None, reason="SeaweedFS is not installed (make peers)")
@pytest.mark.parametrize("cut", ["namespaces", "relays"])
def test_a_short_run_holds_every_promise(cut: str, tmp_path: Path) -> None:
    """Times do not count: other tests run beside this one."""
    if cut == "namespaces" and isolated(["true"]) is None:
        pytest.skip("this machine lets us make no network namespace")
    command = [
        sys.executable,
        "-m",
        "demo.cluster",
        "--kills",
        "1",
        "--rate",
        "40",
        "--cut",
        cut,
        "--untimed",
        "--json",
    ]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=380
    )

    assert done.returncode == 0, done.stderr + done.stdout[:2000]
    told = json.loads(done.stdout)
    assert told["held"] is True
    topics = {topic["name"]: topic for topic in told["topics"]}
    assert {name.split("/")[1] for name in topics} == {"sensor-a", "sensor-b"}
    assert {topic["qos"] for topic in topics.values()} == {1, 2}
    for topic in topics.values():
        assert topic["lost"] == topic["doubled"] == 0
        assert topic["seen"].keys() == {"watcher", "away", "replay"}
        assert all(seen["received"] >= topic["stored"] > 0 for seen in topic["seen"].values())
    assert told["records"].keys() == SERVERS
    assert len({json.dumps(records, sort_keys=True) for records in told["records"].values()}) == 1
    assert [each["cause"] for each in told["observed"]["takeovers"]] == ["killed", "cut"]
    assert all(each["pause_s"] > 0 and each["owner"] != each["former_owner"] for each in told["observed"]["takeovers"])
    assert told["observed"]["rejoin_entries"] > 0
    assert told["observed"]["catching_up"][0] > 0
    retained = [each for each in told["retained"] if each["number"] >= 0]
    assert retained
    assert all(given == [each["number"]] for each in retained for given in each["given"].values())
    assert not list(tmp_path.iterdir())
