"""The demo itself, shortened: real processes, a real SIGKILL, every promise checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_short_run_holds_every_promise(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--seconds", "4", "--json", "--keep", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode == 0, done.stderr + done.stdout[:2000]
    told = json.loads(done.stdout)
    assert told["held"] is True
    shards = {shard["name"]: shard for shard in told["shards"]}
    brokers = {name.split("/")[1] for name in shards}
    assert brokers == {"broker-a", "broker-b"}
    assert all(shard["missing_durable"] == shard["twice"] == 0 for shard in shards.values())
    (history,) = [history for history in told["modes"].values() if len(history) > 1]
    assert [mode for mode, _ in history] == ["memory", "file", "memory"]
    assert any(shard["lost_memory"] and shard["gaps"] for shard in shards.values())
    assert "SIGKILL" in done.stderr
    assert len(list(tmp_path.glob("run-*/*.ledger"))) == 2
