"""Access rules and sessions that outlive their connection: what a client may not have does not come back with it."""

from __future__ import annotations

import pytest
import trio

from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt_codec import Properties, ReasonCode
from broker_adapter.mqtt_codec.packets import Disconnect, Pubcomp, Publish, Pubrel
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRule, AccessRules
from journal.access.users import Cost, PasswordHash, Users
from tests.mqtt.serving import Client, Serving, serving

LASTING = Properties(session_expiry_interval=3600)
NAMES = ("anna", "bob", "plant")


def access_control() -> AccessControl:
    users = Users({name: PasswordHash.of(name.encode(), Cost(2, 1, 1)) for name in NAMES})
    rules = [AccessRule(True, ("%u/#", "open/#")), AccessRule(True, ("#",), user="plant")]
    return AccessControl(Logins(Credentials(users=users)), AccessRules(rules, default=False), anonymous=False)


ONLY_OPEN = AccessRules([AccessRule(True, ("open/#",)), AccessRule(True, ("#",), user="plant")], default=False)


async def connect(served: Serving, client_id: str, user: str) -> Client:
    client = served.dial()
    answer = await client.connect(
        client_id, clean_start=False, properties=LASTING, username=user, password=user.encode()
    )
    assert answer.reason_code == ReasonCode.SUCCESS
    return client


async def test_changed_rules_hold_for_the_next_publish_to_a_topic_that_was_published_to_before() -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna = await connect(served, "c", "anna")
        topics, before = ("anna/x", "open/x", "bob/x"), access.rules
        refused = ReasonCode.NOT_AUTHORIZED

        async def refusals() -> list[bool]:
            return [await anna.publish(topic, b"x", qos=1) == refused for topic in topics]

        assert await refusals() == [False, False, True]
        access.rules = AccessRules([AccessRule(True, ("open/#", "bob/#"))], default=False)
        assert await refusals() == [True, False, False]
        access.rules = before
        assert await refusals() == [False, False, True]
        await anna.leave()


async def next_publish(client: Client) -> Publish:
    """The next message; what is released before it, as it is not to be sent again, is let go."""
    while not isinstance(packet := await client.receive(), Publish):
        assert isinstance(packet, Pubrel), packet
        await client.send(Pubcomp(packet.packet_id))
    return packet


@pytest.mark.parametrize("prefix", ["", "$share/group/"])
async def test_a_session_does_not_get_what_its_user_may_have_no_more(prefix: str) -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna = await connect(served, "a", "anna")
        assert await anna.subscribe(f"{prefix}anna/#", "open/#", qos=1) == (1, 1)
        await anna.leave()

        access.rules = ONLY_OPEN
        anna = await connect(served, "a", "anna")
        await anna.silent()
        plant = await connect(served, "plant", "plant")
        assert await plant.publish("anna/secret", b"for anna", qos=1) in (
            ReasonCode.SUCCESS,
            ReasonCode.NO_MATCHING_SUBSCRIBERS,
        )
        assert await plant.publish("open/x", b"for all", qos=1) == ReasonCode.SUCCESS
        message = await anna.message()
        assert (message.topic, message.payload) == ("open/x", b"for all")
        await anna.silent()
        await anna.leave()
        await plant.leave()


@pytest.mark.parametrize("qos", [1, 2])
async def test_what_was_on_its_way_before_the_rules_changed_is_not_sent_again(qos: int) -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna = await connect(served, "a", "anna")
        await anna.subscribe("anna/#", "open/#", qos=qos)
        plant = await connect(served, "plant", "plant")
        for topic in ("anna/secret", "open/x"):
            await plant.publish(topic, topic.encode(), qos=2)
            assert (await anna.expect(Publish)).topic == topic
        await trio.aclose_forcefully(anna.stream)

        # This connection breaks off, too, before it has answered anything: the next one must not get more.
        access.rules = ONLY_OPEN
        anna = await connect(served, "a", "anna")
        assert (await next_publish(anna)).topic == "open/x"
        await trio.aclose_forcefully(anna.stream)

        anna = await connect(served, "a", "anna")
        message = await next_publish(anna)
        assert (message.topic, message.dup) == ("open/x", True)
        await anna.send(Disconnect(ReasonCode.NORMAL_DISCONNECTION))
        with pytest.raises(EOFError):
            # A release waits until it is stored, so it may come behind the message.
            while True:
                await anna.expect(Pubrel)
        await plant.leave()


async def test_what_was_on_its_way_is_dropped_when_the_rules_allow_it_no_more() -> None:
    access = access_control()
    async with serving(access=access) as served:
        anna = await connect(served, "a", "anna")
        await anna.subscribe("open/#", qos=1)
        plant = await connect(served, "plant", "plant")
        await plant.publish("open/x", b"not for anna", qos=1)
        await anna.expect(Publish)
        await trio.aclose_forcefully(anna.stream)
        access.rules = AccessRules([AccessRule(False, ("open/#",), user="anna")])
        anna = await connect(served, "a", "anna")
        await anna.silent()
        await anna.leave()
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
