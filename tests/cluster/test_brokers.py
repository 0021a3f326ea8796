"""Brokers on a store that several servers share: their clients notice a takeover by a pause at most."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
import pytest
import trio
from paho.mqtt.enums import CallbackAPIVersion

from tests.cluster.servers import Cluster, running
from tests.patience import PATIENCE_S
from tests.ports import free_port

MESSAGES: Final = 300


@contextmanager
def broker_on(cluster: Cluster, log: Path) -> Iterator[int]:
    """A broker whose store is the cluster; its port."""
    port = free_port()
    command = [sys.executable, "-m", "broker_adapter.mqtt.cli.main", "serve"]
    options = ["--store", cluster.address, "--anonymous", "--listen", f"127.0.0.1:{port}"]
    with log.open("ab") as errors:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=errors)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready"), log.read_text()
        yield port
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def connected(port: int, name: str, received: Counter[bytes] | None = None, enough: int = 0) -> Iterator[Any]:
    """A client; with ``received`` it subscribes to all topics at QoS 2."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
    subscribed, complete = threading.Event(), threading.Event()

    def on_message(_client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        assert received is not None
        received[bytes(message.payload)] += 1
        if len(received) >= enough:
            complete.set()

    client.on_message = on_message
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port, clean_start=False)
    client.loop_start()
    try:
        if received is not None:
            client.subscribe("#", qos=2)
            assert subscribed.wait(PATIENCE_S)
        yield client
        if received is not None:
            assert complete.wait(PATIENCE_S), f"{len(received)} of {enough} came"
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.slow("starts two servers and a broker, and waits for a takeover")
def test_messages_come_through_a_takeover_those_at_qos_2_once(tmp_path: Path) -> None:
    received: Counter[bytes] = Counter()
    with (
        running(tmp_path, 2) as cluster,
        broker_on(cluster, tmp_path / "broker.log") as port,
        connected(port, "subscriber", received, enough=MESSAGES),
        connected(port, "publisher") as publisher,
    ):
        owner = trio.run(cluster.owner)
        published = []
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                owner.kill()
            published.append(publisher.publish(f"plant/{number % 5}", b"%d" % number, qos=1 + number % 2))
        for message in published:
            message.wait_for_publish(PATIENCE_S)
        assert all(message.is_published() for message in published)
    assert set(received) == {b"%d" % number for number in range(MESSAGES)}
    assert {number: count for number, count in received.items() if int(number) % 2 and count != 1} == {}
