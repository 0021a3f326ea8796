"""Who was away, or takes too little, gets what it missed: all of it, once, before what comes live."""

from __future__ import annotations

import trio
import trio.testing

from broker_adapter import MappingRule, TopicMapping, open_adapter
from broker_adapter.mqtt.delivery import DeliveryLimits
from broker_adapter.mqtt.delivery.inbox import State
from broker_adapter.mqtt.model.message import Message
from shards.model import Mode, ShardConfig
from tests.mqtt.delivery.delivering import SMALL, Brittle, Delivering, delivering, until
from tests.patience import PATIENCE_S

ONE_AT_A_TIME = DeliveryLimits(max_queued_count=8, window_records=10, patience_s=0.01, max_catching_up=1, linger_s=0.0)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


async def publish_each(broker: Delivering, topic: str, start: int, end: int, **fields: int) -> None:
    for payload in numbers(start, end):
        await broker.publish(topic, payload, **fields)


async def test_a_session_that_returns_gets_what_it_missed_and_then_what_comes() -> None:
    async with delivering() as broker:
        session = broker.session()
        since_lsn = await session.subscribe("a/#")
        await publish_each(broker, "a/1", 0, 3)
        assert await session.take(2) == numbers(0, 2)
        position_lsn = session.inbox.safe_lsn
        session.close()
        await publish_each(broker, "a/1", 3, 10)
        back = broker.session(position_lsn=position_lsn)
        await back.restore({"a/#": since_lsn})
        await publish_each(broker, "a/1", 10, 12)
        payloads = [*await back.take(10)]
        while payloads[0] != b"2":
            # Its position was not told yet: QoS 1 may bring a message again.
            payloads = [*payloads[1:], *await back.take(1)]
        assert payloads == numbers(2, 12)
        await back.assert_silent()


async def test_a_subscription_counts_from_where_it_began_also_after_a_return() -> None:
    async with delivering() as broker:
        await publish_each(broker, "a", 0, 5)
        await publish_each(broker, "b", 0, 5)
        session = broker.session()
        since_lsn = await session.subscribe("b")
        session.close()
        await publish_each(broker, "b", 5, 7)
        back = broker.session(position_lsn=0)
        await back.restore({"a": since_lsn, "b": since_lsn})
        assert await back.take(2) == numbers(5, 7)
        await back.assert_silent()


async def test_what_came_before_a_session_is_not_looked_for() -> None:
    async with open_adapter("memory:") as plain:
        store = Brittle(plain)
        async with delivering(store) as broker:  # type: ignore[arg-type]
            await publish_each(broker, "a", 0, 50)
            back = broker.session(position_lsn=0)
            since_lsn = await broker.last_lsn("a")
            await publish_each(broker, "a", 50, 52)
            await back.restore({"a": since_lsn})
            assert await back.take(2) == numbers(50, 52)
            assert [after for _, after, until_lsn in store.followed if until_lsn is not None] == [since_lsn]


async def test_messages_of_topics_that_are_not_for_who_is_away_are_passed_over() -> None:
    async with delivering(keeps_offline=lambda topic: not topic.startswith("brief")) as broker:
        session = broker.session()
        since_lsn = await session.subscribe("#")
        position_lsn = session.inbox.safe_lsn
        session.close()
        await publish_each(broker, "brief/1", 0, 4)
        await publish_each(broker, "kept/1", 4, 6)
        back = broker.session(position_lsn=position_lsn)
        await back.restore({"#": since_lsn})
        await publish_each(broker, "brief/1", 6, 8)
        assert sorted(await back.take(4)) == numbers(4, 8)
        last_lsn = await broker.last_lsn("brief/1")
        await back.reach(lambda inbox: inbox.safe_lsn >= last_lsn)
        await back.assert_silent()


