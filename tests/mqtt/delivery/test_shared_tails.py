"""Few tails bring what all sessions need, and change without a session missing a message or getting one twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from broker_adapter import open_adapter
from broker_adapter.mqtt.delivery import DeliveryLimits
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.storage_rules import LIVE_TARGET
from shards.errors import LimitExceededError
from tests.mqtt.delivery.delivering import Brittle, Delivering, Session, delivering, until

KEPT = DeliveryLimits(linger_s=0.0, max_tails=4)


@asynccontextmanager
async def watched(limits: DeliveryLimits = KEPT, **options: Any) -> AsyncIterator[tuple[Delivering, Brittle]]:
    async with open_adapter("memory:") as store:
        brittle = Brittle(store)
        async with delivering(brittle, limits=limits, **options) as broker:  # type: ignore[arg-type]
            yield broker, brittle


def targets(store: Brittle) -> list[str]:
    return [target for target in store.open_targets if target != LIVE_TARGET]


async def publish_and_take(broker: Delivering, session: Session, topic: str, *, first: int, count: int = 5) -> None:
    for number in range(first, first + count):
        await broker.publish(topic, b"%d" % number)
    assert await session.take(count) == [b"%d" % number for number in range(first, first + count)]


async def test_a_filter_that_a_tail_covers_uses_that_tail() -> None:
    async with watched() as (broker, store):
        session = broker.session()
        await session.subscribe("a/#", "a/1", "a/+/x")
        assert targets(store) == ["a/#"]


async def test_a_tail_that_covers_others_takes_their_place_without_a_gap() -> None:
    async with watched() as (broker, store):
        session, other = broker.session(), broker.session("other")
        await session.subscribe("a/1", "a/2")
        assert targets(store) == ["a/1", "a/2"]
        await publish_and_take(broker, session, "a/1", first=0)
        await broker.publish("a/1", b"5", b"6")
        await other.subscribe("a/#")
        await broker.publish("a/1", b"7")
        assert targets(store) == ["a/#"]
        assert await session.take(3) == [b"5", b"6", b"7"]
        assert await other.take(1) == [b"7"]
        await session.assert_silent()


async def test_a_tail_begins_where_the_others_that_bring_its_shards_are() -> None:
    """Or what another one has not handed out yet would be passed over."""
    async with watched() as (broker, store):
        session = broker.session()
        await session.subscribe("a/+")
        await session.subscribe("+/1")
        [(_, first_lsn, _), *_] = [one for one in store.followed if one[0] == "a/+"]
        [(_, second_lsn, _), *_] = [one for one in store.followed if one[0] == "+/1"]
        assert first_lsn is None
        assert second_lsn is not None
        for number in range(30):
            await broker.publish("a/1", b"%d" % number)
        assert await session.take(30) == [b"%d" % number for number in range(30)]
        await session.assert_silent()


async def test_an_unused_tail_ends() -> None:
    async with watched() as (broker, store):
        session, other = broker.session(), broker.session("other")
        await session.subscribe("a", "b")
        await other.subscribe("b")
        await session.unsubscribe("a")
        await until(lambda: targets(store) == ["b"])
        session.close()
        await publish_and_take(broker, other, "b", first=0)
        assert targets(store) == ["b"]
        other.close()
        await until(lambda: store.open_targets == [])


async def test_a_tail_stays_a_moment_for_who_comes_again() -> None:
    async with watched(DeliveryLimits(linger_s=0.2)) as (broker, store):
        session = broker.session()
        await session.subscribe("a")
        await session.unsubscribe("a")
        await trio.sleep(0.05)
        await session.subscribe("a")
        await trio.sleep(0.3)
        assert [one for one in store.followed if one[0] == "a"] == [("a", None, None)]
        assert targets(store) == ["a"]


async def test_with_too_many_targets_wider_ones_are_followed_and_nothing_is_missed() -> None:
    async with watched() as (broker, store):
        sessions = []
        for number in range(12):
            session = broker.session(f"c{number}")
            await session.subscribe(f"client/{number}/in")
            sessions.append(session)
            await publish_and_take(broker, sessions[0], "client/0/in", first=number * 5)
        assert targets(store) == ["client/#"]
        for number, session in enumerate(sessions):
            await publish_and_take(broker, session, f"client/{number}/in", first=100)
            await session.assert_silent(0)


async def test_many_first_levels_are_followed_by_one_tail() -> None:
    async with watched() as (broker, store):
        session = broker.session()
        await session.subscribe(*(f"{number}/x" for number in range(9)))
        await until(lambda: targets(store) == ["#"])
        await publish_and_take(broker, session, "0/x", first=0)
        await publish_and_take(broker, session, "8/x", first=0)


async def test_first_levels_that_begin_with_a_dollar_are_bounded() -> None:
    async with watched() as (broker, _):
        session = broker.session()
        with pytest.raises(LimitExceededError, match="max_tails"):
            await session.subscribe(*(f"${number}/x" for number in range(20)))
        await session.subscribe("a")
        await publish_and_take(broker, session, "a", first=0)


async def test_narrower_tails_take_over_when_the_wide_one_is_not_needed_any_more() -> None:
    async with watched() as (broker, store):
        session, other = broker.session(), broker.session("other")
        await other.subscribe("#")
        await session.subscribe("a/1", "a/+", "b")
        assert targets(store) == ["#"]
        await broker.publish("a/1", b"0")
        other.close()
        for number in range(1, 40):
            await broker.publish("a/1", b"%d" % number)
        await until(lambda: targets(store) == ["a/+", "b"])
        for number in range(40, 60):
            await broker.publish("a/1", b"%d" % number)
        assert await session.take(60) == [b"%d" % number for number in range(60)]
        await session.assert_silent()


async def test_a_tail_that_breaks_off_continues_where_it_was() -> None:
    async with watched() as (broker, store):
        session, other = broker.session(), broker.session("other")
        await session.subscribe("a/#")
        await other.subscribe("a/1")
        for round_number in range(4):
            for number in range(10):
                await broker.publish("a/1", b"%d" % number)
                if number == 2 * round_number:
                    store.break_feeds()
            for one in (session, other):
                assert await one.take(10) == [b"%d" % number for number in range(10)]
        await session.assert_silent()
        assert broker.distributor.statistics().behind == 0


async def test_messages_that_are_not_kept_do_not_come_twice_when_their_tail_breaks_off() -> None:
    async with watched() as (broker, store):
        session = broker.session()
        await session.subscribe("a")
        await broker.publish_live("a", b"1")
        assert await session.take(1) == [b"1"]
        store.break_feeds(LIVE_TARGET)
        followed = len(store.followed)
        await until(lambda: len(store.followed) > followed and LIVE_TARGET in store.open_targets)
        await broker.publish_live("a", b"2")
        assert await session.take(1) == [b"2"]


async def test_concurrent_requests_for_the_position_share_the_next_answer() -> None:
    async with watched() as (broker, store):
        await broker.publish("a", b"x")
        lsn = await broker.last_lsn("a")
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                assert await broker.distributor.current_position() == Position(lsn)

            for _ in range(100):
                nursery.start_soon(ask)
        assert len(store.followed) <= 2


async def test_subscribers_that_come_at_once_share_what_is_begun_for_them() -> None:
    async with watched() as (broker, store):
        sessions = [broker.session(f"c{number}") for number in range(100)]
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(session.subscribe, "a/#")
        assert len([one for one in store.followed if one[0] == "a/#"]) == 1
        await broker.publish("a/1", b"x")
        for session in sessions:
            assert await session.take(1) == [b"x"]


async def test_sessions_that_come_at_once_with_many_targets_have_few_tails() -> None:
    """Each opened tails one by one up to the limit, and looked at all targets for each: minutes with 100 sessions."""
    async with watched() as (broker, store):
        sessions = [broker.session(f"s{number}") for number in range(3)]
        async with trio.open_nursery() as nursery:
            for number, session in enumerate(sessions):
                for line in range(50):
                    nursery.start_soon(session.subscribe, f"{number}/{line}")
        assert len(targets(store)) <= 4
        assert sum(target != LIVE_TARGET for target, *_ in store.followed) < 20
        for number, session in enumerate(sessions):
            await publish_and_take(broker, session, f"{number}/7", first=0)


async def test_sessions_that_are_restored_at_once_have_few_tails() -> None:
    async with watched() as (broker, store):
        sessions = [broker.session(f"s{number}") for number in range(3)]
        async with trio.open_nursery() as nursery:
            for number, session in enumerate(sessions):
                nursery.start_soon(session.restore, {f"{number}/{line}": 0 for line in range(50)})
        assert len(targets(store)) <= 4
        assert sum(target != LIVE_TARGET for target, *_ in store.followed) < 20
        for number, session in enumerate(sessions):
            await publish_and_take(broker, session, f"{number}/7", first=0)
