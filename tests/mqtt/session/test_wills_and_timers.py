"""What is due happens once: wills, delayed messages, ends of sessions, whichever brokers are alive then."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from broker_adapter.changes import Changes
from broker_adapter.mqtt.model.message import DelayedPublish, Message, message_of
from broker_adapter.mqtt.session import Retained
from broker_adapter.mqtt.session.keys import TimerKey
from broker_adapter.mqtt_codec.properties import Properties
from shards.format.record import StoredRecord
from shards.topics.names import MAX_SHARD_NAME_BYTES
from tests.mqtt.session.brokers import START_US, cluster, will
from tests.mqtt.session.faults import Path

NO_SHARD = "long/" * (MAX_SHARD_NAME_BYTES // 5 + 1)
"""A topic that is no name of a shard: whatever is published to it is refused."""


@pytest.mark.slow("days pass on a simulated clock")
async def test_a_will_without_delay_is_published_with_the_end_of_the_connection(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(will=will())).session
        await one.sessions.close(session, publish_will=True)
        assert await brokers.published() == [b"gone"]
        await trio.sleep(5000)
        assert await brokers.published() == [b"gone"]
        assert one.sessions.statistics.will_count == 1


@pytest.mark.slow("days pass on a simulated clock")
async def test_a_client_that_takes_leave_takes_its_will_along(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(will=will(delay_s=5))).session
        await one.sessions.close(session, publish_will=False)
        await trio.sleep(5000)
        assert await brokers.published() == []


@pytest.mark.slow("waits for the delays of wills")
async def test_a_will_is_published_after_its_delay_once_among_three_brokers(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, *_ = [await brokers.start(name) for name in ("one", "two", "three")]
        for number in range(100):
            session = (await one.open(f"c{number}", will=will(delay_s=30, payload=b"%d" % number))).session
            await one.sessions.close(session, publish_will=True)
        await trio.sleep(29)
        assert await brokers.published() == []
        await trio.sleep(6)
        assert sorted(await brokers.published(), key=int) == [b"%d" % number for number in range(100)]
        await trio.sleep(3600)
        assert len(await brokers.published()) == 100
        assert await brokers.keys() == []


async def test_brokers_share_the_due_timers_instead_of_racing_for_them(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        all_of_them = [await brokers.start(name) for name in ("one", "two", "three")]
        await trio.sleep(20)
        for number in range(300):
            session = (await all_of_them[0].open(f"c{number}", will=will(delay_s=10))).session
            await all_of_them[0].sessions.close(session, publish_will=True)
        await trio.sleep(11.5)
        fired = [broker.sessions.statistics.fired_count for broker in all_of_them]
        assert sum(fired) == 300
        assert min(fired) > 50
        assert sum(broker.sessions.statistics.conflict_count for broker in all_of_them) == 0


async def test_timers_of_a_broker_that_died_are_fired_by_the_others(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await trio.sleep(20)
        for number in range(50):
            session = (await one.open(f"c{number}", will=will(delay_s=10))).session
            await one.sessions.close(session, publish_will=True)
        one.crash()
        await trio.sleep(14)
        assert len(await brokers.published()) == 50
        assert two.sessions.statistics.fired_count == 50


async def test_a_client_that_returns_before_the_delay_is_over_keeps_its_old_will_from_being_published(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        session = (await one.open(will=will(delay_s=30))).session
        await one.sessions.close(session, publish_will=True)
        await trio.sleep(29)
        await two.open()
        await trio.sleep(1000)
        assert await brokers.published() == []


async def test_a_session_that_ends_before_the_delay_publishes_the_will_with_its_end(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=10, will=will(delay_s=100))).session
        await one.sessions.close(session, publish_will=True)
        await trio.sleep(9)
        assert await brokers.published() == []
        await trio.sleep(5)
        assert await brokers.published() == [b"gone"]
        assert await brokers.keys() == []


@pytest.mark.few_cases(2, "a will for each way to end, under each of several delays")
@pytest.mark.parametrize(
    ("expiry_s", "delay_s", "clean_start", "published"),
    [
        (3600, None, False, True),  # the connection ends, and the will has no delay
        (3600, 30, False, False),  # the client is back before the delay is over
        (3600, 30, True, True),  # the session ends
        (0, 30, False, True),  # the session ends with its connection
        (0, None, True, True),
    ],
)
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_takeover_publishes_the_will_as_the_standard_says(
    autojump_clock: MockClock, where: str, expiry_s: int, delay_s: int | None, clean_start: bool, published: bool
) -> None:
    async with cluster() as brokers:
        one, two = await brokers.start("one"), await brokers.start("two")
        await one.open(expiry_s=expiry_s, will=will(delay_s=delay_s))
        await (one if where == "here" else two).open(clean_start=clean_start)
        await trio.sleep(1000)
        assert await brokers.published() == ([b"gone"] if published else [])


async def test_a_clean_start_ends_the_waiting_session_and_publishes_its_will(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(will=will(delay_s=30))).session
        await one.sessions.close(session, publish_will=True)
        assert not (await one.open(clean_start=True)).present
        assert await brokers.published() == [b"gone"]
        assert [key for key in await brokers.keys() if key.startswith("timer/")] == []


async def test_a_retained_will_with_expiry_is_dated_when_it_is_published(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        wanted = will(retain=True)
        wanted = type(wanted)(
            wanted.topic,
            wanted.payload,
            2,
            True,
            Properties(will_delay_interval=10, message_expiry_interval=60, content_type="x"),
        )
        session = (await one.open(will=wanted)).session
        await trio.sleep(100)
        await one.sessions.close(session, publish_will=True)
        await trio.sleep(14)
        (record,) = (await brokers.store.read("will", 0)).records
        assert isinstance(record, StoredRecord)
        message = message_of("will", record)
        published_s = (message.timestamp_us - START_US) / 1e6
        assert 110 <= published_s <= 113
        assert message.expires_at_us == message.timestamp_us + 60_000_000
        assert (message.qos, message.publisher, message.properties.content_type) == (2, "c", "x")
        ((_, retained),) = (await Retained(brokers.store, clock=brokers.clock).page("will", b"")).messages
        assert retained.payload == b"gone"


async def test_a_will_that_the_store_refuses_is_dropped_and_holds_nothing_up(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        session = (await one.open(expiry_s=100, will=will(topic=NO_SHARD))).session
        await one.sessions.close(session, publish_will=True)
        assert one.sessions.statistics.refused_count == 1
        assert (await one.open()).present


async def test_the_shard_of_a_will_that_was_deleted_meanwhile_is_made_again(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        await brokers.store.create_shard("will")
        publish = one.sessions._commits._changes_for

        async def changes_for(message: Message) -> Changes:
            changes = await publish(message)
            if (await brokers.store.describe_shard("will")).shard_id == 1:
                await brokers.store.delete_shard("will")
            return changes

        one.sessions._commits._changes_for = changes_for
        await brokers.store.delete_shard("will")
        await brokers.store.create_shard("will")
        session = (await one.open(will=will())).session
        await one.sessions.close(session, publish_will=True)
        assert await brokers.published() == [b"gone"]


# Delayed messages


async def test_delayed_messages_are_published_once_each_in_the_order_in_which_they_are_due(
    autojump_clock: MockClock,
) -> None:
    async with cluster() as brokers:
        one, *_ = [await brokers.start(name) for name in ("one", "two", "three")]
        for number in reversed(range(60)):
            message = Message("late", b"%d" % number, 1, publisher="p")
            due_us = brokers.clock.now_us() + (10 + 4 * number) * 1_000_000
            await brokers.store.commit(Changes(puts=one.sessions.delay(message, DelayedPublish(due_us))))
        await trio.sleep(9)
        assert await brokers.published("late") == []
        await trio.sleep(300)
        assert await brokers.published("late") == [b"%d" % number for number in range(60)]
        assert await brokers.keys() == []


async def test_a_delayed_message_survives_every_broker(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        puts = one.sessions.delay(Message("late", b"v", 1), DelayedPublish(brokers.clock.now_us() + 60_000_000))
        await brokers.store.commit(Changes(puts=puts))
        one.crash()
        await trio.sleep(100)
        assert await brokers.published("late") == []
        await brokers.start("two")
        await trio.sleep(4)
        assert await brokers.published("late") == [b"v"]


async def test_a_delayed_message_that_has_expired_is_not_published(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        now_us = brokers.clock.now_us()
        message = Message("late", b"v", 1, expires_at_us=now_us + 5_000_000)
        await brokers.store.commit(Changes(puts=one.sessions.delay(message, DelayedPublish(now_us + 6_000_000))))
        await trio.sleep(20)
        assert await brokers.published("late") == []
        assert await brokers.keys() == []


async def test_a_delayed_message_that_is_refused_is_dropped_and_others_come(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        now_us = brokers.clock.now_us()
        for topic in (NO_SHARD, "late"):
            await brokers.store.commit(
                Changes(puts=one.sessions.delay(Message(topic, b"v", 1), DelayedPublish(now_us + 1_000_000)))
            )
        await trio.sleep(10)
        assert await brokers.published("late") == [b"v"]
        assert one.sessions.statistics.refused_count == 1
        assert await brokers.keys() == []


async def test_an_effect_happens_once_though_answers_are_lost(autojump_clock: MockClock) -> None:
    async with cluster(wrap=Path) as brokers:
        all_of_them = [await brokers.start(name) for name in ("one", "two", "three")]
        for broker in all_of_them:
            for carried_out in (True, False, True):
                broker.adapter.fail(lambda name, argument: name == "commit", carried_out=carried_out)
        for number in range(30):
            message = Message("late", b"%d" % number, 1)
            due_us = brokers.clock.now_us() + 5_000_000
            await brokers.store.commit(Changes(puts=all_of_them[0].sessions.delay(message, DelayedPublish(due_us))))
        await trio.sleep(60)
        assert sorted(await brokers.published("late"), key=int) == [b"%d" % number for number in range(30)]
        assert [broker.adapter.failed_count for broker in all_of_them] == [3, 3, 3]


@pytest.mark.slow("stores a hundred thousand timers")
async def test_a_hundred_thousand_timers_far_away_cost_a_look_one_page(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        for number in range(0, 100_000, 1000):
            message = Message("late", b"v", 1)
            due_us = brokers.clock.now_us() + 10**12
            puts = [put for _ in range(1000) for put in one.sessions.delay(message, DelayedPublish(due_us + number))]
            await brokers.store.commit(Changes(puts=tuple(puts)))
        read = 0
        page = brokers.store._engine.scan_state  # type: ignore[attr-defined]

        async def counted(*args: object) -> tuple[list[object], bool]:
            nonlocal read
            found: tuple[list[object], bool] = await page(*args)
            read += len(found[0])
            return found

        brokers.store._engine.scan_state = counted  # type: ignore[attr-defined]
        assert await one.sessions._timers.fire_due(brokers.tasks) == 0
        assert read <= 1000


@pytest.mark.slow("stores thousands of timers")
async def test_timers_that_fell_due_without_a_broker_are_fired_without_pauses(autojump_clock: MockClock) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        await brokers.store.create_shard("late")
        due_us = brokers.clock.now_us() + 10_000_000
        for first in range(0, 5000, 1000):
            messages = [Message("late", b"%d" % number, 1) for number in range(first, first + 1000)]
            puts = [put for message in messages for put in one.sessions.delay(message, DelayedPublish(due_us))]
            await brokers.store.commit(Changes(puts=tuple(puts)))
        one.crash()
        await trio.sleep(1000)
        two = await brokers.start("two")
        await trio.sleep(2.5)
        assert two.sessions.statistics.delayed_count == 5000


async def test_timers_of_no_known_kind_and_broken_ones_are_left_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster() as brokers:
        one = await brokers.start("one")
        strange = [
            TimerKey(1, "newer", b"x").encode(),
            b"mqtt/timer/zz",
            TimerKey(1, "will", b"nobody").encode(),
        ]
        for key in strange:
            await brokers.store.put_state(key, b"?")
        broken = TimerKey(2, "cleanup", b"x").encode()
        await brokers.store.put_state(broken, b"\x01?")
        await brokers.store.commit(Changes(puts=one.sessions.delay(Message("late", b"v", 1), DelayedPublish(3))))
        await trio.sleep(30)
        assert await brokers.published("late") == [b"v"]
        assert await brokers.store.get_state(strange[2]) is None, "a timer of a session that is gone goes too"
        assert await brokers.store.get_state(strange[0]) is not None
        assert sum("unknown to this broker" in message for message in caplog.messages) == 1, (
            "said once, not each second"
        )
