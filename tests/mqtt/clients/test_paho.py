"""paho-mqtt against three brokers: what is published at one is there at every other one, whatever the version."""

from __future__ import annotations

import itertools
import time

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.mqtt.clients.paho_client import V5, V311, PahoClient, Will, fresh
from tests.mqtt.cluster.processes import USES_MOSQUITTO, Cluster

GRANTED = {0: 0, 1: 1, 2: 2}


def both(version: MQTTProtocolVersion) -> MQTTProtocolVersion:
    """The other version, so that a test crosses the two."""
    return V311 if version == V5 else V5


@pytest.mark.parametrize(("published", "subscribed"), list(itertools.product(range(3), range(3))))
def test_messages_cross_brokers_at_every_quality(
    cluster: Cluster, version: MQTTProtocolVersion, published: int, subscribed: int
) -> None:
    topic = fresh("cross")
    with (
        PahoClient(cluster.port(0), version=both(version)) as publisher,
        PahoClient(cluster.port(1), version=version) as subscriber,
    ):
        assert subscriber.subscribe(f"{topic}/+", subscribed) == GRANTED[subscribed]
        payloads = [b"%d" % number for number in range(20)]
        for payload in payloads:
            publisher.publish(f"{topic}/x", payload, published)
        found = subscriber.wait_messages(20)
        assert [message.payload for message in found] == payloads
        assert {message.qos for message in found} == {min(published, subscribed)}
        assert {(message.topic, message.retain) for message in found} == {(f"{topic}/x", False)}
        assert subscriber.wait_quiet() == payloads


def test_one_message_comes_once_for_filters_that_overlap(cluster: Cluster) -> None:
    topic = fresh("overlap")
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(1)) as subscriber:
        subscriber.subscribe(f"{topic}/#", 1, subscription_id=7)
        subscriber.subscribe(f"{topic}/+", 2, subscription_id=9)
        publisher.publish(f"{topic}/x", b"once", 2)
        publisher.publish(f"{topic}/x/y", b"below", 2)
        subscriber.wait_messages(2)
        subscriber.wait_quiet()
        received = [(each.payload, each.qos, each.properties["SubscriptionIdentifier"]) for each in subscriber.messages]
        if USES_MOSQUITTO:
            # The standard also allows a copy for each filter.
            assert sorted(received) == [(b"below", 1, [7]), (b"once", 1, [7]), (b"once", 2, [9])]
        else:
            assert [(payload, qos, sorted(ids)) for payload, qos, ids in received] == [
                (b"once", 2, [7, 9]),
                (b"below", 1, [7]),
            ]


