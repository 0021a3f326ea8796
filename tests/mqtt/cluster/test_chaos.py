"""Brokers and their server are killed again and again under many clients; the ledger of them all must balance."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.mqtt.cluster.chaos import Course, make_crowd, read_retained, run_chaos
from tests.mqtt.cluster.ledger import Ledger
from tests.mqtt.cluster.processes import STAND_IN, running_cluster

PUBLISHERS = 6


async def chaos(directory: Path, seed: int, seconds: float) -> tuple[Ledger, Course]:
    """One run; everything is checked but how much of it there was."""
    rng = random.Random(seed)
    run = f"chaos-{os.getpid()}-{seed}"
    with running_cluster(directory) as cluster:
        crowd = make_crowd(cluster.mqtt_ports, rng, run, publishers=PUBLISHERS)
        course = await run_chaos(cluster, crowd, run, seconds, rng, kills=not STAND_IN)
        ledger = crowd.ledger
        assert ledger.unacknowledged() == 0, course
        assert ledger.problems() == [], course
        for port in dict.fromkeys(cluster.mqtt_ports):
            assert ledger.retained_problems(dict(await read_retained(port, run))) == [], course
    return ledger, course


@pytest.mark.timeout(120)
async def test_nothing_is_lost_doubled_or_reordered_while_processes_die(tmp_path: Path) -> None:
    ledger, course = await chaos(tmp_path, seed=1, seconds=12)
    assert sum(sent.count for sent in ledger.streams.values()) > 1000
    assert STAND_IN or course.killed_brokers >= 2, course


@pytest.mark.long
@pytest.mark.timeout(0)
async def test_the_ledger_balances_after_a_minute_of_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CLUSTER_RUNS sets how many minutes there are, each from a cluster of its own (2)."""
    runs = int(os.environ.get("CLUSTER_RUNS", "2"))
    for run in range(runs):
        directory = tmp_path / str(run)
        directory.mkdir()
        ledger, course = await chaos(directory, seed=100 + run, seconds=60)
        sent = sum(each.count for each in ledger.streams.values())
        with capsys.disabled():
            print(f"\rcluster: run {run + 1} of {runs}: {sent} messages, {course}  ", end="", flush=True)
        assert sent > 5000
        assert STAND_IN or course.killed_brokers >= 5, course
        assert STAND_IN or course.killed_servers >= 2, course
