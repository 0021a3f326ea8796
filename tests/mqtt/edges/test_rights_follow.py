"""Rights follow the users and rules at once: also those of clients that are connected, and of wills that they left."""

from __future__ import annotations

import pytest
import trio
from msgspec.structs import replace

from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt.session import SessionSettings
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Puback, Pubcomp, Publish, Pubrec, Pubrel, Will
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRule, AccessRules
from journal.access.users import Cost, PasswordHash, Users
from tests.mqtt.serving import Client, Serving, serving

LASTING = Properties(session_expiry_interval=3600)
HASHES = {name: PasswordHash.of(name.encode(), Cost(2, 1, 1)) for name in ("anna", "bob")}
EVERYTHING = AccessRules([AccessRule(True, ("#",))], default=False)
NOT_SECRET = AccessRules([AccessRule(False, ("secret/#",), user="anna"), AccessRule(True, ("#",))], default=False)


def access_control() -> AccessControl:
    return AccessControl(Logins(Credentials(users=Users(HASHES))), EVERYTHING, anonymous=True)


async def connect(
    served: Serving,
    user: str,
    version: Version = Version.V5,
    will: Will | None = None,
    receive_maximum: int | None = None,
) -> Client:
    client = served.dial(version)
    answer = await client.connect(
        user,
        clean_start=False,
        will=will,
        properties=replace(LASTING, receive_maximum=receive_maximum) if version is Version.V5 else Properties(),
        username=user,
        password=user.encode(),
    )
    assert answer.reason_code == ReasonCode.SUCCESS
    return client


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
@pytest.mark.parametrize(
    "users",
    [
        Users({"bob": HASHES["bob"]}),
        Users({**HASHES, "anna": PasswordHash.of(b"other", Cost(2, 1, 1))}),
    ],
    ids=["removed", "other password"],
)
async def test_a_user_who_is_removed_or_gets_another_password_is_disconnected(users: Users, version: Version) -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna, bob = await connect(served, "anna", version), await connect(served, "bob", version)
        access.logins.credentials = Credentials(users=users)
        await served.broker.follow_rights()
        await anna.refused(ReasonCode.NOT_AUTHORIZED)
        assert served.broker.statistics.ended["revoked"] == 1
        await bob.silent()
        await bob.leave()


@pytest.mark.parametrize("topic_filter", ["secret/x", "$share/group/secret/x", "$replay/earliest/secret/x"])
async def test_a_subscription_ends_when_the_rules_allow_it_no_more(topic_filter: str) -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna, bob = await connect(served, "anna"), await connect(served, "bob")
        assert await anna.subscribe(topic_filter, "open", qos=1) == (1, 1)
        access.rules = NOT_SECRET
        await served.broker.follow_rights()
        assert await anna.unsubscribe(topic_filter) == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
        for topic in ("secret/x", "open"):
            await bob.publish(topic, topic.encode(), qos=1)
        assert (await anna.message()).topic == "open"
        await anna.silent()
        await anna.leave()
        await bob.leave()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_waits_to_be_sent_is_dropped_when_the_rules_allow_it_no_more(qos: int) -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna, bob = await connect(served, "anna", receive_maximum=1), await connect(served, "bob")
        await anna.subscribe("secret/x", "open", qos=qos)
        for topic in ("open", "secret/x", "open"):
            await bob.publish(topic, topic.encode(), qos=qos)
        first = await anna.expect(Publish)
        access.rules = NOT_SECRET
        await served.broker.follow_rights()
        await anna.silent()
        if qos == 1:
            await anna.send(Puback(first.packet_id))
        else:
            await anna.send(Pubrec(first.packet_id))
            await anna.expect(Pubrel)
            await anna.send(Pubcomp(first.packet_id))
        assert [first.topic, (await anna.message()).topic] == ["open", "open"]
        assert served.broker.statistics.dropped["not_allowed"] == 1
        await anna.leave()
        await bob.leave()


@pytest.mark.parametrize("delay_s", [0, 1])
@pytest.mark.parametrize(
    ("users", "rules"),
    [(Users({"bob": HASHES["bob"]}), EVERYTHING), (Users(HASHES), NOT_SECRET)],
    ids=["removed", "other rules"],
)
async def test_a_will_is_not_published_to_what_its_user_has_lost(
    users: Users, rules: AccessRules, delay_s: int
) -> None:
    access = access_control()
    settings = SessionSettings(timer_interval_s=0.05)
    async with serving(access=access, session_settings=settings) as served:
        bob = await connect(served, "bob")
        await bob.subscribe("secret/#", "wills/#", qos=1)
        wills = Properties(will_delay_interval=delay_s)
        anna = await connect(served, "anna", will=Will("secret/will", b"gone", 1, properties=wills))
        other = served.dial()
        await other.connect("other", will=Will("wills/other", b"gone", 1, properties=wills), properties=LASTING)
        if delay_s:
            await trio.aclose_forcefully(anna.stream)
            await trio.aclose_forcefully(other.stream)
        access.logins.credentials, access.rules = Credentials(users=users), rules
        await served.broker.follow_rights()
        if not delay_s:
            await trio.aclose_forcefully(anna.stream)
            await trio.aclose_forcefully(other.stream)
        assert (await bob.message()).topic == "wills/other"
        await bob.silent()
        await bob.leave()