async def test_a_slow_session_gets_everything_in_order_and_holds_a_bounded_part_of_it() -> None:
    async with delivering(limits=SMALL) as broker:
        session, quick = broker.session(), broker.session("quick")
        await session.subscribe("#")
        await quick.subscribe("#")
        received: list[bytes] = []
        for number in range(200):
            await broker.publish(f"t/{number % 3}", b"%d" % number)
            assert await quick.take(1) == [b"%d" % number], "a slow one delays no other"
            assert session.inbox.queued_count <= 8
            if number % 10 == 0:
                received += await session.take(1)
        assert session.inbox.is_behind
        while len(received) < 200:
            received += await session.take(1)
            assert session.inbox.queued_count <= 8
        for rest in range(3):
            of_topic = [payload for payload in received if int(payload) % 3 == rest]
            assert of_topic == [b"%d" % number for number in range(200) if number % 3 == rest]
        await session.reach(lambda inbox: inbox.state is State.LIVE)
        await broker.publish("t/0", b"live")
        assert await session.take(1) == [b"live"]


async def test_a_batch_that_is_larger_than_an_inbox_is_taken_in_parts() -> None:
    async with delivering(limits=SMALL) as broker:
        session = broker.session()
        since_lsn = await session.subscribe("a")
        await broker.publish("a", *numbers(0, 100))
        back = broker.session("back", position_lsn=0)
        await back.restore({"a": since_lsn})
        for one in (session, back):
            received: list[bytes] = []
            while len(received) < 100:
                received += await one.take(1)
                assert one.inbox.queued_count <= 8
            assert received == numbers(0, 100)
            await one.assert_silent()


async def test_a_session_that_takes_nothing_costs_no_task_and_no_feed() -> None:
    async with open_adapter("memory:") as plain:
        store = Brittle(plain)
        async with delivering(store, limits=SMALL) as broker:  # type: ignore[arg-type]
            sessions = [broker.session(f"c{number}") for number in range(20)]
            for session in sessions:
                await session.subscribe("a")
            await publish_each(broker, "a", 0, 50)
            await until(lambda: broker.distributor.statistics().behind == 20)
            tasks = trio.lowlevel.current_statistics().tasks_living
            await until(lambda: broker.distributor.statistics().catching_up == 0)
            assert store.open_targets == ["$mqtt/live/+", "a"]
            for session in sessions:
                assert await session.take(50) == numbers(0, 50)
            await until(lambda: broker.distributor.statistics().behind == 0)
            assert trio.lowlevel.current_statistics().tasks_living <= tasks


async def test_sessions_that_stop_taking_in_the_middle_hold_up_no_others() -> None:
    """There is one place among those that are read for; an inbox that has it and takes nothing loses it."""
    async with delivering(limits=ONE_AT_A_TIME) as broker:
        since_lsn = await broker.session("first").subscribe("a")
        await publish_each(broker, "a", 0, 100)
        stuck = [broker.session(f"stuck{number}", position_lsn=0) for number in range(3)]
        for session in stuck:
            await session.restore({"a": since_lsn})
        back = broker.session("back", position_lsn=0)
        await back.restore({"a": since_lsn})
        assert await back.take(100) == numbers(0, 100)
        for session in stuck:
            assert await session.take(100) == numbers(0, 100)


async def test_catching_up_continues_where_its_feed_broke_off() -> None:
    async with open_adapter("memory:") as plain:
        store = Brittle(plain)
        async with delivering(store, limits=SMALL) as broker:  # type: ignore[arg-type]
            since_lsn = await broker.session("first").subscribe("+/x")
            for number in range(60):
                await broker.publish(f"{number % 4}/x", b"%d" % number)
            back = broker.session(position_lsn=0)
            await back.restore({"+/x": since_lsn})
            received: list[bytes] = []
            while len(received) < 60:
                received += await back.take(1)
                if len(received) % 15 == 0:
                    store.break_feeds()
            assert sorted(received, key=int) == numbers(0, 60)
            await back.assert_silent()


