"""A subscription that reaches denied topics without lying in them: it is accepted, and what is denied is left out."""

from __future__ import annotations

import pytest

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt_codec import Properties, ReasonCode
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRule, AccessRules
from tests.mqtt.serving import Client, serving

LASTING = Properties(session_expiry_interval=3600)
DENIED = AccessRule(False, ("secret/#",), client_id="reader")


def access_control(*rules: AccessRule, default: bool = True) -> AccessControl:
    return AccessControl(Logins(Credentials()), AccessRules(rules, default=default), anonymous=True)


async def publish_all(publisher: Client, *, retain: bool = False, qos: int = 1) -> None:
    for topic in ("secret/a", "open/a", "secret", "open/b"):
        await publisher.publish(topic, topic.encode(), qos=qos, retain=retain)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic_filter", ["#", "+/a"])
async def test_live_messages_of_denied_topics_are_left_out(topic_filter: str, qos: int) -> None:
    async with serving(access=access_control(DENIED)) as served:
        reader, publisher = await served.client("reader"), await served.client("publisher")
        assert await reader.subscribe(topic_filter, qos=qos) == (qos,)
        await publish_all(publisher, qos=qos)
        assert (await reader.message()).topic == "open/a"
        if topic_filter == "#":
            assert (await reader.message()).topic == "open/b"
        await reader.silent()
        assert served.broker.statistics.dropped["not_allowed"] == (2 if topic_filter == "#" else 1)


async def test_retained_and_replayed_messages_of_denied_topics_are_left_out() -> None:
    async with serving(access=access_control(DENIED)) as served:
        reader, publisher = await served.client("reader"), await served.client("publisher")
        await publish_all(publisher, retain=True)
        await reader.subscribe("#", qos=1)
        assert sorted([(await reader.message()).topic, (await reader.message()).topic]) == ["open/a", "open/b"]
        await reader.silent()
        await reader.unsubscribe("#")
        await reader.subscribe("$replay/earliest/#", qos=1)
        assert sorted([(await reader.message()).topic, (await reader.message()).topic]) == ["open/a", "open/b"]
        await reader.silent()


async def test_what_a_client_missed_of_denied_topics_is_left_out() -> None:
    async with serving(access=access_control(DENIED)) as served:
        options = {"clean_start": False, "properties": LASTING}
        reader, publisher = await served.client("reader", **options), await served.client("publisher")
        await reader.subscribe("#", qos=1)
        await reader.leave()
        await publish_all(publisher)
        reader = await served.client("reader", **options)
        assert sorted([(await reader.message()).topic, (await reader.message()).topic]) == ["open/a", "open/b"]
        await reader.silent()
        # The denied ones count as delivered: they do not come when the rules change.
        await reader.leave()
        reader = await served.client("reader", **options)
        await reader.silent()


async def test_a_shared_subscription_must_be_allowed_as_a_whole() -> None:
    async with serving(access=access_control(DENIED)) as served:
        reader = await served.client("reader")
        assert await reader.subscribe("$share/group/#", "$share/group/open/#", qos=1) == (ReasonCode.NOT_AUTHORIZED, 1)


async def test_a_subscription_is_narrowed_and_widened_with_the_rules() -> None:
    access = access_control()
    async with serving(access=access) as served:
        reader, publisher = await served.client("reader"), await served.client("publisher")
        await reader.subscribe("#", qos=1)
        for rules, expected in (
            (AccessRules([DENIED]), ["open/a", "open/b"]),
            (AccessRules(), ["secret/a", "open/a", "secret", "open/b"]),
        ):
            access.rules = rules
            await served.broker.follow_rights()
            await publish_all(publisher)
            assert sorted([(await reader.message()).topic for _ in expected]) == sorted(expected)
            await reader.silent()


@pytest.mark.parametrize(
    ("rules", "default", "topic_filter", "whole", "except_denied"),
    [
        ([AccessRule(False, ("secret/#",))], True, "#", False, True),
        ([AccessRule(False, ("secret/#",))], True, "secret/+", False, False),
        ([AccessRule(False, ("secret/#",))], True, "secret/x", False, False),
        ([AccessRule(False, ("secret/#",))], True, "open/#", True, True),
        ([AccessRule(False, ("+/x",))], True, "a/#", False, True),
        ([AccessRule(False, ("a/x",)), AccessRule(True, ("a/+",))], False, "a/+", False, True),
        ([AccessRule(True, ("a/+",))], False, "#", False, False),
        (
            [AccessRule(True, ("a/x",)), AccessRule(False, ("a/#",)), AccessRule(True, ("#",))],
            False,
            "a/+",
            False,
            False,
        ),
        ([AccessRule(True, ("a/x",)), AccessRule(False, ("a/#",)), AccessRule(True, ("#",))], False, "#", False, True),
        ([AccessRule(False, ("#",))], True, "a", False, False),
    ],
)
def test_a_filter_must_lie_in_what_is_allowed_and_not_in_what_is_denied(
    rules: list[AccessRule], default: bool, topic_filter: str, whole: bool, except_denied: bool
) -> None:
    access, client = access_control(*rules, default=default), Principal("c")
    assert access.may_subscribe(client, topic_filter) is whole
    assert access.may_subscribe_except(client, topic_filter) is except_denied
