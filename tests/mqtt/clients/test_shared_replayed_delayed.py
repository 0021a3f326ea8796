"""What goes beyond plain subscriptions: work shared over brokers, history played again, messages that wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.mqtt.clients.paho_client import V5, V311, PahoClient, fresh
from tests.mqtt.cluster.processes import USES_MOSQUITTO, Cluster
from tests.patience import PATIENCE_S

OURS_ALONE = pytest.mark.skipif(USES_MOSQUITTO, reason="mosquitto has no replay and no delay")


@pytest.mark.few_cases(1, "three brokers for each client")
def test_members_on_three_brokers_share_the_work(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic, group = fresh("shared"), fresh("group")
    members = [PahoClient(cluster.port(number), version=version) for number in range(3)]
    for member in members:
        member.connect()
        member.subscribe(f"$share/{group}/{topic}/#", 1)
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(1)) as everything:
        everything.subscribe(f"{topic}/#", 1)
        payloads = [b"%d" % number for number in range(90)]
        for number, payload in enumerate(payloads):
            publisher.publish(f"{topic}/{number % 5}", payload, 1)
        everything.wait_messages(90)
        _wait_together(members, 90)
        assert everything.wait_quiet() == payloads
    shares = [member.wait_quiet() for member in members]
    assert sorted(payload for share in shares for payload in share) == sorted(payloads)
    if USES_MOSQUITTO:
        assert all(shares)
    for member in members:
        member.disconnect()


def test_what_a_member_leaves_goes_to_the_others(cluster: Cluster) -> None:
    topic, group = fresh("left"), fresh("group")
    staying, leaving = PahoClient(cluster.port(0)), PahoClient(cluster.port(1))
    for member in (staying, leaving):
        member.connect()
        member.subscribe(f"$share/{group}/{topic}", 1)
    with PahoClient(cluster.port(2)) as publisher:
        for number in range(10):
            publisher.publish(topic, b"both %d" % number, 1)
        _wait_together([staying, leaving], 10)
        leaving.vanish()
        for number in range(10):
            publisher.publish(topic, b"one %d" % number, 1)
        for number in range(10):
            staying.wait_payload(b"one %d" % number)
    everything = {message.payload for message in (*staying.messages, *leaving.messages)}
    assert len(everything) == 20
    staying.disconnect()


@pytest.mark.few_cases(1, "three brokers for each client")
@OURS_ALONE
@pytest.mark.parametrize("start", ["earliest", "0", "-15m", "time"])
def test_stored_messages_are_played_again_and_live_ones_follow(
    cluster: Cluster, version: MQTTProtocolVersion, start: str
) -> None:
    topic = fresh("replayed")
    where = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if start == "time" else start
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(1), version=version) as reader:
        before = [b"%d" % number for number in range(50)]
        for payload in before:
            publisher.publish(topic, payload, 1)
        if version == V5:
            reader.subscribe(topic, 1, user_properties=[("replay-from", where)])
        else:
            reader.subscribe(f"$replay/{where}/{topic}", 1)
        assert reader.wait_payloads(50) == before
        publisher.publish(topic, b"live", 1)
        assert reader.wait_payloads(51) == [*before, b"live"]
        assert {message.topic for message in reader.messages} == {topic}
        assert reader.wait_quiet() == [*before, b"live"]


@OURS_ALONE
def test_a_replay_begins_at_an_offset(cluster: Cluster) -> None:
    topic = fresh("offset")
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(2), version=V311) as reader:
        for number in range(10):
            publisher.publish(topic, b"%d" % number, 1)
        reader.subscribe(f"$replay/7/{topic}", 1)
        assert reader.wait_payloads(3) == [b"7", b"8", b"9"]


@OURS_ALONE
def test_a_delayed_message_waits_and_comes_once(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic = fresh("delayed")
    with (
        PahoClient(cluster.port(0), version=version) as publisher,
        PahoClient(cluster.port(1), version=version) as subscriber,
    ):
        subscriber.subscribe(topic, 2)
        begun_at = time.monotonic()
        publisher.publish(f"$delayed/2/{topic}", b"later", 2)
        publisher.publish(topic, b"now", 2)
        assert subscriber.wait_payloads(2) == [b"now", b"later"]
        assert time.monotonic() - begun_at >= 1.9
        assert {message.topic for message in subscriber.messages} == {topic}
        assert subscriber.wait_quiet() == [b"now", b"later"]


def test_a_broker_publishes_its_statistics(cluster: Cluster) -> None:
    with PahoClient(cluster.port(0)) as watcher:
        watcher.subscribe("$SYS/#", 0)
        [message, *_] = watcher.wait_messages(1)
        assert message.topic.startswith("$SYS/")


def test_what_begins_with_a_dollar_is_not_meant_by_a_wildcard(cluster: Cluster) -> None:
    topic = fresh("dollar")
    with PahoClient(cluster.port(0)) as watcher, PahoClient(cluster.port(1)) as publisher:
        watcher.subscribe("#", 1)
        publisher.publish(topic, b"x", 1)
        watcher.wait_payload(b"x")
        assert not [message.topic for message in watcher.messages if message.topic.startswith("$")]


def _wait_together(members: list[PahoClient], count: int) -> None:
    """Wait until they have so many messages between them."""
    give_up_at = time.monotonic() + PATIENCE_S
    while sum(len(member.messages) for member in members) < count:
        assert time.monotonic() < give_up_at, [len(member.messages) for member in members]
        time.sleep(0.01)
