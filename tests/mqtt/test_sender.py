"""PUBLISH to clients: as many as they want under way, as large as they take, and again after they were gone."""

from __future__ import annotations

import pytest
import trio

from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel
from shards.seams.clock import ManualClock, SystemClock
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S

BOTH = [Version.V311, Version.V5]
KEPT = Properties(session_expiry_interval=100)


async def publish(served: Serving, topic: str, *payloads: bytes, qos: int = 1, **options: bool) -> None:
    publisher = await served.client("publisher")
    for payload in payloads:
        await publisher.publish(topic, payload, qos, **options)
    await publisher.leave()


async def again(served: Serving, version: Version = Version.V5) -> Client:
    return await served.client(
        "c", version, clean_start=False, properties=KEPT if version is Version.V5 else Properties()
    )


async def test_no_more_messages_are_under_way_than_the_client_wants() -> None:
    async with serving() as served:
        client = await served.client(properties=Properties(receive_maximum=2))
        await client.subscribe("a", qos=1)
        await publish(served, "a", b"1", b"2", b"3", b"4")
        first, second = await client.expect(Publish), await client.expect(Publish)
        await client.silent()
        await client.send(Puback(second.packet_id))
        third = await client.expect(Publish)
        await client.silent()
        await client.send(Puback(first.packet_id), Puback(third.packet_id))
        assert (await client.message()).payload == b"4"
        await client.silent()


async def test_the_broker_has_a_limit_of_its_own_for_messages_under_way() -> None:
    async with serving(limits=Limits(send_maximum=1)) as served:
        client = await served.client("c", Version.V311)
        await client.subscribe("a", qos=1)
        await publish(served, "a", b"1", b"2")
        message = await client.expect(Publish)
        await client.silent()
        await client.send(Puback(message.packet_id))
        assert (await client.message()).payload == b"2"


async def test_a_message_that_is_larger_than_the_client_takes_is_left_out() -> None:
    async with serving() as served:
        client = await served.client(properties=Properties(maximum_packet_size=100))
        await client.subscribe("a", qos=1)
        await publish(served, "a", b"1", bytes(100), b"2")
        assert [(await client.message()).payload for _ in range(2)] == [b"1", b"2"]
        assert served.broker.statistics.publishes_dropped == 1


async def test_topics_that_come_again_come_as_aliases() -> None:
    async with serving() as served:
        client = await served.client(properties=Properties(topic_alias_maximum=1))
        await client.subscribe("#")
        for topic in ("a", "a", "a", "b", "b", "a"):
            await publish(served, topic, b"x")
        found = [await client.message() for _ in range(6)]
        assert [(message.topic, message.properties.topic_alias) for message in found] == [
            ("a", None),
            ("a", 1),
            ("", 1),
            ("b", None),
            ("b", None),
            ("", 1),
        ]


async def test_a_message_comes_with_the_time_that_it_has_left() -> None:
    # The store has a clock of its own.
    clock = ManualClock(SystemClock().now_us())
    async with serving(clock=clock) as served:
        client = await served.client("c", properties=KEPT)
        await client.subscribe("a", qos=1)
        await client.leave()
        publisher = await served.client("p")
        for expiry_s in (10, 100):
            await publisher.publish("a", b"%d" % expiry_s, 1, properties=Properties(message_expiry_interval=expiry_s))
        clock.advance(seconds=30)
        client = await again(served)
        message = await client.message()
        assert (message.payload, message.properties.message_expiry_interval) == (b"100", 70)
        await client.silent()


@pytest.mark.parametrize("version", BOTH)
async def test_what_was_not_acknowledged_comes_again_in_order(version: Version) -> None:
    async with serving() as served:
        client = await again(served, version)
        await client.subscribe("a", qos=1)
        await publish(served, "a", b"1", b"2", b"3")
        under_way = [await client.expect(Publish) for _ in range(3)]
        await client.send(Puback(under_way[1].packet_id))
        await client.silent()
        await client.stream.aclose()
        await publish(served, "a", b"4")
        client = await again(served, version)
        found = [await client.message() for _ in range(3)]
        assert [(message.payload, message.dup) for message in found] == [(b"1", True), (b"3", True), (b"4", False)]
        assert [message.packet_id for message in found[:2]] == [under_way[0].packet_id, under_way[2].packet_id]
        await client.silent()


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("lost", ["PUBREC", "PUBREL", "PUBCOMP"])
async def test_a_message_of_qos_2_arrives_once_whatever_is_lost(version: Version, lost: str) -> None:
    async with serving() as served:
        client = await again(served, version)
        await client.subscribe("a", qos=2)
        await publish(served, "a", b"x", qos=2)
        message = await client.expect(Publish)
        if lost != "PUBREC":
            await client.send(Pubrec(message.packet_id))
            await client.expect(Pubrel)
        if lost == "PUBCOMP":
            await client.send(Pubcomp(message.packet_id))
            await client.silent()
        await client.stream.aclose()
        client = await again(served, version)
        if lost == "PUBREC":
            repeated = await client.expect(Publish)
            assert (repeated.payload, repeated.dup, repeated.packet_id) == (b"x", True, message.packet_id)
            await client.send(Pubrec(message.packet_id))
        if lost != "PUBCOMP":
            assert (await client.expect(Pubrel)).packet_id == message.packet_id
            await client.send(Pubcomp(message.packet_id))
        await client.silent()
        await client.stream.aclose()
        await (await again(served, version)).silent()


async def test_a_message_that_the_client_refuses_is_not_sent_again() -> None:
    async with serving() as served:
        client = await served.client("c", properties=KEPT)
        await client.subscribe("a", qos=2)
        await publish(served, "a", b"1", b"2", qos=2)
        for expected in (b"1", b"2"):
            message = await client.expect(Publish)
            assert message.payload == expected
            await client.send(Pubrec(message.packet_id, ReasonCode.QUOTA_EXCEEDED))
        await client.silent()
        await client.leave()
        await (await again(served)).silent()


async def test_many_messages_wait_for_a_client_that_was_away() -> None:
    async with serving() as served:
        client = await served.client("c", properties=KEPT)
        await client.subscribe("a/#", qos=1)
        await client.leave()
        publisher = await served.client("p")
        for start in range(0, 3000, 500):
            await publisher.send(
                *(Publish(f"a/{n % 5}", b"%d" % n, 1, packet_id=n % 500 + 1) for n in range(start, start + 500))
            )
            for _ in range(500):
                await publisher.expect(Puback)
        client = await again(served)
        found: dict[str, list[int]] = {}
        with trio.fail_after(PATIENCE_S):
            for _ in range(3000):
                message = await client.message()
                found.setdefault(message.topic, []).append(int(message.payload))
        assert found == {f"a/{topic}": list(range(topic, 3000, 5)) for topic in range(5)}
        await client.silent()


async def test_a_retained_message_that_was_not_acknowledged_comes_again() -> None:
    async with serving() as served:
        await publish(served, "a", b"x", retain=True)
        client = await served.client("c", properties=KEPT)
        await client.subscribe("a", qos=1)
        assert (await client.expect(Publish)).retain
        await client.stream.aclose()
        client = await again(served)
        message = await client.message()
        assert (message.payload, message.retain, message.dup) == (b"x", True, True)
        await client.silent()