async def test_subscribing_and_unsubscribing_work_while_it_catches_up() -> None:
    async with delivering(limits=SMALL) as broker:
        since_lsn = await broker.session("first").subscribe("a", "b")
        await publish_each(broker, "a", 0, 40)
        await publish_each(broker, "b", 0, 40)
        back = broker.session(position_lsn=0)
        await back.restore({"a": since_lsn, "b": since_lsn})
        assert await back.take(4) == numbers(0, 4)
        await back.unsubscribe("b")
        assert await back.subscribe("c") >= await broker.last_lsn("a", "b")
        await broker.publish("b", b"not any more")
        await broker.publish("c", b"new")
        assert await back.take(37) == [*numbers(4, 40), b"new"]
        await back.assert_silent()


async def test_a_session_that_is_closed_while_it_catches_up_is_forgotten() -> None:
    async with delivering(limits=SMALL) as broker:
        since_lsn = await broker.session("first").subscribe("a")
        await publish_each(broker, "a", 0, 100)
        for taken in (0, 1, 10):
            back = broker.session(position_lsn=0)
            await back.restore({"a": since_lsn})
            await back.take(taken)
            await trio.testing.wait_all_tasks_blocked(0.02)
            back.close()
            assert back.inbox.safe_lsn < await broker.last_lsn("a")
        await until(lambda: broker.distributor.statistics().catching_up == 0)
        assert broker.distributor.statistics().inboxes == 1


async def test_a_filter_over_many_topics_is_caught_up_with_in_windows_whose_position_moves_on() -> None:
    async with delivering(limits=DeliveryLimits(window_records=50)) as broker:
        since_lsn = await broker.session("first").subscribe("#")
        names = [f"t/{number}" for number in range(300)]
        for _ in range(2):
            for name in names:
                await broker.publish(name, b"x")
        back = broker.session(position_lsn=0)
        await back.restore({"#": since_lsn})
        safe_lsns = []
        for _ in range(60):
            await back.take(10)
            safe_lsns.append(back.inbox.safe_lsn)
        assert len(set(safe_lsns)) >= 3
        last_lsn = await broker.last_lsn(*names)
        await back.reach(lambda inbox: inbox.safe_lsn >= last_lsn)


async def test_overlapping_and_folded_targets_are_read_once() -> None:
    mapping = TopicMapping([MappingRule("f/#", prefix="p", shards=2)])
    async with delivering(mapping=mapping) as broker:
        since_lsn = await broker.session("first").subscribe("#")
        await broker.publish("p/x", b"0")
        for shard in ("p/0", "p/1"):
            await broker.store.create_shard(shard)
        await broker.append("p/0", Message("f/1", b"1", 1), Message("f/2", b"2", 1))
        await broker.append("p/1", Message("f/3", b"3", 1))
        back = broker.session(position_lsn=0)
        await back.restore({"+/+": since_lsn, "f/+": since_lsn, "+/1": since_lsn})
        assert sorted(await back.take(4)) == numbers(0, 4)
        await back.assert_silent()


async def test_memory_and_file_mode_are_caught_up_with_together() -> None:
    async with delivering(limits=SMALL) as broker:
        since_lsn = await broker.session("first").subscribe("#")
        await broker.store.create_shard("m", ShardConfig(mode=Mode.MEMORY))
        for number in range(0, 100, 2):
            await broker.publish("m", b"%d" % number)
            await broker.publish("f", b"%d" % (number + 1))
        back = broker.session(position_lsn=0)
        await back.restore({"m": since_lsn, "f": since_lsn})
        assert sorted(await back.take(100), key=int) == numbers(0, 100)
        await back.assert_silent()


async def test_a_gap_in_a_shard_is_counted_and_passed_over() -> None:
    async with delivering(limits=SMALL) as broker:
        session = broker.session()
        await session.subscribe("a")
        await publish_each(broker, "a", 0, 60)
        await session.reach(lambda inbox: inbox.is_behind)
        await broker.store.trim("a", 50)
        received = await session.take(18)
        assert received[-10:] == numbers(50, 60)
        await publish_each(broker, "a", 60, 62)
        with trio.fail_after(PATIENCE_S):
            while received[-1] != b"61":
                received += await session.take(1)
        assert len(set(received)) == len(received)
