"""Quotas of users: connections are refused, rates slow down, delays have an end."""

from __future__ import annotations

import pytest
import trio

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.access.quotas import Quota, Quotas, TooManyConnectionsError
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt_codec import ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Connack, Puback, Publish
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S

ANNA, BOB = "anna", "bob"


async def ask(served: Serving, client_id: str, user: str, version: Version = Version.V5) -> tuple[Client, Connack]:
    client = served.dial(version)
    return client, await client.connect(client_id, username=user or None)


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
async def test_a_user_has_no_more_connections_than_its_quota(version: Version) -> None:
    refusal = ReasonCode.QUOTA_EXCEEDED if version is Version.V5 else ReasonCode.SERVER_UNAVAILABLE
    async with serving(quotas=Quotas([Quota(ANNA, connections=2)])) as served:
        clients = [(await ask(served, client_id, ANNA))[0] for client_id in ("1", "2")]
        refused, answer = await ask(served, "3", ANNA, version)
        assert answer.reason_code == refusal
        await refused.closed()
        assert served.broker.statistics.refused["quota"] == 1
        # Other users are not concerned, and a client that comes back takes no second place.
        assert (await ask(served, "4", BOB))[1].reason_code == ReasonCode.SUCCESS
        again, answer = await ask(served, "1", ANNA)
        assert answer.reason_code == ReasonCode.SUCCESS
        await clients[0].refused(ReasonCode.SESSION_TAKEN_OVER)
        await again.leave()
        assert (await ask(served, "3", ANNA))[1].reason_code == ReasonCode.SUCCESS


@pytest.mark.parametrize("quota", [Quota(publishes_per_s=10), Quota(bytes_per_s=300)], ids=["messages", "bytes"])
async def test_a_client_that_publishes_too_fast_is_slowed_down(quota: Quota) -> None:
    async with serving(quotas=Quotas([quota])) as served:
        client, other = await served.client("c"), await served.client("other")
        began_s = trio.current_time()
        for number in range(1, 41):
            await client.send(Publish("a", bytes(10), 1, packet_id=number))
        # It does not slow down others.
        await other.publish("a", b"x", qos=1)
        with trio.fail_after(PATIENCE_S):
            for number in range(1, 41):
                assert (await client.expect(Puback)).packet_id == number
        # All of it came at once, so the next packet waits until the excess is compensated.
        await client.publish("a", b"x", qos=1)
        assert trio.current_time() - began_s >= 1


def test_a_new_connection_does_not_begin_with_a_new_rate() -> None:
    now_s = 0.0
    quotas = Quotas([Quota(publishes_per_s=10)], lambda: now_s)
    client = Principal("c", ANNA)
    account = quotas.enter(client)
    assert account is not None
    assert account.received(30, 0, now_s) == pytest.approx(2.0)
    quotas.leave(account, client)
    account = quotas.enter(client)
    assert account is not None
    assert account.received(0, 0, now_s) == pytest.approx(2.0)
    now_s = 3.0
    assert account.received(1, 0, now_s) == 0


def test_each_anonymous_client_is_a_user_of_its_own() -> None:
    quotas = Quotas([Quota(connections=1), Quota(BOB, connections=2)], lambda: 0.0)
    quotas.enter(Principal("1"))
    quotas.enter(Principal("2"))
    quotas.enter(Principal("1", ANNA))
    with pytest.raises(TooManyConnectionsError, match="1 connections, the most"):
        quotas.enter(Principal("2", ANNA))
    quotas.enter(Principal("1", BOB))
    quotas.enter(Principal("2", BOB))


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
async def test_a_message_is_not_delayed_for_longer_than_the_limit(version: Version) -> None:
    async with serving(limits=Limits(max_delay_s=60)) as served:
        client = await served.client("c", version)
        refusal = ReasonCode.QUOTA_EXCEEDED if version is Version.V5 else ReasonCode.SUCCESS
        assert await client.publish("$delayed/61/a", b"x", qos=1) == refusal
        assert await client.publish("$delayed/60/a", b"x", qos=1) == ReasonCode.SUCCESS
        stored = [value.key async for value in served.adapter.scan_state(b"mqtt/delayed/")]
        assert len(stored) == 1
