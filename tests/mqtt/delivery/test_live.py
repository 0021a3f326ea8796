"""Who is subscribed gets what is published from then on: once, in order, in the shape that was asked for."""

from __future__ import annotations

import pytest
import trio

from broker_adapter import MappingRule, TopicMapping, open_adapter
from broker_adapter.mqtt.delivery import DeliveryLimits
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position
from broker_adapter.mqtt.model.subscription import Origin, SubscriptionOptions
from shards.errors import InvalidNameError, OverloadedError
from shards.position import Start
from tests.mqtt.delivery.delivering import SMALL, Brittle, delivering, until
from tests.patience import PATIENCE_S


async def test_everything_that_is_published_after_subscribing_comes_and_nothing_from_before() -> None:
    async with delivering() as broker:
        session = broker.session()
        await broker.publish("a", b"before")
        since_lsn = await session.subscribe("a")
        assert since_lsn == await broker.last_lsn("a")
        await broker.publish("a", b"1", b"2")
        await broker.publish("a", b"3")
        arrivals = await session.arrivals(3)
        assert [one.message.payload for one in arrivals] == [b"1", b"2", b"3"]
        assert {(one.qos, one.retain, one.subscription_ids, one.origin) for one in arrivals} == {
            (1, False, (), Origin.SUBSCRIPTION)
        }
        await session.assert_silent()


async def test_what_was_acknowledged_before_another_session_subscribes_is_not_for_it() -> None:
    """The tail runs already and may not have handed it out yet."""
    async with delivering() as broker:
        first = broker.session("first")
        await first.subscribe("#")
        for number in range(20):
            await broker.publish("a", b"%d" % number)
            session = broker.session(f"c{number}")
            await session.subscribe("a")
            await broker.publish("a", b"after %d" % number)
            assert await session.take(1) == [b"after %d" % number]
            session.close()


async def test_a_topic_without_a_shard_can_be_subscribed_to() -> None:
    async with delivering() as broker:
        session = broker.session()
        await session.subscribe("new/+", "new/2")
        await broker.publish("new/1", b"x")
        await broker.publish("new/2", b"y")
        assert sorted(await session.take(2)) == [b"x", b"y"]


async def test_overlapping_filters_make_one_arrival_with_the_highest_qos_and_all_identifiers() -> None:
    async with delivering() as broker:
        session = broker.session()
        await session.subscribe("a/+", qos=0, subscription_id=7)
        await session.subscribe("+/b", qos=2, subscription_id=9, retain_as_published=True)
        await session.subscribe("#", qos=1)
        await broker.publish("a/b", b"x", qos=2, retain=True)
        await broker.publish("a/c", b"y", qos=2, retain=True)
        one, other = await session.arrivals(2)
        assert (one.qos, one.retain, sorted(one.subscription_ids)) == (2, True, [7, 9])
        assert (other.qos, other.retain, other.subscription_ids) == (1, False, (7,))
        await session.assert_silent()


async def test_no_local_keeps_a_clients_own_messages_from_it() -> None:
    async with delivering() as broker:
        session = broker.session("me")
        await session.subscribe("a", no_local=True)
        other = broker.session("other")
        await other.subscribe("a", no_local=True)
        await broker.publish("a", b"mine", publisher="me")
        await broker.publish("a", b"theirs", publisher="other")
        assert await session.take(1) == [b"theirs"]
        assert await other.take(1) == [b"mine"]
        await session.subscribe("#")
        await broker.publish("a", b"again", publisher="me")
        assert await session.take(1) == [b"again"], "for the other filter it counts"


async def test_a_filter_that_is_repeated_replaces_the_options_and_interrupts_nothing() -> None:
    async with delivering() as broker:
        session = broker.session()
        since_lsn = await session.subscribe("a", qos=0)
        await broker.publish("a", b"1")
        assert await session.subscribe("a", qos=1, subscription_id=3) == since_lsn
        await broker.publish("a", b"2")
        one, other = await session.arrivals(2)
        assert (other.qos, other.subscription_ids) == (1, (3,))
        assert one.message.payload == b"1"


async def test_nothing_comes_after_unsubscribing() -> None:
    async with delivering() as broker:
        session = broker.session()
        await session.subscribe("a", "b")
        await broker.publish("a", b"1")
        assert await session.take(1) == [b"1"]
        await session.unsubscribe("a")
        await session.unsubscribe("never/there")
        await broker.publish("a", b"2")
        await broker.publish("b", b"3")
        assert await session.take(1) == [b"3"]
        await session.assert_silent()


