"""Quotas for what users have in the store, at one broker and at several, and the reason codes of refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.mqtt.access import quotas
from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.access.quotas import ConnectsTooFastError, Limit, Quota, Quotas
from broker_adapter.mqtt.session import stored_use
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Connect, Disconnect, Publish, Will
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S

ANNA, BOB = "anna", "bob"
KEPT = Properties(session_expiry_interval=3600)
VERSIONS = pytest.mark.parametrize("version", [Version.V311, Version.V5])


@asynccontextmanager
async def limited(adapter: StorageAdapter | None = None, name: str = "one", **limits: int) -> AsyncIterator[Serving]:
    """A broker that limits anna."""
    async with serving(adapter, broker_id=name, quotas=Quotas([Quota(ANNA, **limits)])) as served:
        yield served


async def of(served: Serving, user: str, client_id: str = "", version: Version = Version.V5) -> Client:
    return await served.client(client_id or user, version, username=user)


def refusals(served: Serving) -> dict[Limit, int]:
    return {limit: count for limit, count in served.broker.quotas.refusals.counts.items() if count}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count more often."""
    monkeypatch.setattr(stored_use, "_SHORTEST_INTERVAL_S", 0.05)
    monkeypatch.setattr(stored_use, "_LARGEST_SHARE", 1)