def test_nothing_comes_after_the_end_of_a_subscription(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic = fresh("ended")
    with (
        PahoClient(cluster.port(0), version=version) as publisher,
        PahoClient(cluster.port(2), version=version) as subscriber,
    ):
        subscriber.subscribe(topic)
        publisher.publish(topic, b"before")
        subscriber.wait_messages(1)
        subscriber.unsubscribe(topic)
        publisher.publish(topic, b"after")
        assert subscriber.wait_quiet() == [b"before"]


def test_a_retained_message_is_there_for_later_subscribers(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic = fresh("retained")
    with (
        PahoClient(cluster.port(0), version=version) as publisher,
        PahoClient(cluster.port(1), version=version) as early,
    ):
        early.subscribe(f"{topic}/#")
        for value in (b"one", b"two"):
            publisher.publish(f"{topic}/a", value, retain=True)
        publisher.publish(f"{topic}/b", b"other", 2, retain=True)
        assert [(message.payload, message.retain) for message in early.wait_messages(3)] == [
            (b"one", False),
            (b"two", False),
            (b"other", False),
        ]
        with PahoClient(cluster.port(2), version=version) as late:
            late.subscribe(f"{topic}/+", 2)
            found = sorted(
                (message.topic, message.payload, message.qos, message.retain) for message in late.wait_messages(2)
            )
            assert found == [(f"{topic}/a", b"two", 1, True), (f"{topic}/b", b"other", 2, True)]
        for last in ("a", "b"):
            publisher.publish(f"{topic}/{last}", b"", retain=True)
        early.wait_messages(5)
        with PahoClient(cluster.port(2), version=version) as latest:
            latest.subscribe(f"{topic}/+")
            assert latest.wait_quiet() == []


def test_retain_handling_and_retain_as_published(cluster: Cluster) -> None:
    topic = fresh("handling")
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(1)) as subscriber:
        publisher.publish(topic, b"kept", retain=True)
        subscriber.subscribe(topic, retain_handling=2)
        assert subscriber.wait_quiet() == []
        subscriber.subscribe(topic, retain_handling=1)
        assert subscriber.wait_quiet() == []
        subscriber.unsubscribe(topic)
        subscriber.subscribe(topic, retain_handling=1, retain_as_published=True)
        assert subscriber.wait_payloads(1) == [b"kept"]
        publisher.publish(topic, b"newer", retain=True)
        assert [message.retain for message in subscriber.wait_messages(2)] == [True, True]
        publisher.publish(topic, b"", retain=True)


def test_no_local_keeps_a_publisher_from_its_own_messages(cluster: Cluster) -> None:
    topic = fresh("local")
    with PahoClient(cluster.port(0)) as both_ways, PahoClient(cluster.port(1)) as other:
        both_ways.subscribe(topic, no_local=True)
        other.subscribe(topic)
        both_ways.publish(topic, b"mine")
        other.publish(topic, b"theirs")
        assert sorted(other.wait_payloads(2)) == [b"mine", b"theirs"]
        assert both_ways.wait_payloads(1) == [b"theirs"]
        assert both_ways.wait_quiet() == [b"theirs"]


def test_a_will_is_published_when_the_connection_is_lost(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic = fresh("will")
    with PahoClient(cluster.port(1), version=version) as watcher:
        watcher.subscribe(topic, 2)
        polite = PahoClient(cluster.port(0), version=version, will=Will(topic, b"never"))
        polite.connect()
        polite.disconnect()
        lost = PahoClient(cluster.port(0), version=version, will=Will(topic, b"gone", qos=2))
        lost.connect()
        lost.vanish()
        [message] = watcher.wait_messages(1)
        assert (message.payload, message.qos) == (b"gone", 2)
        assert watcher.wait_quiet() == [b"gone"]


def test_a_will_that_waits_is_not_published_when_the_client_is_back_in_time(cluster: Cluster) -> None:
    topic = fresh("will-delay")
    with PahoClient(cluster.port(1)) as watcher:
        watcher.subscribe(topic)
        lost = PahoClient(cluster.port(0), durable=True, will=Will(topic, b"gone", delay_s=1))
        lost.connect()
        lost.vanish()
        lost.connect(cluster.port(2))
        time.sleep(1.5)
        assert watcher.wait_quiet() == []
        lost.vanish()
        begun_at = time.monotonic()
        assert watcher.wait_payloads(1) == [b"gone"]
        assert time.monotonic() - begun_at >= 0.8


def test_a_durable_session_goes_from_broker_to_broker(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic, client_id = fresh("moving"), fresh("mover")
    subscriber = PahoClient(cluster.port(0), client_id, version=version, durable=True)
    subscriber.connect()
    assert subscriber.session_present is False
    subscriber.subscribe(f"{topic}/#", 2)
    expected: list[tuple[int, bytes]] = []

    def publish(publisher: PahoClient, payload: bytes, qos: int) -> None:
        publisher.publish(f"{topic}/{qos}", payload, qos)
        expected.append((qos, payload))

    with PahoClient(cluster.port(1), version=version) as publisher:
        for turn, back_at in enumerate((2, 1, 0)):
            (subscriber.disconnect if turn != 1 else subscriber.vanish)()
            for number in range(10):
                publish(publisher, b"%d.%d" % (turn, number), 1 + number % 2)
            subscriber.connect(cluster.port(back_at))
            assert subscriber.session_present is True
            for _, payload in expected:
                subscriber.wait_payload(payload)
            # Live again, without a new subscription.
            publish(publisher, b"%d.live" % turn, 1)
            subscriber.wait_payload(b"%d.live" % turn)
    subscriber.wait_quiet()
    found = [(each.qos, each.payload) for each in subscriber.messages]
    # A client that disappears may not have acknowledged the last message of QoS 1, which then comes again.
    assert list(dict.fromkeys(each for each in found if each[0] == 1)) == [each for each in expected if each[0] == 1]
    assert [each for each in found if each[0] == 2] == [each for each in expected if each[0] == 2]
    subscriber.disconnect()


def test_a_session_is_gone_when_its_time_is_over(cluster: Cluster) -> None:
    topic, client_id = fresh("expiry"), fresh("expiring")
    first = PahoClient(cluster.port(0), client_id, connect_properties=[("SessionExpiryInterval", 1)])
    first.connect()
    first.subscribe(topic)
    first.vanish()
    time.sleep(2.5)
    again = PahoClient(cluster.port(1), client_id, durable=True)
    again.connect()
    assert again.session_present is False
    again.disconnect()


def test_a_clean_start_forgets_the_session_of_another_broker(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic, client_id = fresh("clean"), fresh("cleaned")
    first = PahoClient(cluster.port(0), client_id, version=version, durable=True)
    first.connect()
    first.subscribe(topic)
    first.disconnect()
    with PahoClient(cluster.port(1), version=version) as publisher:
        publisher.publish(topic, b"without a subscriber")
    with PahoClient(cluster.port(2), client_id, version=version) as clean:
        assert clean.session_present is False
        assert clean.wait_quiet() == []


def test_a_client_that_comes_back_elsewhere_ends_its_older_connection(
    cluster: Cluster, version: MQTTProtocolVersion
) -> None:
    topic, client_id = fresh("takeover"), fresh("taken")
    first = PahoClient(cluster.port(0), client_id, version=version, durable=True)
    first.connect()
    first.subscribe(topic)
    second = PahoClient(cluster.port(1), client_id, version=version, durable=True)
    second.connect()
    assert second.session_present is True
    reason = first.wait_disconnected()
    if version == V5 and not USES_MOSQUITTO:
        assert reason.value == 0x8E, reason
    with PahoClient(cluster.port(2), version=version) as publisher:
        publisher.publish(topic, b"to the new one")
    assert second.wait_payloads(1) == [b"to the new one"]
    assert first.messages == []
    second.disconnect()


def test_exactly_one_connection_is_left_when_many_take_over_at_once(cluster: Cluster) -> None:
    client_id = fresh("contested")
    clients = [PahoClient(port, client_id, durable=True) for port in cluster.mqtt_ports * 3]
    for client in clients:
        client.connect()
    for client in clients[:-1]:
        client.wait_disconnected()
    topic = fresh("contested")
    clients[-1].subscribe(topic)
    clients[-1].publish(topic, b"still here")
    assert clients[-1].wait_payloads(1) == [b"still here"]
    clients[-1].disconnect()


def test_messages_of_qos_0_are_not_kept_for_a_client_that_is_away(
    cluster: Cluster, version: MQTTProtocolVersion
) -> None:
    topic = fresh("volatile")
    subscriber = PahoClient(cluster.port(0), version=version, durable=True)
    subscriber.connect()
    subscriber.subscribe(topic, 1)
    subscriber.disconnect()
    with PahoClient(cluster.port(1), version=version) as publisher:
        publisher.publish(topic, b"lost", 0)
        publisher.publish(topic, b"kept", 1)
    subscriber.connect()
    assert subscriber.wait_payloads(1) == [b"kept"]
    assert subscriber.wait_quiet() == [b"kept"]
    subscriber.disconnect()


@pytest.mark.parametrize("size", [0, 1, 127, 128, 70_000, 300_000])
def test_payloads_of_any_size(cluster: Cluster, version: MQTTProtocolVersion, size: int) -> None:
    topic = fresh("size")
    payload = bytes(number % 251 for number in range(size))
    with (
        PahoClient(cluster.port(0), version=version) as publisher,
        PahoClient(cluster.port(1), version=version) as subscriber,
    ):
        subscriber.subscribe(topic, 2)
        publisher.publish(topic, payload, 2)
        assert subscriber.wait_payloads(1) == [payload]


def test_web_sockets_carry_the_same(cluster: Cluster, version: MQTTProtocolVersion) -> None:
    topic = fresh("websocket")
    with (
        PahoClient(cluster.websocket_port(0), version=version, transport="websockets") as publisher,
        PahoClient(cluster.websocket_port(1), version=version, transport="websockets") as subscriber,
        PahoClient(cluster.port(2), version=version) as over_tcp,
    ):
        subscriber.subscribe(topic, 2)
        over_tcp.subscribe(topic, 2)
        payloads = [b"%d" % number for number in range(50)]
        for number, payload in enumerate(payloads):
            publisher.publish(topic, payload, number % 3)
        assert sorted(subscriber.wait_payloads(50)) == sorted(payloads)
        assert sorted(over_tcp.wait_payloads(50)) == sorted(payloads)
