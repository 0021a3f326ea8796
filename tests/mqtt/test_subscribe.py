"""SUBSCRIBE and UNSUBSCRIBE: what is granted, with which options, and which retained messages come."""

from __future__ import annotations

import itertools

import pytest
import trio

from broker_adapter import open_adapter
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import (
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from tests.mqtt.serving import Client, serving
from tests.mqtt.session.faults import Path
from tests.mqtt.test_connect import Doorkeeper
from tests.patience import PATIENCE_S

BOTH = [Version.V311, Version.V5]


@pytest.mark.parametrize(
    ("topic_filter", "reason_code"),
    [
        ("a", ReasonCode.GRANTED_QOS_1),
        ("#", ReasonCode.GRANTED_QOS_1),
        ("$SYS/#", ReasonCode.GRANTED_QOS_1),
        ("$share/g/a", ReasonCode.GRANTED_QOS_1),
        ("$replay/earliest/a", ReasonCode.GRANTED_QOS_1),
        ("secret/a", ReasonCode.NOT_AUTHORIZED),
        ("$share/g/secret/a", ReasonCode.NOT_AUTHORIZED),
        ("$replay/earliest/secret/a", ReasonCode.NOT_AUTHORIZED),
        ("$mqtt/#", ReasonCode.NOT_AUTHORIZED),
        ("$replay/now/a", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$replay/5/a/#", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
        ("$replay/earliest/$SYS/#", ReasonCode.TOPIC_FILTER_INVALID),
        ("x" * 1025, ReasonCode.TOPIC_FILTER_INVALID),
    ],
)
async def test_a_filter_is_granted_or_refused_by_itself(topic_filter: str, reason_code: ReasonCode) -> None:
    async with serving(access=Doorkeeper()) as served:
        client = await served.client("c", password=b"sesame")
        assert await client.subscribe("ok", topic_filter, qos=1) == (ReasonCode.GRANTED_QOS_1, reason_code)
        old = await served.client("o", Version.V311, username="u", password=b"sesame")
        codes = await old.subscribe("ok", topic_filter, qos=1)
        assert (codes[1] >= 0x80) == (reason_code >= 0x80)


async def test_there_is_a_limit_on_subscriptions() -> None:
    async with serving(limits=Limits(max_subscriptions=2)) as served:
        client = await served.client()
        codes = await client.subscribe("a", "b", "c", "a")
        assert codes == (0, 0, ReasonCode.QUOTA_EXCEEDED, 0)
        await client.unsubscribe("a")
        assert await client.subscribe("c") == (0,)


async def test_unsubscribing_says_what_there_was() -> None:
    async with serving() as served:
        client = await served.client()
        await client.subscribe("a", "$share/g/b", "$replay/earliest/c")
        codes = await client.unsubscribe("a", "b", "$share/g/b", "$replay/earliest/c", "a")
        none = ReasonCode.NO_SUBSCRIPTION_EXISTED
        assert codes == (ReasonCode.SUCCESS, none, ReasonCode.SUCCESS, ReasonCode.SUCCESS, none)
        for topic in ("a", "b", "c"):
            await client.publish(topic, b"x", 1)
        await client.silent()


async def test_no_local_keeps_a_client_from_hearing_itself() -> None:
    async with serving() as served:
        client, other = await served.client("c"), await served.client("o")
        await client.subscribe("a", no_local=True)
        await client.publish("a", b"own", 1)
        await other.publish("a", b"other", 1)
        assert (await client.message()).payload == b"other"


async def test_a_client_of_mqtt_3_receives_its_own_messages() -> None:
    async with serving() as served:
        client = await served.client("c", Version.V311)
        await client.subscribe("a")
        await client.publish("a", b"own", 1)
        assert (await client.message()).payload == b"own"


@pytest.mark.parametrize("as_published", [False, True])
async def test_the_retain_flag_of_a_live_message(as_published: bool) -> None:
    async with serving() as served:
        client, publisher = await served.client("c"), await served.client("p")
        await client.subscribe("a", retain_as_published=as_published)
        await publisher.publish("a", b"x", 1, retain=True)
        await publisher.publish("a", b"y", 1)
        assert [(await client.message()).retain for _ in range(2)] == [as_published, False]


async def test_subscription_identifiers_come_with_the_messages() -> None:
    async with serving() as served:
        client, publisher = await served.client("c"), await served.client("p")
        await client.subscribe("a/#", qos=1, properties=Properties(subscription_identifiers=(7,)))
        await client.subscribe("a/b", qos=2, properties=Properties(subscription_identifiers=(200,)))
        await client.subscribe("+/b")
        await publisher.publish("a/b", b"x", 2)
        message = await client.message()
        assert sorted(message.properties.subscription_identifiers) == [7, 200]
        assert message.qos == 2
        await client.silent()
        await client.subscribe("a/#", properties=Properties(subscription_identifiers=(8,)), retain_handling=2)
        await publisher.publish("a/c", b"x", 2)
        assert (await client.message()).properties.subscription_identifiers == (8,)


@pytest.mark.parametrize("version", BOTH)
async def test_retained_messages_come_with_the_subscription(version: Version) -> None:
    async with serving() as served:
        publisher = await served.client("p", version)
        for topic, payload in (("a/b", b"old"), ("a/b", b"new"), ("a/c", b"x"), ("a/d", b"x"), ("b", b"x")):
            await publisher.publish(topic, payload, 1, retain=True)
        await publisher.publish("a/d", b"", 1, retain=True)
        client = await served.client("c", version)
        await client.subscribe("a/#", qos=2)
        found = {
            (message.topic, message.payload, message.qos, message.retain)
            for message in [await client.message() for _ in range(2)]
        }
        assert found == {("a/b", b"new", 1, True), ("a/c", b"x", 1, True)}
        await client.silent()


async def test_retain_handling() -> None:
    async with serving() as served:
        await (await served.client("p")).publish("a", b"x", 1, retain=True)
        client = await served.client("c")
        await client.subscribe("a", retain_handling=2)
        await client.silent()
        await client.subscribe("a", retain_handling=1)
        await client.silent()
        await client.subscribe("a", retain_handling=0)
        assert (await client.message()).retain
        await client.subscribe("a", retain_handling=0)
        assert (await client.message()).retain
        await client.unsubscribe("a")
        await client.subscribe("a", retain_handling=1)
        assert (await client.message()).retain


async def test_a_retained_message_does_not_come_to_a_shared_subscription() -> None:
    async with serving() as served:
        await (await served.client("p")).publish("a", b"x", 1, retain=True)
        client = await served.client("c")
        await client.subscribe("$share/g/a")
        await client.silent()


async def test_an_empty_retained_message_comes_to_those_who_are_subscribed() -> None:
    async with serving() as served:
        client, publisher = await served.client("c"), await served.client("p")
        await client.subscribe("a")
        await publisher.publish("a", b"x", 1, retain=True)
        await publisher.publish("a", b"", 1, retain=True)
        assert [(await client.message()).payload for _ in range(2)] == [b"x", b""]


async def test_shared_subscriptions_divide_messages() -> None:
    async with serving() as served:
        members = [await served.client(f"m{number}") for number in range(2)]
        for member in members:
            await member.subscribe("$share/g/jobs/#", qos=1)
        publisher = await served.client("p")
        wanted = {b"%d" % number for number in range(20)}
        for number in range(20):
            await publisher.publish(f"jobs/{number}", b"%d" % number, 1)
        found: list[bytes] = []

        async def take(member: object) -> None:
            while len(found) < 20:
                found.append((await member.message()).payload)  # type: ignore[attr-defined]
                if len(found) == 20:
                    nursery.cancel_scope.cancel()

        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for member in members:
                    nursery.start_soon(take, member)
        assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("how", ["property", "prefix"])
async def test_a_replay_begins_with_what_is_stored_and_continues(how: str) -> None:
    async with serving() as served:
        publisher = await served.client("p")
        for number in range(5):
            await publisher.publish("a", b"%d" % number, 1)
        if how == "property":
            client = await served.client("c")
            replay = Properties(user_properties=(("replay-from", "2"),))
            assert await client.subscribe("a", qos=1, properties=replay) == (1,)
        else:
            client = await served.client("c", Version.V311)
            assert await client.subscribe("$replay/2/a", qos=1) == (1,)
        await publisher.publish("a", b"5", 1)
        assert [(await client.message()).payload for _ in range(4)] == [b"2", b"3", b"4", b"5"]


async def test_statistics_can_be_subscribed_to_and_come_at_once() -> None:
    async with serving(system_interval_s=1000) as served:
        client = await served.client("c")
        await client.subscribe("#")
        await client.silent()
        await client.subscribe("$SYS/broker/version")
        message = await client.message()
        assert (message.topic, message.retain) == ("$SYS/broker/version", True)
        assert await served.adapter.list_shards("$SYS/#") == []


@pytest.mark.parametrize("version", BOTH)
async def test_subscriptions_live_as_long_as_the_session(version: Version) -> None:
    kept = Properties(session_expiry_interval=100) if version is Version.V5 else Properties()
    async with serving() as served:
        publisher = await served.client("p")
        client = await served.client("c", version, clean_start=False, properties=kept)
        await client.subscribe("a", qos=1)
        await publisher.publish("a", b"1", 1)
        assert (await client.message()).payload == b"1"
        await client.leave()
        await publisher.publish("a", b"2", 1)
        client = await served.client("c", version, clean_start=False, properties=kept)
        assert (await client.message()).payload == b"2"
        await publisher.publish("a", b"3", 1)
        assert (await client.message()).payload == b"3"
        await client.leave()
        client = await served.client("c", version, clean_start=True)
        await publisher.publish("a", b"4", 1)
        await client.silent()


async def test_requests_are_answered_in_order() -> None:
    async with serving() as served:
        client = await served.client()
        await client.send(*(Subscribe(number, (SubscriptionRequest(f"t/{number}"),)) for number in range(1, 101)))
        assert [(await client.expect(Suback)).packet_id for _ in range(100)] == list(range(1, 101))
        await client.send(Publish("t/100", b"x"))
        assert (await client.message()).topic == "t/100"


def _kept() -> Properties:
    return Properties(session_expiry_interval=100)


async def _subscribe_at_once(client: Client, *filters: str) -> list[Suback]:
    """A SUBSCRIBE for each filter, all in one write; the answers."""
    packets = [Subscribe(number, (SubscriptionRequest(text, 1),)) for number, text in enumerate(filters, 1)]
    await client.send(*packets)
    return [await client.expect(Suback) for _ in packets]


@pytest.mark.parametrize("is_one_packet", [True, False], ids=["one SUBSCRIBE", "many SUBSCRIBEs"])
async def test_many_filters_take_few_calls_of_the_store(is_one_packet: bool) -> None:
    """Each took two: 100,000 subscriptions of 100 clients took 87 s."""
    filters = [f"line{number}/+" for number in range(30)]
    calls = itertools.count()
    async with (
        open_adapter("memory:") as store,
        serving(Path(store, delay_s=lambda: next(calls) * 0.0)) as served,
    ):
        publisher = await served.client("p")
        client = await served.client("c", clean_start=False, properties=_kept())
        before = next(calls)
        if is_one_packet:
            assert await client.subscribe(*filters, qos=1) == (1,) * len(filters)
        else:
            answers = await _subscribe_at_once(client, *filters)
            assert [(answer.packet_id, answer.reason_codes) for answer in answers] == [
                (number, (1,)) for number in range(1, len(filters) + 1)
            ]
        assert next(calls) - before < len(filters)
        for number in range(len(filters)):
            await publisher.publish(f"line{number}/x", b"%d" % number, 1)
        assert [(await client.message()).payload for _ in filters] == [b"%d" % number for number in range(len(filters))]


async def test_the_limit_counts_subscriptions_that_are_made_at_the_same_time() -> None:
    async with serving(limits=Limits(max_subscriptions=3)) as served:
        client = await served.client()
        answers = await _subscribe_at_once(client, "a", "b", "a", "c", "d", "b")
        over = (ReasonCode.QUOTA_EXCEEDED,)
        assert [answer.reason_codes for answer in answers] == [(1,), (1,), (1,), (1,), over, (1,)]


async def test_two_subscribes_with_one_filter_bring_its_retained_messages() -> None:
    async with serving() as served:
        await (await served.client("p")).publish("a", b"x", 1, retain=True)
        client = await served.client("c")
        await client.send(*(Subscribe(number, (SubscriptionRequest("a", 1),)) for number in (1, 2)))
        assert [(await client.expect(Suback)).packet_id for _ in range(2)] == [1, 2]
        assert (await client.message()).retain


async def test_subscribes_and_unsubscribes_are_answered_in_their_order() -> None:
    async with serving() as served:
        client = await served.client("c")
        request = (SubscriptionRequest("a", 1),)
        await client.send(Subscribe(1, request), Unsubscribe(2, ("a",)), Unsubscribe(3, ("a",)), Subscribe(4, request))
        answers = [await client.receive() for _ in range(4)]
        assert answers == [
            Suback(1, (ReasonCode.GRANTED_QOS_1,)),
            Unsuback(2, (ReasonCode.SUCCESS,)),
            Unsuback(3, (ReasonCode.NO_SUBSCRIPTION_EXISTED,)),
            Suback(4, (ReasonCode.GRANTED_QOS_1,)),
        ]


async def test_filters_of_each_kind_are_made_beside_each_other() -> None:
    async with serving() as served:
        publisher, client = await served.client("p"), await served.client("c")
        await publisher.publish("old", b"0", 1)
        filters = ("a", "$share/g/b", "$replay/earliest/old", "c", "a")
        assert await client.subscribe(*filters, qos=1) == (1,) * 5
        for topic in ("a", "b", "c"):
            await publisher.publish(topic, topic.encode(), 1)
        assert {(await client.message()).payload for _ in range(4)} == {b"0", b"a", b"b", b"c"}
        await client.silent()


async def test_a_store_that_is_away_delays_all_subscriptions_and_loses_none() -> None:
    async with open_adapter("memory:") as store:
        path = Path(store)
        async with serving(path) as served:
            publisher, client = (
                await served.client("p"),
                await served.client("c", clean_start=False, properties=_kept()),
            )
            path.freeze()
            path.fail(lambda *_: True, carried_out=False)
            packets = [Subscribe(number, (SubscriptionRequest(f"t{number}", 1),)) for number in range(1, 6)]
            await client.send(*packets)
            await client.silent()
            path.thaw()
            assert [(await client.expect(Suback)).packet_id for _ in packets] == [1, 2, 3, 4, 5]
            for number in range(1, 6):
                await publisher.publish(f"t{number}", b"", 1)
            assert [(await client.message()).topic for _ in packets] == [f"t{number}" for number in range(1, 6)]