async def test_a_broker_goes_on_counting_although_the_pause_is_longer_than_the_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended with an error after a count of half a second: the rest of the interval was negative."""
    monkeypatch.setattr(stored_use, "_INTERVAL_S", stored_use._SHORTEST_INTERVAL_S / 2)
    async with limited(retained=1) as served:
        counted = served.broker.sessions.stored_use
        with trio.fail_after(PATIENCE_S):
            for _ in range(3):
                before = counted._counted_at_s
                while counted._counted_at_s == before:
                    await trio.sleep(0.01)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_user_has_no_more_retained_messages_than_its_quota(qos: int) -> None:
    async with limited(retained=2) as served:
        anna, bob = await of(served, ANNA), await of(served, BOB)
        for topic in ("a", "b", "a", "b"):
            assert await anna.publish(topic, b"x", qos, retain=True) == ReasonCode.SUCCESS
        assert await anna.publish("c", b"x", qos, retain=True) == ReasonCode.QUOTA_EXCEEDED
        assert refusals(served) == {Limit.RETAINED: 1}
        # What is not retained, what replaces a message of its own, and what others publish is not concerned.
        assert await anna.publish("c", b"x", qos) == ReasonCode.SUCCESS
        assert await anna.publish("a", b"larger", qos, retain=True) == ReasonCode.SUCCESS
        for topic in ("c", "d", "e"):
            assert await bob.publish(topic, b"x", qos, retain=True) == ReasonCode.SUCCESS
        assert await anna.publish("a", b"", qos, retain=True) == ReasonCode.SUCCESS
        assert await anna.publish("d", b"mine now", qos, retain=True) == ReasonCode.SUCCESS
        assert await anna.publish("a", b"x", qos, retain=True) == ReasonCode.QUOTA_EXCEEDED


async def test_the_payloads_of_retained_messages_are_limited_together() -> None:
    async with limited(retained_bytes=100) as served:
        anna = await of(served, ANNA)
        assert await anna.publish("a", bytes(60), qos=1, retain=True) == ReasonCode.SUCCESS
        assert await anna.publish("b", bytes(41), qos=1, retain=True) == ReasonCode.QUOTA_EXCEEDED
        assert await anna.publish("a", bytes(101), qos=1, retain=True) == ReasonCode.QUOTA_EXCEEDED
        assert await anna.publish("a", bytes(100), qos=1, retain=True) == ReasonCode.SUCCESS
        assert await anna.publish("a", bytes(10), qos=1, retain=True) == ReasonCode.SUCCESS
        assert await anna.publish("b", bytes(90), qos=1, retain=True) == ReasonCode.SUCCESS
        assert refusals(served) == {Limit.RETAINED_BYTES: 2}


async def test_a_client_of_mqtt_3_is_disconnected_for_it_and_at_qos_0_the_message_is_dropped() -> None:
    async with limited(retained=1) as served:
        anna = await of(served, ANNA, version=Version.V311)
        await anna.publish("a", b"x", qos=1, retain=True)
        await anna.publish("b", b"x", retain=True)
        await anna.silent()
        await anna.send(Publish("b", b"x", 1, retain=True, packet_id=9))
        await anna.closed()
        assert refusals(served) == {Limit.RETAINED: 2}
        assert [value.key async for value in served.adapter.scan_state(b"mqtt/retained/")] == [b"mqtt/retained/a"]


async def test_delayed_messages_are_limited_until_they_are_due() -> None:
    async with limited(delayed=2) as served:
        anna = await of(served, ANNA)
        for seconds in (1, 3600):
            assert await anna.publish(f"$delayed/{seconds}/a", b"x", qos=1) == ReasonCode.SUCCESS
        assert await anna.publish("$delayed/3600/b", b"x", qos=1) == ReasonCode.QUOTA_EXCEEDED
        assert refusals(served) == {Limit.DELAYED: 1}
        with trio.fail_after(PATIENCE_S):
            while await anna.publish("$delayed/3600/b", b"x", qos=1) != ReasonCode.SUCCESS:
                await trio.sleep(0.05)


@VERSIONS
async def test_a_user_has_no_more_sessions_than_its_quota(version: Version) -> None:
    refusal = ReasonCode.QUOTA_EXCEEDED if version is Version.V5 else ReasonCode.SERVER_UNAVAILABLE

    async def connect(served: Serving, client_id: str, user: str = ANNA) -> tuple[Client, ReasonCode]:
        client = served.dial(version)
        kept = KEPT if version is Version.V5 else Properties()
        answer = await client.connect(client_id, clean_start=False, username=user, properties=kept)
        return client, answer.reason_code

    async with limited(sessions=2) as served:
        first, answer = await connect(served, "1")
        assert answer == ReasonCode.SUCCESS
        # One that is away is a session, too, and coming back to it takes no further place.
        await first.leave()
        assert (await connect(served, "1"))[1] == ReasonCode.SUCCESS
        assert (await connect(served, "2"))[1] == ReasonCode.SUCCESS
        refused, answer = await connect(served, "3")
        assert answer == refusal
        await refused.closed()
        assert refusals(served) == {Limit.SESSIONS: 1}
        assert served.broker.statistics.refused["quota"] == 1
        assert (await connect(served, "3", BOB))[1] == ReasonCode.SUCCESS


async def test_the_place_of_a_session_that_has_ended_is_free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_use, "_INTERVAL_S", 1000.0)
    async with limited(sessions=1) as served:
        for number in range(10):
            client = await of(served, ANNA, str(number))
            await client.leave()


@pytest.mark.slow("waits for a client to see what is wrong")
async def test_quotas_hold_for_the_brokers_of_a_store_together() -> None:
    async with (
        open_adapter("memory:") as store,
        limited(store, "one", retained=2, delayed=1, sessions=2) as one,
        limited(store, "two", retained=2, delayed=1, sessions=2) as two,
    ):
        here, there = await of(one, ANNA, "1"), await of(two, ANNA, "2")
        assert await here.publish("a", b"x", qos=1, retain=True) == ReasonCode.SUCCESS
        assert await here.publish("b", b"x", qos=1, retain=True) == ReasonCode.SUCCESS
        assert await here.publish("$delayed/3600/a", b"x", qos=1) == ReasonCode.SUCCESS
        with trio.fail_after(PATIENCE_S):
            while (use := two.broker.sessions.stored_use.of(ANNA)).retained != 2 or use.delayed != 1:
                await trio.sleep(0.01)
        assert await there.publish("c", b"x", qos=1, retain=True) == ReasonCode.QUOTA_EXCEEDED
        assert await there.publish("$delayed/3600/a", b"x", qos=1) == ReasonCode.QUOTA_EXCEEDED
        third = two.dial()
        assert (await third.connect("3", username=ANNA)).reason_code == ReasonCode.QUOTA_EXCEEDED
        assert await there.publish("a", b"y", qos=1, retain=True) == ReasonCode.SUCCESS


async def test_a_will_beyond_the_quota_is_published_and_not_kept() -> None:
    async with limited(retained=1) as served:
        bob = await of(served, BOB)
        await bob.subscribe("will/#", qos=1)
        for number in range(3):
            client = await served.client("1", username=ANNA, will=Will(f"will/{number}", b"gone", 1, retain=True))
            await client.leave(ReasonCode.DISCONNECT_WITH_WILL)
            assert (await bob.message()).topic == f"will/{number}"
        kept = [value.key async for value in served.adapter.scan_state(b"mqtt/retained/")]
        assert kept == [b"mqtt/retained/will/0"]


async def test_anonymous_clients_together_are_one_user_in_the_store() -> None:
    async with serving(quotas=Quotas([Quota(retained=1)])) as served:
        one, two = await served.client("1"), await served.client("2")
        assert await one.publish("a", b"x", qos=1, retain=True) == ReasonCode.SUCCESS
        assert await two.publish("b", b"x", qos=1, retain=True) == ReasonCode.QUOTA_EXCEEDED


async def test_where_nothing_stored_is_limited_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(_self: stored_use.StoredUse) -> dict[str, stored_use.Use]:
        raise AssertionError("it was counted")

    monkeypatch.setattr(stored_use.StoredUse, "_count", count)
    async with limited(connections=10, subscriptions=5) as served:
        anna = await of(served, ANNA)
        assert await anna.publish("a", b"x", qos=1, retain=True) == ReasonCode.SUCCESS


# What is counted by each broker for itself


async def test_a_session_of_a_user_has_no_more_subscriptions_than_its_quota() -> None:
    async with limited(subscriptions=2) as served:
        anna, bob = await of(served, ANNA), await of(served, BOB)
        assert await anna.subscribe("a", "b", "c") == (0, 0, ReasonCode.QUOTA_EXCEEDED)
        assert await anna.subscribe("a") == (0,)
        assert await bob.subscribe("a", "b", "c") == (0, 0, 0)
        assert refusals(served) == {Limit.SUBSCRIPTIONS: 1}
        await anna.unsubscribe("a")
        assert await anna.subscribe("c") == (0,)


@VERSIONS
async def test_clients_that_connect_too_often_are_refused(version: Version) -> None:
    refusal = ReasonCode.CONNECTION_RATE_EXCEEDED if version is Version.V5 else ReasonCode.SERVER_UNAVAILABLE
    async with limited(connects_per_s=1) as served:
        answers = []
        for number in range(5):
            client = served.dial(version)
            await client.send(Connect(str(number), username=ANNA, version=version))
            answers.append((await client.receive()).reason_code)  # type: ignore[attr-defined]
        assert answers.count(refusal) >= 2
        assert set(answers) == {refusal, ReasonCode.SUCCESS}
        assert refusals(served) == {Limit.CONNECTS: answers.count(refusal)}


def test_a_user_can_connect_again_when_the_second_is_over() -> None:
    now_s = 0.0
    limits = Quotas([Quota(connects_per_s=2)], lambda: now_s)
    for client_id in ("1", "2", "3"):
        limits.enter(Principal(client_id, ANNA))
    with pytest.raises(ConnectsTooFastError, match=r"quotas\.connects_per_s"):
        limits.enter(Principal("4", ANNA))
    now_s = 0.6
    limits.enter(Principal("4", ANNA))


@VERSIONS
async def test_a_client_that_goes_on_sending_while_it_is_delayed_is_disconnected(
    version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(quotas, "_LONGEST_WAIT_S", 0.05)
    async with limited(publishes_per_s=1) as served:
        anna = await of(served, ANNA, version=version)
        with trio.fail_after(PATIENCE_S):
            try:
                while True:
                    await anna.send(*[Publish("a", bytes(1000))] * 50)
            except trio.BrokenResourceError:
                pass
        if version is Version.V5:
            assert (await anna.expect(Disconnect)).reason_code == ReasonCode.MESSAGE_RATE_TOO_HIGH
        await anna.closed()
        assert served.broker.statistics.ended["rate"] == 1
        assert refusals(served) == {Limit.RATE: 1}


def test_a_burst_is_only_delayed() -> None:
    limits = Quotas([Quota(publishes_per_s=1)], lambda: 0.0)
    account = limits.enter(Principal("c", ANNA))
    assert account is not None
    account.received(10_000, 0, 0.0)
    assert not account.is_overrun


def test_the_log_has_one_line_in_a_second_for_all_refusals(capfd: pytest.CaptureFixture[str]) -> None:
    now_s = 0.0
    limits = Quotas(clock=lambda: now_s)
    for _ in range(1000):
        limits.refusals.note(Limit.RETAINED, ANNA)
    now_s = 1.5
    limits.refusals.note(Limit.DELAYED, BOB)
    assert limits.refusals.counts[Limit.RETAINED] == 1000
    shown = capfd.readouterr()
    lines = [line for line in (shown.out + shown.err).splitlines() if "a quota is exceeded" in line]
    assert len(lines) == 2
    assert "999" in lines[1]
