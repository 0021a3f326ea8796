"""mosquitto_pub and mosquitto_sub against three brokers."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from tests.mqtt.clients.paho_client import fresh
from tests.mqtt.cluster.processes import Cluster

TIMEOUT_S = 20
VERSIONS = ("mqttv311", "mqttv5")

pytestmark = [
    pytest.mark.skipif(
        not all(map(shutil.which, ("mosquitto_pub", "mosquitto_sub", "stdbuf"))),
        reason="mosquitto_pub, mosquitto_sub or stdbuf is not installed",
    ),
    pytest.mark.parametrize("version", VERSIONS),
]


@attrs.frozen
class Subscriber:
    """A mosquitto_sub that is subscribed."""

    process: subprocess.Popen[str]

    def lines(self) -> list[str]:
        """What it printed, once it has ended by itself (it counts with ``-C``)."""
        assert self.process.stdout is not None
        # It gives up by itself, so this ends.
        out = self.process.stdout.read()
        assert self.process.wait(TIMEOUT_S) == 0, out
        return [line for line in out.splitlines() if not line.startswith(("Client ", "Subscribed "))]


@contextmanager
def subscribed(port: int, version: str, *options: str) -> Iterator[Subscriber]:
    """A mosquitto_sub for the length of a block, from the moment its subscription is granted."""
    # It would else keep what it prints until there is a lot of it.
    command = ["stdbuf", "-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), "-V", version]
    command += ["-d", "-W", str(TIMEOUT_S), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("Subscribed "):
                    break
            else:
                raise AssertionError("the subscription was not granted")
            yield Subscriber(process)
        finally:
            process.kill()


def publish(port: int, version: str, *options: str) -> None:
    subprocess.run([*_publisher(port, version), *options], check=True, timeout=TIMEOUT_S)


@contextmanager
def publishing_lines(port: int, version: str, *options: str, lines: Iterable[str]) -> Iterator[None]:
    """A mosquitto_pub that publishes a line each; it must have sent all of them at the end of the block.

    Its input is open until then. At the end of its input it disconnects in one of two threads; at a certain moment of
    the other one, mosquitto_pub 2.0.11 then waits for ever (with mosquitto's own broker, too: in 2 of 1,800 runs).
    """
    with subprocess.Popen([*_publisher(port, version), *options, "-l"], stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdin is not None
            process.stdin.writelines(f"{line}\n" for line in lines)
            process.stdin.flush()
            yield
            process.stdin.close()
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


def _publisher(port: int, version: str) -> list[str]:
    return ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-V", version]


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_lines_published_at_one_broker_are_printed_at_another(cluster: Cluster, version: str, qos: str) -> None:
    topic = fresh("lines")
    sent = [f"line {number}" for number in range(100)]
    with (
        subscribed(
            cluster.port(1), version, "-t", f"{topic}/#", "-q", qos, "-C", "100", "-F", "%t %q %p"
        ) as subscriber,
        publishing_lines(cluster.port(0), version, "-t", f"{topic}/x", "-q", qos, lines=sent),
    ):
        assert [line for line in subscriber.lines() if line.startswith(topic)] == [
            f"{topic}/x {qos} {line}" for line in sent
        ]


def test_a_file_arrives_whole(cluster: Cluster, version: str, tmp_path: Path) -> None:
    topic = fresh("file")
    file = tmp_path / "file"
    file.write_text("0123456789" * 20_000)
    with subscribed(cluster.port(2), version, "-t", topic, "-q", "2", "-C", "1", "-F", "%l %p") as subscriber:
        publish(cluster.port(0), version, "-t", topic, "-q", "2", "-f", str(file))
        assert subscriber.lines()[-1] == f"200000 {file.read_text()}"


def test_a_durable_session_prints_what_came_meanwhile(cluster: Cluster, version: str) -> None:
    topic, client_id = fresh("meanwhile"), fresh("mosquitto-sub")
    session = ["-t", topic, "-q", "1", "-i", client_id, "-c"]
    if version == "mqttv5":
        session += ["-x", "600"]
    with subscribed(cluster.port(0), version, *session, "-C", "1") as subscriber:
        publish(cluster.port(1), version, "-t", topic, "-q", "1", "-m", "first")
        assert subscriber.lines()[-1] == "first"
    for message in ("second", "third"):
        publish(cluster.port(1), version, "-t", topic, "-q", "1", "-m", message)
    # What waits may come before the subscription is granted again.
    command = ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(cluster.port(2)), "-V", version, "-W", str(TIMEOUT_S)]
    done = subprocess.run([*command, *session, "-C", "2"], capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    assert done.stdout.splitlines() == ["second", "third"], done


def test_a_retained_message_is_shown_and_removed(cluster: Cluster, version: str) -> None:
    topic = fresh("retained")
    publish(cluster.port(0), version, "-t", topic, "-q", "1", "-r", "-m", "kept")
    with subscribed(cluster.port(1), version, "-t", topic, "-C", "1", "-F", "%r %p") as subscriber:
        assert subscriber.lines()[-1] == "1 kept"
    publish(cluster.port(2), version, "-t", topic, "-q", "1", "-r", "-n")
    with subscribed(cluster.port(1), version, "-t", topic, "-C", "1", "-F", "%r %p") as subscriber:
        publish(cluster.port(0), version, "-t", topic, "-q", "1", "-m", "not kept")
        assert subscriber.lines()[-1] == "0 not kept"


def test_the_will_of_a_killed_process_is_published(cluster: Cluster, version: str) -> None:
    topic = fresh("will")
    will = ["--will-topic", topic, "--will-payload", "killed", "--will-qos", "1"]
    with subscribed(cluster.port(1), version, "-t", topic, "-q", "1", "-C", "1") as watcher:
        with subscribed(cluster.port(0), version, "-t", "nothing", *will) as killed:
            killed.process.send_signal(signal.SIGKILL)
            assert watcher.lines()[-1] == "killed"
