"""The demo itself, shortened: real processes, real MQTT clients, real SIGKILLs, every promise checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUBSCRIBERS = {"watcher", "away", "group", "replay", "warehouse"}


@pytest.mark.slow("runs a server, brokers, a bridge and Spark")
@pytest.mark.timeout(300)
def test_a_short_run_holds_every_promise(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--seconds", "6", "--rate", "200", "--json", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert done.returncode == 0, done.stderr + done.stdout[:2000]
    told = json.loads(done.stdout)
    assert told["held"] is True
    topics = {topic["name"]: topic for topic in told["topics"]}
    assert {name.split("/")[1] for name in topics} == {"sensor-a", "sensor-b"}
    assert {topic["qos"] for topic in topics.values()} == {0, 1, 2}
    for topic in topics.values():
        assert topic["lost"] == topic["doubled"] == 0
        if topic["is_stored"]:
            assert topic["seen"].keys() == SUBSCRIBERS
            assert all(seen["received"] >= topic["stored"] > 0 for seen in topic["seen"].values())
    (modes,) = [modes for modes in told["modes"].values() if len(modes) > 1]
    assert [mode for mode, _ in modes] == ["memory", "file", "memory"]
    assert done.stderr.count("SIGKILL") == 3
    assert told["outage"][1] > 0
    assert told["catching_up"][0] > 0
    assert not list(tmp_path.iterdir())
