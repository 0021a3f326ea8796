"""Wills and ends of sessions over brokers that die."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.mqtt.cluster.chaos import Chaos, make_crowd
from tests.mqtt.cluster.mortals import LIVES
from tests.mqtt.cluster.processes import NEEDS_CLUSTER, running_cluster


@pytest.mark.slow("runs a cluster and kills a broker")
@NEEDS_CLUSTER
@pytest.mark.timeout(120)
async def test_wills_come_once_or_not_at_all_and_sessions_end_in_time(tmp_path: Path) -> None:
    """One of each kind of client before a broker is killed and one while it is; the others see to what it had."""
    with running_cluster(tmp_path, brokers=2) as cluster:
        crowd = make_crowd(cluster.mqtt_ports, random.Random(1), "wills", publishers=1)
        chaos = Chaos(cluster, crowd, random.Random(1), ("wills",), least={"wills": 2, "brokers killed": 1})
        await chaos.run(0)
        assert chaos.broken == []
        assert crowd.ledger.problems() == []
        assert crowd.ledger.unacknowledged() == 0
        assert all(chaos.counts[f"wills: {life}"] for life in LIVES), chaos.counts
