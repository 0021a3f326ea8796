"""Members of a shared subscription share what is published; what one leaves behind goes to the others."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import MappingRule, TopicMapping, open_adapter
from broker_adapter.mqtt.delivery import Arrival, DeliveryLimits
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import BEGINNING, Position
from broker_adapter.mqtt.model.subscription import Origin, SubscriptionOptions
from shards.errors import InvalidNameError
from tests.mqtt.delivery.delivering import SMALL, Brittle, Delivering, Session, delivering, until
from tests.patience import PATIENCE_S

AT_LEAST_ONCE = SubscriptionOptions(1, subscription_id=4)


async def join(
    session: Session, topic_filter: str, *, group: str = "g", after: Position = BEGINNING, qos: int = 1
) -> None:
    options = SubscriptionOptions(qos, subscription_id=4)
    await session.distributor.join_group(session.inbox, group, topic_filter, options, after=after)


def acknowledge(arrivals: list[Arrival]) -> list[bytes]:
    for arrival in arrivals:
        assert arrival.acknowledge is not None
        arrival.acknowledge()
    return [arrival.message.payload for arrival in arrivals]


async def take_shares(sessions: list[Session], count: int) -> list[list[bytes]]:
    """What each gets and acknowledges until all together have so many."""
    taken: list[list[bytes]] = [[] for _ in sessions]
    with trio.fail_after(PATIENCE_S):
        while sum(map(len, taken)) < count:
            for session, of_session in zip(sessions, taken, strict=True):
                of_session += acknowledge(session.inbox.take(5))
            await trio.sleep(0.001)
    return taken


async def test_each_message_goes_to_one_member_and_they_share_in_turn() -> None:
    async with delivering() as broker:
        sessions = [broker.session(f"c{number}") for number in range(3)]
        for session in sessions:
            await join(session, "a/+")
        assert broker.distributor.statistics().members == 3
        for number in range(30):
            await broker.publish(f"a/{number % 2}", b"%d" % number)
        taken = await take_shares(sessions, 30)
        assert sorted(int(payload) for of_session in taken for payload in of_session) == list(range(30))
        assert all(taken)
        for session in sessions:
            await session.assert_silent(0.02)


async def test_an_arrival_says_that_it_is_a_share_and_is_acknowledged_by_the_whole_delivery() -> None:
    async with delivering() as broker:
        session = broker.session()
        await join(session, "a", qos=2)
        await broker.publish("a", b"1", b"2", qos=2, retain=True)
        arrivals = await session.arrivals(2)
        assert {(one.origin, one.qos, one.retain, one.subscription_ids) for one in arrivals} == {
            (Origin.GROUP, 2, False, (4,))
        }
        acknowledge(arrivals[:1])
        session.close()
        other = broker.session("other")
        await join(other, "a")
        assert acknowledge(await other.arrivals(2)) == [b"1", b"2"]
        other.close()
        await other.assert_silent()
        third = broker.session("third")
        await join(third, "a")
        await third.assert_silent()


async def test_what_a_member_that_leaves_has_not_acknowledged_goes_to_the_others() -> None:
    async with delivering() as broker:
        leaves, stays = broker.session("leaves"), broker.session("stays")
        await join(leaves, "a")
        for number in range(8):
            await broker.publish("a", b"%d" % number)
        assert len(await leaves.arrivals(3)) == 3
        await join(stays, "a")
        await leaves.distributor.leave_group(leaves.inbox, "g", "a")
        assert not leaves.inbox.has_more, "what waits in its inbox is not for it any more"
        assert [payload for [payload] in [await stays.take(1) for _ in range(8)]] == [b"%d" % one for one in range(8)]
        assert broker.distributor.statistics().members == 1


async def test_who_answers_and_leaves_at_once_has_answered() -> None:
    async with delivering() as broker:
        session, other = broker.session(), broker.session("other")
        await join(session, "a")
        await broker.publish("a", b"1")
        await broker.publish("a", b"2")
        acknowledge(await session.arrivals(2))
        session.close()
        await join(other, "a")
        await other.assert_silent()


async def test_a_late_acknowledgement_does_nothing() -> None:
    async with delivering() as broker:
        session, other = broker.session(), broker.session("other")
        await join(session, "a")
        await broker.publish("a", b"1")
        arrivals = await session.arrivals(1)
        session.close()
        await join(other, "a")
        assert await other.take(1) == [b"1"]
        acknowledge(arrivals)
        other.close()
        third = broker.session("third")
        await join(third, "a")
        assert await third.take(1) == [b"1"]


async def test_a_group_begins_where_it_was_founded_and_continues_where_it_stopped() -> None:
    async with delivering() as broker:
        await broker.publish("a", b"before")
        after = Position(await broker.last_lsn("a"))
        await broker.publish("a", b"1")
        session = broker.session()
        await join(session, "a", after=after)
        assert acknowledge(await session.arrivals(1)) == [b"1"]
        session.close()
        await broker.publish("a", b"2")
        other = broker.session("other")
        await join(other, "a", after=Position(0))
        assert acknowledge(await other.arrivals(1)) == [b"2"]
        await other.assert_silent()


async def test_a_topic_without_a_shard_is_waited_for() -> None:
    async with delivering() as broker:
        session, other = broker.session(), broker.session("other")
        await join(session, "new/topic")
        await join(other, "new/topic")
        for number in range(6):
            await broker.publish("new/topic", b"%d" % number)
        taken = await take_shares([session, other], 6)
        assert sorted(taken[0] + taken[1]) == [b"%d" % number for number in range(6)]


async def test_a_topic_whose_shard_is_deleted_is_waited_for_again() -> None:
    async with delivering() as broker:
        session = broker.session()
        await broker.publish("a", b"1")
        await join(session, "a")
        assert acknowledge(await session.arrivals(1)) == [b"1"]
        await broker.store.delete_shard("a")
        await broker.publish("a", b"2")
        assert acknowledge(await session.arrivals(1)) == [b"2"]


async def test_folded_topics_are_shared_and_others_of_their_shard_are_no_ones() -> None:
    mapping = TopicMapping([MappingRule("f/#", prefix="$p", shards=1)])
    async with delivering(mapping=mapping) as broker:
        session = broker.session()
        await broker.store.create_shard("$p/0")
        await join(session, "f/1")
        for number in range(4):
            await broker.append("$p/0", Message(f"f/{number % 2}", b"%d" % number, 1))
        assert acknowledge(await session.arrivals(2)) == [b"1", b"3"]
        await until_position(broker, "$p/0", 4)


async def test_a_shard_that_two_targets_reach_is_shared_once() -> None:
    mapping = TopicMapping([MappingRule("f/#", prefix="p", shards=2)])
    async with delivering(mapping=mapping) as broker:
        session = broker.session()
        assert mapping.shard_for("f/1") == "p/1"
        await broker.store.create_shard("p/1")
        await join(session, "+/1")
        await broker.append("p/1", Message("f/1", b"1", 1))
        await broker.append("p/1", Message("f/1", b"2", 1))
        assert acknowledge(await session.arrivals(2)) == [b"1", b"2"]
        await session.assert_silent()
        await until_position(broker, "p/1", 2)


async def until_position(broker: Delivering, shard: str, offset: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while True:
            cursor = await broker.store.get_cursor(shard, "group/g")
            if cursor is not None and cursor.offset == offset:
                return
            await trio.sleep(0.002)


async def test_messages_that_are_not_kept_are_shared_too() -> None:
    async with delivering() as broker:
        sessions = [broker.session("1"), broker.session("2")]
        for session in sessions:
            await join(session, "a", qos=0)
        for number in range(10):
            await broker.publish_live("a", b"%d" % number)
            await broker.publish_live("b", b"no")
        taken = await take_shares(sessions, 10)
        assert sorted(taken[0] + taken[1]) == [b"%d" % number for number in range(10)]


async def test_a_member_that_acknowledges_nothing_holds_a_bounded_part() -> None:
    async with delivering(limits=DeliveryLimits(max_unacknowledged=5)) as broker:
        stuck, quick = broker.session("stuck"), broker.session("quick")
        await join(stuck, "a")
        await join(quick, "a")
        for number in range(200):
            await broker.publish("a", b"%d" % number)
        with trio.fail_after(PATIENCE_S):
            taken: list[bytes] = []
            while len(taken) < 200 - 5 - 64:
                taken += acknowledge(quick.inbox.take(10))
                stuck.inbox.take(10)
                await trio.sleep(0.001)
        stuck.close()
        while len(taken) < 200:
            taken += acknowledge(await quick.arrivals(1))
        assert sorted(map(int, taken)) == list(range(200))


async def test_a_slow_members_inbox_stays_bounded_and_its_subscriptions_go_on() -> None:
    async with delivering(limits=SMALL) as broker:
        session = broker.session()
        await session.subscribe("b")
        await join(session, "a")
        for number in range(50):
            await broker.publish("a", b"%d" % number)
            assert session.inbox.queued_count <= 8
        await broker.publish("b", b"b")
        found: list[bytes] = []
        with trio.fail_after(PATIENCE_S):
            while len(found) < 51:
                for arrival in session.inbox.take(1):
                    found.append(arrival.message.payload)
                    if arrival.acknowledge is not None:
                        arrival.acknowledge()
                await trio.lowlevel.checkpoint()
        assert sorted(found) == sorted([b"b", *(b"%d" % number for number in range(50))])
        await session.reach(lambda inbox: inbox.safe_lsn >= 50)


async def test_a_share_whose_feed_breaks_off_begins_anew_and_misses_nothing() -> None:
    async with open_adapter("memory:") as plain:
        store = Brittle(plain)
        async with delivering(store) as broker:  # type: ignore[arg-type]
            sessions = [broker.session("1"), broker.session("2")]
            for session in sessions:
                await join(session, "a/+")
            taken: set[bytes] = set()
            for number in range(30):
                await broker.publish("a/1", b"%d" % number)
                if number % 10 == 5:
                    store.break_feeds("a/+")
                for session in sessions:
                    taken |= set(acknowledge(session.inbox.take(9)))
            with trio.fail_after(PATIENCE_S):
                while len(taken) < 30:
                    for session in sessions:
                        taken |= set(acknowledge(session.inbox.take(9)))
                    await trio.sleep(0.001)


async def test_members_at_two_brokers_share() -> None:
    async with delivering() as broker, delivering(broker.store) as other_broker:
        sessions = [broker.session("1"), other_broker.session("2")]
        for session in sessions:
            await join(session, "a")
        for number in range(20):
            await broker.publish("a", b"%d" % number)
        taken = await take_shares(sessions, 20)
        assert sorted(int(payload) for of_session in taken for payload in of_session) == list(range(20))
        # How evenly they are shared depends on when each has room. But each member gets some.
        assert all(taken)


async def test_in_a_sticky_group_a_topic_stays_with_one_member_in_order() -> None:
    async with delivering() as broker, delivering(broker.store) as other_broker:
        sessions = [broker.session("1"), other_broker.session("2"), broker.session("3")]
        for session in sessions:
            await join(session, "a/+", group="sticky/g")
        topics = [f"a/{number}" for number in range(12)]
        for number in range(10):
            for topic in topics:
                await broker.publish(topic, b"%s %d" % (topic.encode(), number))
        taken = await take_shares(sessions, 120)
        member_of: dict[bytes, int] = {}
        for member, of_session in enumerate(taken):
            for payload in of_session:
                assert member_of.setdefault(payload.split()[0], member) == member
        for topic in topics:
            of_topic = [payload for payload in taken[member_of[topic.encode()]] if payload.split()[0] == topic.encode()]
            assert [int(payload.split()[1]) for payload in of_topic] == list(range(10))
        sessions[member_of[b"a/0"]].close()
        stay = [session for at, session in enumerate(sessions) if at != member_of[b"a/0"]]
        await broker.publish("a/0", b"a/0 10")
        assert sorted(await take_shares(stay, 1)) == [[], [b"a/0 10"]]


async def test_a_group_that_the_store_refuses_has_no_member() -> None:
    async with delivering() as broker:
        session = broker.session()
        with pytest.raises(InvalidNameError):
            await join(session, "a/+", group="x" * 300)
        assert broker.distributor.statistics().members == 0
        await join(session, "a/+")


async def test_a_session_may_be_closed_while_it_joins() -> None:
    async with open_adapter("memory:") as plain:
        async with delivering(Brittle(plain)) as broker:  # type: ignore[arg-type]
            for ticks in range(8):
                session = broker.session()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(join, session, "a/+")
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    session.close()
            assert broker.distributor.statistics().members == 0
            other = broker.session("other")
            await join(other, "a/+")
            await broker.publish("a/1", b"x")
            assert await other.take(1) == [b"x"]
            await until(lambda: not other.inbox.has_more)
