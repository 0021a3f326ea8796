"""Pending retained messages of a subscription come, though the connection ends before they were all sent."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import open_adapter
from broker_adapter.mqtt.session import Retained
from broker_adapter.mqtt_codec import Properties, Version
from broker_adapter.mqtt_codec.packets import Puback, Publish, Pubrec
from tests.mqtt.delivery.delivering import until
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S


def terms(receive_maximum: int = 2) -> Properties:
    return Properties(session_expiry_interval=3600, receive_maximum=receive_maximum)


async def retain(served: Serving, count: int, qos: int = 2) -> list[str]:
    publisher = await served.client("p")
    topics = [f"a/{number:04}" for number in range(count)]
    for topic in topics:
        await publisher.publish(topic, topic.encode(), qos, retain=True)
    await publisher.leave()
    return topics


async def connect(served: Serving) -> Client:
    return await served.client("c", clean_start=False, properties=terms())


async def drop(client: Client, served: Serving) -> None:
    before = served.broker.sessions.statistics.connected_count
    await client.stream.aclose()
    await until(lambda: served.broker.sessions.statistics.connected_count < before)


@pytest.mark.parametrize("qos", [1, 2])
async def test_retained_messages_that_waited_at_subscribe_are_lost_with_the_connection(qos: int) -> None:
    """SUBACK was sent, two of ten were under way, and the other eight were in the connection's memory alone."""
    async with serving() as served:
        topics = await retain(served, 10)
        client = await connect(served)
        await client.subscribe("a/#", qos=qos)
        assert [(await client.expect(Publish)).topic for _ in range(2)] == topics[:2]
        await drop(client, served)
        client = await connect(served)
        assert [(await client.message()).topic for _ in range(10)] == topics
        await client.silent()


async def test_they_come_at_another_broker_once_at_qos_2_however_often_the_connection_ends() -> None:
    async with (
        open_adapter("memory:") as store,
        serving(store, broker_id="one") as one,
        serving(store, broker_id="two") as two,
    ):
        topics = await retain(one, 12)
        broker, client = one, await connect(one)
        await client.subscribe("a/#", qos=2)
        found: list[str] = []
        for number in range(12):
            await drop(client, broker)
            broker = (two, one)[number % 2]
            client = await connect(broker)
            found.append((await client.message()).topic)
        assert found == topics
        await client.silent()


async def test_what_is_retained_anew_meanwhile_comes_once_as_a_live_message() -> None:
    async with serving() as served:
        topics = await retain(served, 4)
        client = await connect(served)
        await client.subscribe("a/#", qos=1)
        assert [(await client.expect(Publish)).topic for _ in range(2)] == topics[:2]
        publisher = await served.client("q")
        await publisher.publish(topics[3], b"newer", 1, retain=True)
        await drop(client, served)
        client = await connect(served)
        found = [await client.message() for _ in range(4)]
        assert [(one.topic, one.retain) for one in found] == [
            (topics[0], True),
            (topics[1], True),
            (topics[2], True),
            (topics[3], False),
        ]
        assert found[3].payload == b"newer"
        await client.silent()


async def make_again_behind(client: Client, publisher: Client) -> Publish:
    """A subscription is made again while two values of its topic wait behind a message that is under way."""
    await client.subscribe("a/#", qos=1)
    for payload in (b"under way", b"0", b"1"):
        await publisher.publish("a/b", payload, 1, retain=True)
    under_way = await client.expect(Publish)
    assert await client.subscribe("a/#", qos=1) == (1,)
    return under_way


async def test_a_subscription_that_is_made_again_goes_back_to_no_older_value() -> None:
    """The retained message went out before the live ones that waited: the topic's values were 1, 0, 1."""
    async with serving() as served:
        publisher, client = await served.client("p"), await served.client("c", properties=terms(1))
        under_way = await make_again_behind(client, publisher)
        await client.send(Puback(under_way.packet_id))
        found = [await client.message() for _ in range(3)]
        assert [(one.payload, one.retain) for one in found] == [(b"0", False), (b"1", False), (b"1", True)]
        await client.silent()


async def test_nor_does_it_at_the_next_connection() -> None:
    async with serving() as served:
        publisher = await served.client("p")
        client = await served.client("c", clean_start=False, properties=terms(1))
        await make_again_behind(client, publisher)
        await drop(client, served)
        client = await served.client("c", clean_start=False, properties=terms(1))
        found = [await client.message() for _ in range(4)]
        assert [(one.payload, one.retain) for one in found] == [
            (b"under way", False),
            (b"0", False),
            (b"1", False),
            (b"1", True),
        ]
        await client.silent()


async def test_what_is_retained_comes_again_to_a_subscription_that_is_made_again_and_has_nothing_waiting() -> None:
    async with serving() as served:
        topics = await retain(served, 3, qos=1)
        client, other = await served.client("c"), await served.client("o")
        for turn in range(3):
            await client.subscribe("a/#", qos=1)
            assert [(await client.message()).topic for _ in topics] == topics
            await other.publish("elsewhere", b"%d" % turn, 1)


async def test_unsubscribing_cancels_pending_retained_messages() -> None:
    async with serving() as served:
        topics = await retain(served, 6)
        client = await connect(served)
        await client.subscribe("a/#", qos=1)
        under_way = [await client.expect(Publish) for _ in range(2)]
        await client.unsubscribe("a/#")
        await client.send(*(Puback(one.packet_id) for one in under_way))
        await client.silent()
        await client.subscribe(topics[5], qos=1)
        assert (await client.message()).topic == topics[5]
        await client.silent()


@pytest.mark.slow("fills thousands of shards, groups or messages")
async def test_a_client_of_mqtt_3_gets_pending_retained_messages_as_well() -> None:
    async with serving() as served:
        topics = await retain(served, 700)
        client = await served.client("c", Version.V311, clean_start=False)
        await client.subscribe("#", qos=2)
        first = [(await client.expect(Publish)) for _ in range(3)]
        await client.send(Pubrec(first[0].packet_id))
        await drop(client, served)
        client = await served.client("c", Version.V311, clean_start=False)
        found: set[str] = {first[0].topic}
        while len(found) < 700:
            packet = await client.receive()
            if isinstance(packet, Publish):
                found.add(packet.topic)
                await client.send(Pubrec(packet.packet_id))
        assert found == set(topics)


async def test_all_retained_messages_of_a_store_are_in_one_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription to everything over a million topics held them all at once."""
    largest = 0
    page = Retained.page

    async def measured(self: Retained, topic_filter: str, after: bytes) -> object:
        nonlocal largest
        found = await page(self, topic_filter, after)
        largest = max(largest, len(found.messages))
        return found

    monkeypatch.setattr(Retained, "page", measured)
    async with serving() as served:
        topics = await retain(served, 1700, qos=0)
        client = await served.client("c")
        await client.subscribe("#")
        assert [(await client.message()).topic for _ in range(1700)] == topics
        assert 0 < largest <= 500
        with trio.fail_after(PATIENCE_S):
            await client.silent()
