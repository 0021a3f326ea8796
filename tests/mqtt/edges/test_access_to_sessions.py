"""Access rules and sessions that outlive their connection: what a client may not have does not come back with it."""

from __future__ import annotations

import pytest

from broker_adapter.mqtt.access import AccessControl
from broker_adapter.mqtt.codec import Properties, ReasonCode
from journal.access.authentication import Authentication
from journal.access.rules import AccessRule, AccessRules
from journal.access.users import Cost, PasswordHash, Users
from tests.mqtt.serving import Client, Serving, serving

LASTING = Properties(session_expiry_interval=3600)
NAMES = ("anna", "bob", "plant")


def access_control() -> AccessControl:
    users = Users({name: PasswordHash.of(name.encode(), Cost(2, 1, 1)) for name in NAMES})
    rules = [AccessRule(True, ("%u/#", "open/#")), AccessRule(True, ("#",), user="plant")]
    return AccessControl(Authentication(users), AccessRules(rules, default=False), anonymous=False)


async def connect(served: Serving, client_id: str, user: str) -> Client:
    client = served.dial()
    answer = await client.connect(
        client_id, clean_start=False, properties=LASTING, username=user, password=user.encode()
    )
    assert answer.reason_code == ReasonCode.SUCCESS
    return client


@pytest.mark.parametrize("prefix", ["", "$share/group/"])
async def test_another_user_does_not_get_what_a_session_was_subscribed_to(prefix: str) -> None:
    async with serving(access=access_control()) as served:
        anna = await connect(served, "shared-id", "anna")
        assert await anna.subscribe(f"{prefix}anna/#", "open/#", qos=1) == (1, 1)
        await anna.leave()

        bob = await connect(served, "shared-id", "bob")
        await bob.silent()
        plant = await connect(served, "plant", "plant")
        assert await plant.publish("anna/secret", b"for anna", qos=1) in (
            ReasonCode.SUCCESS,
            ReasonCode.NO_MATCHING_SUBSCRIBERS,
        )
        assert await plant.publish("open/x", b"for all", qos=1) == ReasonCode.SUCCESS
        message = await bob.message()
        assert (message.topic, message.payload) == ("open/x", b"for all")
        await bob.silent()
        await bob.leave()
        await plant.leave()


async def test_a_subscription_that_the_rules_allow_no_more_is_gone_when_the_client_comes_back() -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna = await connect(served, "a", "anna")
        await anna.subscribe("open/#", "anna/#", qos=1)
        await anna.leave()
        access.rules = AccessRules([AccessRule(False, ("open/#",), user="anna")])

        anna = await connect(served, "a", "anna")
        plant = await connect(served, "plant", "plant")
        await plant.publish("open/x", b"not for anna", qos=1)
        await plant.publish("anna/x", b"for anna", qos=1)
        assert (await anna.message()).topic == "anna/x"
        await anna.silent()
        assert await anna.unsubscribe("open/#") == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
        await anna.leave()
        await plant.leave()
