"""What no session gets from a tail is not decoded, and no session misses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import trio

from broker_adapter import Delivery, MappingRule, TopicMapping, open_adapter
from broker_adapter.mqtt.delivery import DeliveryLimits
from broker_adapter.mqtt.delivery.shared_tails import SharedTails
from broker_adapter.mqtt.model.message import Message
from tests.mqtt.delivery.delivering import SMALL, Brittle, Delivering, delivering, until
from tests.mqtt.delivery.scripted import record

LINGERING = DeliveryLimits(linger_s=60.0)
FOLDED = TopicMapping([MappingRule("folded/#", "fold", 1)])


@asynccontextmanager
async def watched(
    limits: DeliveryLimits = LINGERING, mapping: TopicMapping | None = None
) -> AsyncIterator[tuple[Delivering, Brittle]]:
    async with open_adapter("memory:") as store:
        brittle = Brittle(store)
        async with delivering(brittle, limits=limits, mapping=mapping) as broker:  # type: ignore[arg-type]
            yield broker, brittle


def decoded(store: Brittle) -> Iterator[bool]:
    return (delivery.is_decoded for delivery in store.delivered)


async def test_a_tail_of_a_session_that_is_away_decodes_nothing_and_the_session_gets_all_of_it_once() -> None:
    async with watched() as (broker, store):
        session = broker.session()
        since_lsn = await session.subscribe("a/#")
        await broker.publish("a/1", b"0")
        assert await session.take(1) == [b"0"]
        first_lsn = await broker.last_lsn("a/1")
        await session.reach(lambda inbox: inbox.safe_lsn >= first_lsn)
        session.close()
        store.delivered.clear()
        for number in range(1, 6):
            await broker.publish("a/1", b"%d" % number)
        await until(lambda: bool(store.delivered) and store.delivered[-1].next_offset == 6)
        assert not any(decoded(store))
        again = broker.session(position_lsn=session.inbox.safe_lsn)
        await again.restore({"a/#": since_lsn})
        await broker.publish("a/1", b"6")
        assert await again.take(6) == [b"%d" % number for number in range(1, 7)]
        await again.assert_silent()


async def test_a_subscription_made_while_a_tail_decodes_nothing_begins_behind_what_it_passed() -> None:
    async with watched() as (broker, store):
        session = broker.session()
        await session.subscribe("a/#")
        session.close()
        await broker.publish("a/1", b"before")
        await until(lambda: len(store.delivered) == 1)
        other = broker.session("other")
        await other.subscribe("a/1")
        await broker.publish("a/1", b"after")
        assert await other.take(1) == [b"after"]
        await other.assert_silent()


async def test_a_shard_that_no_subscription_matches_is_not_decoded_although_others_of_the_tail_are() -> None:
    async with watched(DeliveryLimits(linger_s=60.0, max_tails=1)) as (broker, store):
        session, other = broker.session(), broker.session("other")
        await session.subscribe("a/1")
        await other.subscribe("a/2")
        assert [target for target in store.open_targets if target.startswith("a")] == ["a/#"]
        await broker.publish("a/3", b"for no session")
        await broker.publish("a/1", b"1")
        assert await session.take(1) == [b"1"]
        assert [(one.shard, one.is_decoded) for one in store.delivered] == [("a/3", False), ("a/1", True)]


async def test_records_that_name_topics_are_decoded_to_find_out_which_session_gets_them() -> None:
    async with watched(mapping=FOLDED) as (broker, _):
        session = broker.session()
        await session.subscribe("folded/1")
        await broker.publish("fold/0", b"")
        await broker.append("fold/0", *(Message(topic, topic.encode(), 1) for topic in ("folded/2", "folded/1")))
        assert await session.take(1) == [b"folded/1"]
        await session.assert_silent()


async def test_a_message_that_is_not_kept_reaches_a_session_that_is_behind() -> None:
    """A session that is behind reads the others from the store, but these are nowhere else."""
    async with watched(SMALL) as (broker, _):
        session = broker.session()
        await session.subscribe("a")
        await broker.publish("a", *(b"%d" % number for number in range(20)))
        await session.reach(lambda inbox: inbox.is_behind)
        assert len(await session.take(3)) == 3
        await broker.publish_live("a", b"live")
        taken = await session.take(18)
        assert b"live" in taken


async def test_what_a_tail_passes_undecoded_counts_as_handed_out() -> None:
    """A session that catches up reads the store at least up to there, since the tail does not bring it again."""

    class Ignoring:
        def began(self, *_: object) -> None: ...

        def delivered(self, *_: object) -> None: ...

        def progressed(self, *_: object) -> None: ...

    def never() -> list[object]:
        raise AssertionError("it was decoded")

    async with trio.open_nursery() as nursery:
        tails = SharedTails(None, Ignoring(), nursery, max_count=1, linger_s=0.0)  # type: ignore[arg-type]
        tails.delivered(None, Delivery("a", never, 5, last_lsn=7))  # type: ignore[arg-type]
        assert tails.handed_out_lsn == 7
        tails.delivered(None, Delivery("a", [record(6, b"older")], 6))  # type: ignore[arg-type]
        assert tails.handed_out_lsn == 7
