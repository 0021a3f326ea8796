"""A broker dies: its clients go on at another one and miss nothing."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.mqtt.clients.paho_client import PahoClient, Will, fresh
from tests.mqtt.cluster.processes import NEEDS_CLUSTER, running_cluster

pytestmark = NEEDS_CLUSTER


@pytest.mark.slow("kills processes of a cluster")
def test_clients_of_a_killed_broker_go_on_elsewhere(tmp_path: Path, version: MQTTProtocolVersion) -> None:
    topic = fresh("killed")
    with running_cluster(tmp_path) as cluster, PahoClient(cluster.port(1), version=version) as other:
        other.subscribe(f"{topic}/#", 2)
        victim = PahoClient(cluster.port(0), version=version, durable=True, will=Will(f"{topic}/will", b"gone"))
        victim.connect()
        victim.subscribe(f"{topic}/x", 2)
        other.publish(f"{topic}/x", b"before", 2)
        victim.wait_payloads(1)
        cluster.brokers[0].end(signal.SIGKILL)
        victim.wait_disconnected()
        for qos in (1, 2):
            other.publish(f"{topic}/x", b"meanwhile %d" % qos, qos)
        victim.connect(cluster.port(2))
        assert victim.session_present is True
        other.publish(f"{topic}/x", b"after", 2)
        for payload in (b"before", b"meanwhile 1", b"meanwhile 2", b"after"):
            victim.wait_payload(payload)
        assert sorted(victim.wait_quiet()) == sorted([b"before", b"meanwhile 1", b"meanwhile 2", b"after"])
        victim.disconnect()


@pytest.mark.slow("kills processes of a cluster")
def test_a_will_outlives_the_broker_that_knew_it(tmp_path: Path) -> None:
    topic = fresh("orphan")
    with running_cluster(tmp_path) as cluster, PahoClient(cluster.port(1)) as watcher:
        watcher.subscribe(topic, 1)
        lost = PahoClient(cluster.port(0), durable=True, will=Will(topic, b"gone"))
        lost.connect()
        cluster.brokers[0].end(signal.SIGKILL)
        lost.wait_disconnected()
        # No other broker may act for that broker before its lease has expired.
        watcher.wait_payload(b"gone", timeout_s=45)
        assert watcher.wait_quiet() == [b"gone"]


@pytest.mark.slow("kills processes of a cluster")
def test_clients_wait_through_a_restart_of_the_server(tmp_path: Path, version: MQTTProtocolVersion) -> None:
    topic = fresh("restarted")
    with running_cluster(tmp_path) as cluster:
        assert cluster.server is not None
        with (
            PahoClient(cluster.port(0), version=version) as publisher,
            PahoClient(cluster.port(1), version=version, durable=True) as subscriber,
        ):
            subscriber.subscribe(topic, 2)
            publisher.publish(topic, b"0", 2)
            cluster.server.end(signal.SIGKILL)
            waiting = [publisher.begin_publish(topic, b"%d" % number, 1 + number % 2) for number in range(1, 11)]
            cluster.server.start()
            for info in waiting:
                info.wait_for_publish(20)
            for number in range(11):
                subscriber.wait_payload(b"%d" % number)
            assert len(subscriber.wait_quiet()) == 11