async def test_sessions_share_tails_and_arrivals() -> None:
    async with delivering() as broker:
        sessions = [broker.session(f"c{number}") for number in range(50)]
        for session in sessions:
            await session.subscribe("a/+")
        assert broker.distributor.statistics().tails == 2
        await broker.publish("a/1", b"x")
        found = [(await session.arrivals(1))[0] for session in sessions]
        assert len({id(one) for one in found}) == 1


async def test_a_session_is_woken_once_for_many_messages() -> None:
    async with delivering() as broker:
        session = broker.session()
        await session.subscribe("#")
        await broker.publish("a", *(b"%d" % number for number in range(100)))
        assert len(await session.take(100)) == 100
        assert session.ready_count == 1


async def test_folded_topics_come_in_the_order_of_their_shard_and_only_to_whom_they_are_for() -> None:
    mapping = TopicMapping([MappingRule("f/#", prefix="$folded", shards=1)])
    async with delivering(mapping=mapping) as broker:
        session, other = broker.session(), broker.session("other")
        await session.subscribe("f/a", "f/b")
        await other.subscribe("f/c")
        await broker.store.create_shard("$folded/0")
        topics = ["f/a", "f/b", "f/c", "f/a", "f/a", "f/b"]
        await broker.append("$folded/0", *(Message(one, b"%d" % at, 1) for at, one in enumerate(topics)))
        assert await session.take(5) == [b"0", b"1", b"3", b"4", b"5"]
        assert await other.take(1) == [b"2"]


async def test_messages_that_are_not_kept_come_to_whom_is_subscribed_now() -> None:
    async with delivering() as broker:
        session = broker.session()
        await session.subscribe("a", qos=2)
        await broker.publish_live("a", b"1")
        await broker.publish_live("b", b"2")
        [arrival] = await session.arrivals(1)
        assert (arrival.message.payload, arrival.message.topic, arrival.qos, arrival.message.lsn) == (b"1", "a", 0, 0)
        late = broker.session("late")
        await late.subscribe("#")
        await late.assert_silent()
        await session.assert_silent()


async def test_local_messages_come_to_whom_is_subscribed_and_follow_nothing() -> None:
    async with delivering() as broker:
        session, other = broker.session(), broker.session("other")
        await session.subscribe("$SYS/#", qos=1)
        assert broker.distributor.statistics().tails == 0
        await other.subscribe("#")
        broker.distributor.deliver_local(Message("$SYS/broker/uptime", b"5", 0, retain=True))
        [arrival] = await session.arrivals(1)
        assert (arrival.message.payload, arrival.qos, arrival.retain) == (b"5", 0, False)
        await other.assert_silent()


async def test_what_finds_a_full_inbox_and_cannot_be_read_again_is_dropped_and_counted() -> None:
    async with delivering(limits=SMALL) as broker:
        session = broker.session()
        await session.subscribe("#")
        await broker.publish_live("a", *(b"%d" % number for number in range(20)))
        await session.reach(lambda inbox: inbox.dropped_count == 12)
        for number in range(3):
            broker.distributor.deliver_local(Message("x", b"%d" % number, 0))
        statistics = broker.distributor.statistics()
        assert (statistics.dropped, statistics.queued, statistics.behind) == (15, 8, 0)
        assert len(await session.take(8)) == 8
        session.close()
        assert broker.distributor.statistics().dropped == 15


async def test_the_position_moves_although_nothing_matches() -> None:
    async with delivering() as broker:
        session = broker.session()
        await session.subscribe("mine", "other/mine/#")
        await broker.publish("theirs", b"x")
        last_lsn = await broker.last_lsn("theirs")
        await session.reach(lambda inbox: inbox.safe_lsn >= last_lsn)
        await session.assert_silent()


async def test_a_subscription_that_the_store_refuses_is_none() -> None:
    async with delivering(limits=DeliveryLimits(linger_s=0.0)) as broker:
        session = broker.session()
        with pytest.raises(InvalidNameError):
            await session.subscribe("a/#/b")
        await until(lambda: broker.distributor.statistics().tails == 0)
        await session.subscribe("a")
        await broker.publish("a", b"x")
        assert await session.take(1) == [b"x"]


async def test_a_subscribe_fails_if_the_store_does_not_answer_and_leaves_nothing() -> None:
    async with delivering() as plain:
        store = Brittle(plain.store)
        async with delivering(store, limits=DeliveryLimits(linger_s=0.0)) as broker:  # type: ignore[arg-type]
            session = broker.session()
            store.refused = OverloadedError("not now")
            with pytest.raises(OverloadedError):
                await session.subscribe("a")
            with pytest.raises(OverloadedError):
                await session.restore({"a": 0})
            assert session.inbox.state.name == "LIVE"
            store.refused = None
            await session.subscribe("a")
            await broker.publish("a", b"x")
            assert await session.take(1) == [b"x"]


