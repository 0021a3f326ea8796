"""A replay brings what is stored from a position on, in order, and then what comes, as fast as it is taken."""

from __future__ import annotations

import pytest

from broker_adapter import MappingRule, TopicMapping, open_adapter
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.subscription import Origin, SubscriptionOptions
from shards.errors import InvalidRequestError, OffsetOutOfRangeError
from shards.position import Start
from tests.mqtt.delivery.delivering import SMALL, Brittle, Delivering, Session, delivering, until


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


async def publish_each(broker: Delivering, topic: str, start: int, end: int) -> None:
    for number in range(start, end):
        await broker.publish(topic, b"%d" % number, timestamp_us=1000 + number)


async def replay(session: Session, topic_filter: str, start: Start) -> None:
    await session.distributor.replay(session.inbox, topic_filter, start, SubscriptionOptions(1, subscription_id=2))


@pytest.mark.parametrize(
    ("start", "first"), [(Start.earliest(), 0), (Start.offset(7), 7), (Start.time(1004), 4), (Start.latest(), 20)]
)
async def test_a_replay_begins_at_the_given_position_and_continues_live(start: Start, first: int) -> None:
    async with delivering() as broker:
        await publish_each(broker, "a", 0, 20)
        session = broker.session()
        await replay(session, "a", start)
        await publish_each(broker, "a", 20, 25)
        arrivals = await session.arrivals(25 - first)
        assert [one.message.payload for one in arrivals] == numbers(first, 25)
        assert {(one.origin, one.subscription_ids) for one in arrivals} == {(Origin.REPLAY, (2,))}
        await session.assert_silent()


async def test_a_replay_from_an_lsn_begins_there() -> None:
    async with delivering() as broker:
        await publish_each(broker, "a", 0, 5)
        lsn = await broker.last_lsn("a")
        await publish_each(broker, "b", 5, 8)
        session = broker.session()
        await replay(session, "#", Start.lsn(lsn))
        assert sorted(await session.take(4)) == numbers(4, 8)


async def test_a_filter_is_replayed_over_all_its_topics_in_the_order_of_each() -> None:
    async with delivering(limits=SMALL) as broker:
        for number in range(60):
            await broker.publish(f"a/{number % 3}", b"%d" % number)
        session = broker.session()
        await replay(session, "a/+", Start.earliest())
        for number in range(60, 90):
            await broker.publish(f"a/{number % 3}", b"%d" % number)
        received: list[bytes] = []
        while len(received) < 90:
            received += await session.take(1)
            assert session.inbox.queued_count <= 8
        for rest in range(3):
            of_topic = [int(payload) for payload in received if int(payload) % 3 == rest]
            assert of_topic == [number for number in range(90) if number % 3 == rest]
        assert broker.distributor.statistics().replays == 1


@pytest.mark.parametrize("start", [Start.earliest(), Start.time(1), Start.lsn(1)])
async def test_a_replay_whose_feed_breaks_off_continues_without_repeating(start: Start) -> None:
    async with open_adapter("memory:") as plain:
        store = Brittle(plain)
        async with delivering(store, limits=SMALL) as broker:  # type: ignore[arg-type]
            for number in range(40):
                await broker.publish(f"a/{number % 2}", b"%d" % number)
            session = broker.session()
            await replay(session, "a/+", start)
            received: list[bytes] = []
            while len(received) < 40:
                received += await session.take(1)
                if len(received) % 12 == 0:
                    store.break_feeds("a/+")
            assert sorted(map(int, received)) == list(range(40))
            await session.assert_silent()


async def test_what_is_trimmed_is_passed_over_and_an_offset_that_is_not_there_yet_is_refused() -> None:
    async with delivering() as broker:
        await publish_each(broker, "a", 0, 10)
        await broker.store.trim("a", 6)
        session = broker.session()
        await replay(session, "a", Start.offset(2))
        assert await session.take(4) == numbers(6, 10)
        with pytest.raises(OffsetOutOfRangeError):
            await replay(session, "a", Start.offset(11))
        with pytest.raises(InvalidRequestError):
            await replay(session, "a/+", Start.offset(1))
        assert broker.distributor.statistics().replays == 0
        await publish_each(broker, "a", 10, 11)
        await session.assert_silent()


async def test_a_topic_without_a_shard_is_waited_for() -> None:
    async with delivering() as broker:
        session = broker.session()
        await replay(session, "a", Start.offset(0))
        await publish_each(broker, "a", 0, 3)
        assert await session.take(3) == numbers(0, 3)


async def test_a_replay_also_brings_what_is_not_kept_and_comes_now() -> None:
    async with delivering() as broker:
        await broker.publish_live("a", b"before")
        session = broker.session()
        await replay(session, "a", Start.earliest())
        await broker.publish_live("a", b"now")
        [arrival] = await session.arrivals(1)
        assert (arrival.message.payload, arrival.origin) == (b"now", Origin.REPLAY)
        await session.assert_silent()


async def test_replays_and_subscriptions_of_one_session_are_apart() -> None:
    async with delivering() as broker:
        await publish_each(broker, "a", 0, 3)
        session = broker.session()
        await session.subscribe("a")
        await replay(session, "a", Start.earliest())
        await publish_each(broker, "a", 3, 4)
        arrivals = await session.arrivals(5)
        replayed = [one.message.payload for one in arrivals if one.origin is Origin.REPLAY]
        assert replayed == numbers(0, 4)
        last_lsn = await broker.last_lsn("a")
        await session.reach(lambda inbox: inbox.safe_lsn >= last_lsn)
        await session.distributor.stop_replay(session.inbox, "a")
        await publish_each(broker, "a", 4, 5)
        assert [one.origin for one in await session.arrivals(1)] == [Origin.SUBSCRIPTION]
        await session.assert_silent()


async def test_folded_topics_are_replayed_once() -> None:
    mapping = TopicMapping([MappingRule("f/#", prefix="p", shards=2)])
    async with delivering(mapping=mapping) as broker:
        await broker.publish("p/x", b"0")
        for shard in ("p/0", "p/1"):
            await broker.store.create_shard(shard)
        await broker.append("p/0", Message("f/1", b"1", 1), Message("f/2", b"2", 1))
        await broker.append("p/1", Message("f/3", b"3", 1))
        session = broker.session()
        await replay(session, "+/+", Start.earliest())
        assert sorted(await session.take(4)) == numbers(0, 4)
        await session.assert_silent()


async def test_closing_the_session_ends_its_replays() -> None:
    async with open_adapter("memory:") as plain:
        store = Brittle(plain)
        async with delivering(store, limits=SMALL) as broker:  # type: ignore[arg-type]
            await publish_each(broker, "a", 0, 100)
            session = broker.session()
            await replay(session, "a", Start.earliest())
            await session.take(3)
            session.close()
            await until(lambda: store.open_targets == [])
            assert broker.distributor.statistics().replays == 0
