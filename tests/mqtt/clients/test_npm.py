"""The npm package ``mqtt``, over TCP and WebSocket, against three brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.mqtt.clients.install import missing
from tests.mqtt.clients.npm_client import NpmClients, running_npm_clients
from tests.mqtt.clients.paho_client import fresh
from tests.mqtt.cluster.processes import USES_MOSQUITTO, Cluster

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "it can run")


@pytest.fixture(scope="module")
def npm() -> Iterator[NpmClients]:
    with running_npm_clients() as clients:
        yield clients


@pytest.fixture(params=[4, 5], ids=["3.1.1", "5"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"protocolVersion": request.param}


@pytest.fixture(params=["mqtt", "ws"])
def scheme(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def url(cluster: Cluster, number: int, scheme: str = "mqtt") -> str:
    if scheme == "ws":
        return f"ws://127.0.0.1:{cluster.websocket_port(number)}/mqtt"
    return f"mqtt://127.0.0.1:{cluster.port(number)}"


def connect(npm: NpmClients, cluster: Cluster, number: int, options: dict[str, Any], **given: Any) -> str:
    """A new client; its name."""
    scheme = given.pop("scheme", "mqtt")
    name = given.setdefault("clientId", fresh("npm"))
    npm.call("connect", name, url=url(cluster, number, scheme), options={**options, **given})
    return str(name)


@pytest.mark.few_cases(1, "three brokers for each client")
def test_messages_cross_brokers(npm: NpmClients, cluster: Cluster, options: dict[str, Any], scheme: str) -> None:
    topic = fresh("cross")
    subscriber = connect(npm, cluster, 1, options, scheme=scheme)
    publisher = connect(npm, cluster, 0, options, scheme=scheme)
    assert npm.call("subscribe", subscriber, filter=f"{topic}/+", options={"qos": 2})["granted"] == [2]
    for number in range(30):
        npm.call("publish", publisher, topic=f"{topic}/x", payload=str(number), options={"qos": number % 3})
    found = npm.wait_events("message", subscriber, 30)
    for qos in range(3):
        assert [each["payload"] for each in found if each["qos"] == qos] == [str(at) for at in range(qos, 30, 3)]
    npm.call("end", subscriber)
    npm.call("end", publisher)


def test_a_session_moves_with_what_came_meanwhile(npm: NpmClients, cluster: Cluster, options: dict[str, Any]) -> None:
    topic = fresh("moving")
    durable: dict[str, Any] = {"clean": False}
    if options["protocolVersion"] == 5:
        durable["properties"] = {"sessionExpiryInterval": 600}
    subscriber = connect(npm, cluster, 0, options, **durable)
    npm.call("subscribe", subscriber, filter=topic, options={"qos": 2})
    npm.call("vanish", subscriber)
    npm.wait_events("close", subscriber, 1)
    publisher = connect(npm, cluster, 1, options)
    for number in range(10):
        npm.call("publish", publisher, topic=topic, payload=str(number), options={"qos": 1 + number % 2})
    back = npm.call("connect", subscriber, url=url(cluster, 2), options={**options, **durable, "clientId": subscriber})
    assert back["sessionPresent"] is True
    found = npm.wait_events("message", subscriber, 10)
    for qos in (1, 2):
        assert [each["payload"] for each in found if each["qos"] == qos] == [str(at) for at in range(qos - 1, 10, 2)]
    npm.call("end", subscriber)
    npm.call("end", publisher)


def test_retained_message_and_will(npm: NpmClients, cluster: Cluster, options: dict[str, Any], scheme: str) -> None:
    topic = fresh("retained")
    will = {"topic": topic, "payload": "gone", "qos": 1, "retain": False}
    lost = connect(npm, cluster, 0, options, scheme=scheme, will=will)
    npm.call("publish", lost, topic=topic, payload="kept", options={"qos": 1, "retain": True})
    watcher = connect(npm, cluster, 1, options)
    npm.call("subscribe", watcher, filter=topic, options={"qos": 1})
    npm.wait_events("message", watcher, 1)
    npm.call("vanish", lost)
    found = npm.wait_events("message", watcher, 2)
    assert [(each["payload"], each["retain"]) for each in found] == [("kept", True), ("gone", False)]
    npm.call("publish", watcher, topic=topic, payload="", options={"qos": 1, "retain": True})
    npm.call("end", watcher)


def test_properties_and_the_reason_of_a_takeover(npm: NpmClients, cluster: Cluster) -> None:
    topic = fresh("properties")
    options = {"protocolVersion": 5}
    first = connect(npm, cluster, 0, options)
    npm.call("subscribe", first, filter=topic, options={"qos": 1})
    given = {"contentType": "text/plain", "userProperties": {"k": ["1", "2"]}}
    npm.call("publish", first, topic=topic, payload="x", options={"qos": 1, "properties": given})
    [message] = npm.wait_events("message", first, 1)
    assert {name: message["properties"][name] for name in given} == given
    connect(npm, cluster, 1, options, clientId=first)
    npm.wait_events("close", first, 1)
    if not USES_MOSQUITTO:
        assert npm.wait_events("disconnect", first, 1)[0]["reason"] == 0x8E
    npm.call("end", first)
