"""Where a subscription begins: nothing that the store takes behind that is left out, whatever was shown before it.

A record in memory mode is shown ahead of records in file mode that have lower lsns and wait for the disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
import trio.testing

from broker_adapter import Delivery, MappingRule, Progress, TopicMapping
from broker_adapter.mqtt.delivery import DeliveryLimits
from broker_adapter.mqtt.model.position import Position
from tests.mqtt.delivery.delivering import Delivering, Session, delivering
from tests.mqtt.delivery.scripted import ScriptedStore, record


@asynccontextmanager
async def scripted(committed_lsn: int = 99, **options: object) -> AsyncIterator[tuple[Delivering, ScriptedStore]]:
    store = ScriptedStore(committed_lsn)
    async with delivering(store, **options) as broker:  # type: ignore[arg-type]
        yield broker, store


def one(shard: str, lsn: int, payload: bytes, offset: int = 0, topic: str = "") -> Delivery:
    return Delivery(shard, [record(lsn, payload, offset, topic)], offset + 1)


async def begin(store: ScriptedStore, session: Session, nursery: trio.Nursery, topic_filter: str) -> None:
    """Subscribe up to where the store is asked, which does not answer."""
    store.answers, store.is_asked = trio.Event(), trio.Event()
    nursery.start_soon(session.subscribe, topic_filter)
    await store.is_asked.wait()


async def test_a_subscriber_loses_a_publish_in_file_mode_that_waited_while_memory_mode_went_ahead() -> None:
    """The subscription began at the lsn of the record in memory mode, so the one that was committed later was old."""
    async with scripted() as (broker, store):
        other, session = broker.session("other"), broker.session()
        await other.subscribe("memory")
        await session.subscribe("file")
        session.close()
        await store.bring("memory", one("memory", 105, b"ahead"))
        again = broker.session("again")
        await again.subscribe("file")
        await store.bring("file", one("file", 100, b"committed behind"))
        assert await again.take(1) == [b"committed behind"]


async def test_a_position_passes_a_publish_that_is_not_committed_yet() -> None:
    """The records of one shard were taken for a sign of how far the store is: what came later was thought to be had."""
    async with scripted() as (broker, store):
        session = broker.session()
        await session.subscribe("memory")
        await store.bring("memory", one("memory", 105, b"1"), one("memory", 106, b"2", 1))
        assert await session.take(2) == [b"1", b"2"]
        assert session.inbox.safe_lsn <= 99
        await session.subscribe("file")
        await store.bring("file", one("file", 100, b"committed behind"))
        assert await session.take(1) == [b"committed behind"]
        await store.bring("memory", Progress(106))
        await store.bring("file", Progress(106))
        assert session.inbox.safe_lsn == 106


async def test_a_subscriber_loses_what_a_tail_hands_out_while_it_is_being_subscribed() -> None:
    """A record that is behind the answer of the store, and came before it, had no receiver."""
    async with scripted() as (broker, store), trio.open_nursery() as nursery:
        await broker.session("other").subscribe("#")
        session = broker.session()
        await begin(store, session, nursery, "a/+")
        await store.bring("#", one("a/1", 100, b"meanwhile"), one("b/1", 101, b"of others"))
        store.answers.set()
        assert await session.take(1) == [b"meanwhile"]
        await session.assert_silent()


async def test_a_subscriber_gets_twice_what_two_tails_hand_out_while_it_is_being_subscribed() -> None:
    """Each tail was noted down for the subscription, although both brought the same records."""
    async with scripted() as (broker, store), trio.open_nursery() as nursery:
        await broker.session("other").subscribe("a/+", "+/1")
        session = broker.session()
        await begin(store, session, nursery, "a/1")
        first, second = one("a/1", 100, b"first"), one("a/1", 101, b"second", 1)
        await store.bring("a/+", first)
        await store.bring("+/1", first, second)
        await store.bring("a/+", second)
        store.answers.set()
        assert await session.take(2) == [b"first", b"second"]
        await session.assert_silent()


async def test_what_came_meanwhile_comes_once_to_a_session_that_has_it_by_another_subscription() -> None:
    async with scripted() as (broker, store), trio.open_nursery() as nursery:
        await broker.session("other").subscribe("#")
        session = broker.session()
        await session.subscribe("a/1")
        await begin(store, session, nursery, "a/+")
        await store.bring("#", one("a/1", 100, b"1"), one("a/2", 101, b"2"))
        store.answers.set()
        assert sorted(await session.take(2)) == [b"1", b"2"]
        await session.assert_silent()


async def test_what_came_meanwhile_is_not_taken_for_done_because_another_topic_of_its_shard_is_further() -> None:
    mapping = TopicMapping([MappingRule("f/#", prefix="$folded", shards=1)])
    async with scripted(mapping=mapping) as (broker, store), trio.open_nursery() as nursery:
        session = broker.session()
        await session.subscribe("f/a")
        await begin(store, session, nursery, "f/c")
        shard = "$folded/0"
        await store.bring(shard, one(shard, 100, b"c", 0, "f/c"), one(shard, 101, b"a", 1, "f/a"))
        store.answers.set()
        assert sorted(await session.take(2)) == [b"a", b"c"]
        await session.assert_silent()


async def test_messages_before_the_position_of_the_answer_are_not_for_the_subscription() -> None:
    async with scripted() as (broker, store), trio.open_nursery() as nursery:
        await broker.session("other").subscribe("#")
        session = broker.session()
        await begin(store, session, nursery, "a")
        await store.bring("#", one("a", 98, b"before"), Progress(99), one("a", 100, b"behind", 1))
        store.answers.set()
        assert await session.take(1) == [b"behind"]


async def test_more_than_may_be_kept_comes_meanwhile_and_the_store_is_asked_again() -> None:
    limits = DeliveryLimits(max_queued_count=4)
    async with scripted(limits=limits) as (broker, store), trio.open_nursery() as nursery:
        await broker.session("other").subscribe("#")
        session = broker.session()
        await begin(store, session, nursery, "a")
        for number in range(9):
            await store.bring("#", one("a", 100 + number, b"%d" % number, number))
        store.committed_lsn = 108
        store.answers.set()
        await trio.testing.wait_all_tasks_blocked()
        await store.bring("#", one("a", 109, b"then", 9))
        assert await session.take(1) == [b"then"]


async def test_a_subscription_made_while_a_window_is_read_does_not_get_messages_of_the_window() -> None:
    """The window reached beyond what was committed when the subscription began, and was read without it."""
    async with scripted() as (broker, store):
        other = broker.session("other")
        await other.subscribe("memory")
        await store.bring("memory", one("memory", 105, b"ahead"))
        session = broker.session(position_lsn=90)
        store.in_window["memory"] = [record(95, b"missed")]
        real, reading = store.follow, trio.Event()
        wait = trio.Event()

        @asynccontextmanager
        async def follow(target: str, *arguments: object, **options: object) -> AsyncIterator[object]:
            async with real(target, *arguments, **options) as feed:  # type: ignore[arg-type]
                if options.get("until_lsn") is not None:
                    reading.set()
                    await wait.wait()
                yield feed

        store.follow = follow  # type: ignore[assignment, method-assign]
        await session.restore({"memory": 90})
        await reading.wait()
        await session.subscribe("file")
        store.in_window["file"] = [record(100, b"committed behind")]
        store.committed_lsn = 110
        wait.set()
        assert sorted(await session.take(2)) == [b"committed behind", b"missed"]
        await session.assert_silent()


async def test_a_broker_that_lives_through_a_restore_of_the_store_gets_what_comes_then() -> None:
    """Offsets are given again, but lsns go on far above all that were given out before (decision 0023)."""
    async with scripted() as (broker, store):
        session = broker.session()
        await session.subscribe("#")
        await store.bring("#", one("a", 105, b"lost with the node", 7), Progress(105))
        await store.bring("#", one("a", (1 << 40) + 1, b"after the restore", 3), one("b", (1 << 40) + 2, b"other"))
        assert await session.take(3) == [b"lost with the node", b"after the restore", b"other"]
        await store.bring("#", Progress((1 << 40) + 2))
        assert session.inbox.safe_lsn == (1 << 40) + 2


async def test_positions_and_lsns_cannot_be_compared() -> None:
    assert Position(3) < Position(4)
    for compare in (lambda: Position(3) < 4, lambda: Position(3) >= 2):
        try:
            compare()
        except TypeError:
            continue
        raise AssertionError("a position was compared with a number")
    assert Position(3) != 3
