"""What MQTT 5 sends along with a message, from a publisher at one broker to a subscriber at another."""

from __future__ import annotations

import time

from tests.mqtt.clients.paho_client import V311, PahoClient, fresh
from tests.mqtt.cluster.processes import Cluster


def test_properties_arrive_as_they_were_sent(cluster: Cluster) -> None:
    topic = fresh("properties")
    given = {
        "PayloadFormatIndicator": 1,
        "ContentType": "application/json",
        "ResponseTopic": f"{topic}/answer",
        "CorrelationData": bytes(range(256)),
        "UserProperty": [("a", "1"), ("b", "ä"), ("a", "2"), ("", "")],
    }
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(1)) as subscriber:
        subscriber.subscribe(topic, 2, subscription_id=268_435_455)
        for qos in range(3):
            publisher.publish(topic, b"{}", qos, **given)
        for message in subscriber.wait_messages(3):
            assert message.properties.pop("SubscriptionIdentifier") == [268_435_455]
            assert message.properties == given


def test_properties_of_retained_and_offline_messages_are_kept(cluster: Cluster) -> None:
    topic = fresh("kept-properties")
    away = PahoClient(cluster.port(2), durable=True)
    away.connect()
    away.subscribe(topic, 1)
    away.disconnect()
    with PahoClient(cluster.port(0)) as publisher:
        publisher.publish(topic, b"x", 1, retain=True, ContentType="text/plain", UserProperty=[("k", "v")])
        with PahoClient(cluster.port(1)) as late:
            late.subscribe(topic, 1)
            [retained] = late.wait_messages(1)
        away.connect(cluster.port(1))
        [offline] = away.wait_messages(1)
        away.disconnect()
        publisher.publish(topic, b"", 1, retain=True)
    assert (retained.retain, offline.retain) == (True, False)
    expected = {"ContentType": "text/plain", "UserProperty": [("k", "v")]}
    assert retained.properties == offline.properties == expected


def test_a_subscriber_of_the_older_version_gets_the_bare_message(cluster: Cluster) -> None:
    topic = fresh("older")
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(1), version=V311) as subscriber:
        subscriber.subscribe(topic, 1)
        publisher.publish(topic, b"x", 1, ContentType="text/plain", UserProperty=[("k", "v")])
        [message] = subscriber.wait_messages(1)
        assert (message.payload, message.properties) == (b"x", {})


def test_a_request_is_answered_across_brokers(cluster: Cluster) -> None:
    topic, answers = fresh("request"), fresh("answers")
    with PahoClient(cluster.port(0)) as asking, PahoClient(cluster.port(2)) as answering:
        asking.subscribe(answers, 1)
        answering.subscribe(topic, 1)
        asking.publish(topic, b"6*7", 1, ResponseTopic=answers, CorrelationData=b"\x00\x01")
        [request] = answering.wait_messages(1)
        answering.publish(
            request.properties["ResponseTopic"], b"42", 1, CorrelationData=request.properties["CorrelationData"]
        )
        [answer] = asking.wait_messages(1)
        assert (answer.payload, answer.properties["CorrelationData"]) == (b"42", b"\x00\x01")


def test_a_message_that_has_expired_is_not_delivered(cluster: Cluster) -> None:
    topic = fresh("expiring")
    away = PahoClient(cluster.port(0), durable=True)
    away.connect()
    away.subscribe(topic, 1)
    away.disconnect()
    with PahoClient(cluster.port(1)) as publisher:
        publisher.publish(topic, b"short", 1, MessageExpiryInterval=1)
        publisher.publish(topic, b"long", 1, MessageExpiryInterval=100)
        publisher.publish(topic, b"for ever", 1)
    time.sleep(2.1)
    away.connect(cluster.port(2))
    long, forever = away.wait_messages(2)
    assert away.wait_quiet() == [b"long", b"for ever"]
    assert 90 <= long.properties["MessageExpiryInterval"] <= 98
    assert "MessageExpiryInterval" not in forever.properties
    away.disconnect()


def test_an_alias_stands_for_a_topic(cluster: Cluster) -> None:
    topic = fresh("alias")
    with PahoClient(cluster.port(0)) as publisher, PahoClient(cluster.port(1)) as subscriber:
        subscriber.subscribe(f"{topic}/#", 1)
        limits = publisher.connack_properties
        assert limits is not None
        assert limits.TopicAliasMaximum >= 1
        publisher.publish(f"{topic}/a", b"1", 1, TopicAlias=1)
        publisher.publish("", b"2", 1, TopicAlias=1)
        publisher.publish(f"{topic}/b", b"3", 1, TopicAlias=1)
        publisher.publish("", b"4", 1, TopicAlias=1)
        found = [(message.topic, message.payload) for message in subscriber.wait_messages(4)]
        assert found == [(f"{topic}/a", b"1"), (f"{topic}/a", b"2"), (f"{topic}/b", b"3"), (f"{topic}/b", b"4")]


def test_a_publisher_learns_whether_there_were_subscribers(cluster: Cluster) -> None:
    topic = fresh("codes")
    with PahoClient(cluster.port(0)) as publisher:
        for qos in (1, 2):
            # The store keeps it all the same, so success is right as well.
            assert publisher.publish(topic, b"x", qos).value in {0x00, 0x10}


def test_a_client_without_a_name_is_given_one(cluster: Cluster) -> None:
    names = set()
    for number in range(3):
        client = PahoClient(cluster.port(number), client_id=None)
        client.connect()
        assert client.connack_properties is not None
        names.add(client.connack_properties.AssignedClientIdentifier)
        client.disconnect()
    assert len(names) == 3