async def test_a_session_may_be_closed_while_it_subscribes() -> None:
    async with delivering(limits=DeliveryLimits(linger_s=0.0)) as broker:
        for filters in (["a"], ["a", "b/#"]):
            session = broker.session()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.subscribe, *filters)
                nursery.start_soon(broker.distributor.restore, session.inbox, {"r": SubscriptionOptions(1)})
                await trio.lowlevel.checkpoint()
                session.close()
            session.close()
        await until(lambda: broker.distributor.statistics().tails == 0)
        assert broker.distributor.statistics().inboxes == 0


async def test_a_store_that_is_lost_for_a_while_ends_nothing() -> None:
    async with open_adapter("memory:") as plain:
        store = Brittle(plain)
        async with delivering(store, limits=SMALL) as broker:  # type: ignore[arg-type]
            session, slow, member = (broker.session(name) for name in ("quick", "slow", "member"))
            await session.subscribe("a")
            await slow.subscribe("a")
            options = SubscriptionOptions(1)
            await member.distributor.join_group(member.inbox, "g", "a", options, after=Position(0))
            await member.distributor.replay(member.inbox, "b", Start.earliest(), options)
            for number in range(20):
                await broker.publish("a", b"%d" % number)
                assert await session.take(1) == [b"%d" % number]
            assert await slow.take(4) == [b"0", b"1", b"2", b"3"]
            store.refused = OverloadedError("lost")
            store.break_feeds()
            for number in range(20, 25):
                await broker.publish("a", b"%d" % number)
            await trio.sleep(0.3)
            store.refused = None
            assert await session.take(5) == [b"%d" % number for number in range(20, 25)]
            assert await slow.take(21) == [b"%d" % number for number in range(4, 25)]
            shares: set[bytes] = set()
            while len(shares) < 25:
                for arrival in await member.arrivals(1):
                    assert arrival.acknowledge is not None
                    arrival.acknowledge()
                    shares.add(arrival.message.payload)


async def test_a_store_that_is_closed_first_ends_quietly() -> None:
    async with open_adapter("memory:") as store, delivering(store, limits=SMALL) as broker:
        session, behind, member = (broker.session(name) for name in ("live", "behind", "member"))
        await session.subscribe("a/#")
        await behind.subscribe("a/#", "b")
        options = SubscriptionOptions(1)
        await member.distributor.join_group(member.inbox, "g", "a/+", options, after=Position(0))
        await member.distributor.join_group(member.inbox, "g", "not/there", options, after=Position(0))
        await member.distributor.replay(member.inbox, "a/+", Start.earliest(), options)
        for number in range(30):
            await broker.publish("a/1", b"%d" % number)
        await behind.reach(lambda inbox: inbox.is_behind)
        await store.aclose()
        assert len(await behind.take(6)) == 6
        await trio.sleep(0.1)
        with pytest.raises(trio.ClosedResourceError):
            await session.subscribe("c")
        for one in (session, behind, member):
            one.close()
        assert broker.distributor.statistics().inboxes == 0


async def test_a_burst_larger_than_an_inbox_does_not_make_a_session_fall_behind_that_takes_it() -> None:
    """Its messages were read from the store again, by each such session for itself."""
    async with open_adapter("memory:") as store, trio.open_nursery() as nursery:
        brittle = Brittle(store)
        async with delivering(brittle) as broker:  # type: ignore[arg-type]
            is_ready = trio.Event()

            def wake() -> None:
                is_ready.set()

            inbox = broker.distributor.open_inbox("c", position_lsn=None, on_ready=wake)
            await broker.distributor.subscribe(inbox, "a", SubscriptionOptions(1))
            payloads = [b"%d" % number for number in range(3 * DeliveryLimits().max_queued_count)]
            nursery.start_soon(broker.publish, "a", *payloads)
            taken: list[bytes] = []
            with trio.fail_after(PATIENCE_S):
                while len(taken) < len(payloads):
                    await is_ready.wait()
                    is_ready = trio.Event()
                    taken += [arrival.message.payload for arrival in inbox.take(len(payloads))]
            assert taken == payloads
            assert [until_lsn for _, _, until_lsn in brittle.followed if until_lsn is not None] == []
