"""Mosquitto in front of the cluster with the configuration that we ship: both ways, and on when a broker is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mqtt.clients.paho_client import PahoClient, fresh
from tests.mqtt.cluster.processes import NEEDS_CLUSTER, REPOSITORY, Cluster, Process, running_cluster
from tests.patience import PATIENCE_S
from tests.ports import free_port

CONFIG = REPOSITORY / "conf" / "mosquitto-bridge.conf"
UP = b"is it up?"
PROGRAM = shutil.which("mosquitto", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin")

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="mosquitto is not installed")


@contextmanager
def running_bridge(directory: Path, ports: list[int]) -> Iterator[Process]:
    """A mosquitto with our configuration for the length of a block; only addresses, name and topics are changed."""
    assert PROGRAM is not None
    name, port = fresh("bridge"), free_port()
    text = CONFIG.read_text()
    for pattern, replacement in (
        (r"^addresses .*$", "addresses " + " ".join(f"127.0.0.1:{each}" for each in ports)),
        (r"^remote_clientid .*$", f"remote_clientid {name}"),
    ):
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count == 1, pattern
    own = directory / "mosquitto.conf"
    user = "user root\n" if os.getuid() == 0 else ""
    own.write_text(f"""\
listener {port} 127.0.0.1
allow_anonymous true
persistence_location {directory}/
include_dir {directory}/conf.d
{user}""")
    (directory / "conf.d").mkdir()
    (directory / "conf.d" / "bridge.conf").write_text(text)
    process = Process([PROGRAM, "-c", str(own)], directory / "bridge.log", {"mqtt": port})
    process.start()
    try:
        yield process
    finally:
        process.end(signal.SIGKILL)


@pytest.mark.slow("starts a cluster and mosquitto")
def test_messages_pass_the_bridge_in_both_directions(cluster: Cluster, tmp_path: Path) -> None:
    with running_bridge(tmp_path, cluster.mqtt_ports) as bridge:
        own = fresh("line")
        with (
            PahoClient(bridge.ports["mqtt"]) as device,
            PahoClient(cluster.port(1)) as application,
        ):
            application.subscribe(f"plant/{own}/#", 1)
            device.subscribe(f"commands/{own}/#", 1)
            _wait_for_the_line(application, device, own)
            device.subscribe(f"plant/{own}/#", 1)
            payloads = [b"%d" % number for number in range(50)]
            for payload in payloads:
                device.publish(f"plant/{own}/temperature", payload, 1)
                application.publish(f"commands/{own}/set", payload, 1)
            assert application.wait_payloads(50) == payloads
            device.wait_messages(100)
            for level in ("plant", "commands"):
                assert [each.payload for each in device.messages if each.topic.startswith(level)] == payloads
            # Nothing goes round in circles.
            assert application.wait_quiet() == payloads
            assert len(device.wait_quiet()) == 100


@pytest.mark.slow("starts a cluster and mosquitto")
@NEEDS_CLUSTER
def test_the_bridge_continues_at_another_broker(tmp_path: Path) -> None:
    (tmp_path / "bridge").mkdir()
    with (
        running_cluster(tmp_path) as cluster,
        running_bridge(tmp_path / "bridge", cluster.mqtt_ports) as bridge,
        PahoClient(bridge.ports["mqtt"]) as device,
        PahoClient(cluster.port(2), durable=True) as application,
    ):
        own = fresh("line")
        application.subscribe(f"plant/{own}/#", 1)
        device.subscribe(f"commands/{own}/#", 1)
        _wait_for_the_line(application, device, own)
        for number in range(5):
            device.publish(f"plant/{own}/x", b"before %d" % number, 1)
            application.publish(f"commands/{own}/x", b"before %d" % number, 1)
        application.wait_payload(b"before 4")
        device.wait_payload(b"before 4")
        cluster.brokers[0].end(signal.SIGKILL)
        for number in range(5):
            device.publish(f"plant/{own}/x", b"after %d" % number, 1)
            application.publish(f"commands/{own}/x", b"after %d" % number, 1)
        application.wait_payload(b"after 4")
        device.wait_payload(b"after 4")
        expected = {b"%s %d" % (when, number) for when in (b"before", b"after") for number in range(5)}
        assert {each.payload for each in application.messages} == expected
        # What a bridge had not acknowledged when its broker died comes again.
        assert {each.payload for each in device.messages} - {UP} == expected


def _wait_for_the_line(application: PahoClient, device: PahoClient, own: str) -> None:
    """Send commands until one comes down, and forget them: what is sent before the bridge subscribes never comes."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not device.messages:
        assert time.monotonic() < give_up_at, "the bridge has not subscribed"
        application.publish(f"commands/{own}/line", UP, 1)
        time.sleep(0.05)
    device.wait_quiet()
    device.messages.clear()


def test_what_the_documentation_shows_of_it_is_in_it() -> None:
    [shown] = re.findall(r"```conf\n(.*?)```", (REPOSITORY / "docs" / "mqtt.md").read_text(), flags=re.DOTALL)
    assert len(shown.splitlines()) >= 5
    assert set(shown.splitlines()) <= set(CONFIG.read_text().splitlines())
