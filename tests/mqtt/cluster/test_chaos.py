"""Brokers and their server are killed again and again under many clients; the ledger of them all must balance."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.mqtt.cluster.chaos import Chaos, make_crowd, read_retained
from tests.mqtt.cluster.processes import STAND_IN, running_cluster

PUBLISHERS = 6
KINDS = ("brokers killed", "brokers killed", "servers killed", "connections cut", "groups cut", "subscribers cut")
LEAST = {"brokers killed": 2, "servers killed": 1}


async def chaos(directory: Path, seed: int, seconds: float) -> Chaos:
    """One run; everything is checked but how much of it there was."""
    rng = random.Random(seed)
    run = f"chaos-{os.getpid()}-{seed}"
    with running_cluster(directory) as cluster:
        crowd = make_crowd(cluster.mqtt_ports, rng, run, publishers=PUBLISHERS)
        kinds, least = (KINDS, LEAST) if not STAND_IN else (("connections cut",), {})
        chaos = Chaos(cluster, crowd, rng, kinds, least=least)
        await chaos.run(seconds)
        ledger = crowd.ledger
        assert ledger.unacknowledged() == 0, chaos.counts
        assert ledger.problems() == [], chaos.counts
        for port in dict.fromkeys(cluster.mqtt_ports):
            assert ledger.retained_problems(dict(await read_retained(port, run))) == [], chaos.counts
    return chaos


@pytest.mark.slow("kills processes of a cluster")
@pytest.mark.timeout(120)
async def test_nothing_is_lost_doubled_or_reordered_while_processes_die(tmp_path: Path) -> None:
    done = await chaos(tmp_path, seed=1, seconds=12)
    assert done.counts["messages"] > 1000


@pytest.mark.long
@pytest.mark.timeout(0)
async def test_the_ledger_balances_after_a_minute_of_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLUSTER_RUNS sets how many minutes there are, each from a cluster of its own (2)."""
    runs = int(os.environ.get("CLUSTER_RUNS", "2"))
    for run in range(runs):
        directory = tmp_path / str(run)
        directory.mkdir()
        done = await chaos(directory, seed=100 + run, seconds=60)
        with capsys.disabled():
            print(f"\rcluster: run {run + 1} of {runs}: {dict(done.counts)}  ", end="", flush=True)
        assert done.counts["messages"] > 5000
        assert STAND_IN or done.counts["brokers killed"] >= 5, done.counts
        assert STAND_IN or done.counts["servers killed"] >= 2, done.counts
