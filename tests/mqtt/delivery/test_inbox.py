"""An inbox is bounded, says truly how far it has been emptied, and changes its source without losing its place."""

from __future__ import annotations

import random
import tracemalloc

import attrs
import pytest
import trio
import trio.testing

from broker_adapter.mqtt.delivery import Arrival, DeliveryLimits, Inbox
from broker_adapter.mqtt.delivery.inbox import State
from broker_adapter.mqtt.delivery.outgoing_message import ARRIVAL_BYTES, size_bytes
from broker_adapter.mqtt.model.message import Message
from shards.errors import InvalidRequestError
from shards.seams.clock import ManualClock
from tests.patience import PATIENCE_S


@attrs.define
class Reached:
    """How far tails are said to be."""

    reached_lsn: int = 0


@attrs.define
class Owner:
    """What an inbox reports to its owner."""

    ready_count: int = 0
    behind: list[Inbox] = attrs.Factory(list)
    room: list[Inbox] = attrs.Factory(list)
    reach: Reached = attrs.Factory(Reached)
    clock: ManualClock = attrs.Factory(ManualClock)

    def inbox(self, position_lsn: int = 0, **limits: int) -> Inbox:
        return Inbox(
            "c",
            position_lsn,
            on_ready=self.ready,
            on_behind=self.behind.append,
            reach=self.reach,
            limits=DeliveryLimits(**{"max_queued_count": 8, **limits}),
            clock=self.clock,
        )

    def ready(self) -> None:
        self.ready_count += 1


def arrival(lsn: int = 0, *, qos: int = 1, size: int = 1, offset: int = 0, **fields: int) -> Arrival:
    return Arrival(Message("a", bytes(size), qos, shard="a", offset=offset, lsn=lsn, **fields), qos)


def put_live(inbox: Inbox, *arrivals: Arrival, shard: str = "a") -> bool:
    return inbox.put_live(shard, arrivals, sum(map(size_bytes, arrivals)))


def lsns(arrivals: list[Arrival]) -> list[int]:
    return [one.message.lsn for one in arrivals]


def test_arrivals_are_taken_in_order() -> None:
    inbox = Owner().inbox()
    for lsn in range(1, 6):
        assert put_live(inbox, arrival(lsn))
    assert lsns(inbox.take(2)) == [1, 2]
    assert inbox.has_more
    assert lsns(inbox.take(100)) == [3, 4, 5]
    assert not inbox.has_more
    assert inbox.take(1) == []


def test_a_full_inbox_falls_behind_and_keeps_what_it_has() -> None:
    owner = Owner()
    inbox = owner.inbox(max_queued_count=3)
    assert put_live(inbox, *(arrival(lsn, offset=lsn) for lsn in range(1, 6)))
    assert (inbox.state, inbox.queued_count, owner.behind) == (State.BEHIND, 3, [inbox])
    assert inbox.live_watermark is None
    assert lsns(inbox.take(9)) == [1, 2, 3]
    assert inbox.dropped_count == 0


def test_bytes_are_bounded_too_and_one_large_message_always_fits() -> None:
    inbox = Owner().inbox(max_queued_bytes=10 * ARRIVAL_BYTES)
    assert put_live(inbox, arrival(1, size=1 << 20))
    assert not put_live(inbox, arrival(2))
    assert inbox.is_behind
    assert inbox.queued_count == 1


def test_at_qos_0_a_full_inbox_drops_and_counts_and_stays_live() -> None:
    inbox = Owner().inbox(max_queued_count=3)
    put_live(inbox, *(arrival(lsn, qos=0) for lsn in range(1, 6)))
    assert (inbox.state, inbox.dropped_count) == (State.LIVE, 2)
    assert not inbox.put_unless_full(arrival())
    assert inbox.dropped_count == 3
    inbox.take(1)
    assert inbox.put_unless_full(arrival())


def test_the_safe_lsn_stays_below_whatever_waits() -> None:
    owner = Owner()
    inbox = owner.inbox(10)
    assert inbox.safe_lsn == 10
    put_live(inbox, arrival(15), shard="b")
    put_live(inbox, arrival(12), arrival(13), shard="a")
    assert inbox.safe_lsn == 10
    owner.reach.reached_lsn = 20
    assert inbox.safe_lsn == 11
    inbox.take(1)
    assert inbox.safe_lsn == 11, "15 was taken, 12 was not"
    inbox.take(2)
    assert inbox.safe_lsn == 20
    owner.reach.reached_lsn = 5
    assert inbox.safe_lsn == 20, "it never goes back"


def test_what_is_in_no_shard_holds_no_position_up() -> None:
    owner = Owner()
    inbox = owner.inbox(10)
    owner.reach.reached_lsn = 20
    inbox.put_unless_full(arrival())
    inbox.put([arrival()], 1)
    assert inbox.safe_lsn == 20


@pytest.mark.parametrize("seed", range(20))
def test_the_safe_lsn_is_what_a_model_says(seed: int) -> None:
    source = random.Random(seed)
    owner = Owner()
    inbox = owner.inbox(max_queued_count=1000)
    waiting: list[list[int]] = []
    lsn = 0
    safe_lsn = 0
    for _ in range(200):
        if source.random() < 0.5:
            first = lsn + source.randint(-5, 5)
            run = sorted(max(safe_lsn + 1, first + number) for number in range(source.randint(1, 4)))
            put_live(inbox, *(arrival(one) for one in run), shard=source.choice("abc"))
            waiting.append(run)
            lsn = max(lsn, *run)
        elif source.random() < 0.5:
            owner.reach.reached_lsn = lsn
        count = source.randint(0, 5)
        for _ in inbox.take(count):
            waiting[0].pop(0)
            if not waiting[0]:
                waiting.pop(0)
        lowest = min((run[0] for run in waiting), default=lsn + 1)
        assert inbox.safe_lsn < lowest
        assert inbox.safe_lsn >= safe_lsn
        safe_lsn = inbox.safe_lsn
        if not waiting:
            assert safe_lsn == owner.reach.reached_lsn or safe_lsn >= owner.reach.reached_lsn


def test_what_is_held_back_while_joining_follows_what_was_read() -> None:
    owner = Owner()
    inbox = owner.inbox()
    inbox.fall_behind()
    inbox.begin_joining(10)
    assert not put_live(inbox, arrival(11))
    inbox.put_stored("a", [arrival(9)], 1)
    assert lsns(inbox.take(9)) == [9]
    inbox.watermark.raise_to(10)
    assert inbox.join()
    assert inbox.state is State.LIVE
    owner.reach.reached_lsn = 12
    assert inbox.safe_lsn == 10
    assert lsns(inbox.take(9)) == [11]
    assert inbox.safe_lsn == 12
    put_live(inbox, arrival(13))
    assert lsns(inbox.take(9)) == [13]


def test_with_too_much_held_back_it_does_not_join() -> None:
    owner = Owner()
    inbox = owner.inbox(max_queued_count=3)
    inbox.fall_behind()
    inbox.begin_joining(10)
    for lsn in (11, 12, 13, 14):
        assert not put_live(inbox, arrival(lsn)) or pytest.fail("nothing may be taken")
        if inbox.live_watermark is None:
            break
    assert inbox.state is State.BEHIND
    assert inbox.queued_count == 0
    assert not inbox.join()
    assert owner.behind == [inbox], "its reader continues"


def test_what_expired_while_it_waited_is_not_taken() -> None:
    owner = Owner()
    inbox = owner.inbox()
    acknowledged: list[int] = []
    now_us = owner.clock.now_us()
    short = arrival(1, expires_at_us=now_us + 5)
    short.acknowledge = lambda: acknowledged.append(1)
    put_live(inbox, short, arrival(2, expires_at_us=now_us + 50), arrival(3))
    owner.clock.advance(microseconds=10)
    assert lsns(inbox.take(2)) == [2, 3]
    assert acknowledged == [1], "the group need not wait for it"


def test_a_closed_inbox_takes_nothing_and_keeps_its_word() -> None:
    owner = Owner()
    inbox = owner.inbox()
    owner.reach.reached_lsn = 7
    inbox.close()
    inbox.close()
    owner.reach.reached_lsn = 0
    assert inbox.safe_lsn == 7
    assert not inbox.put_unless_full(arrival())
    inbox.fall_behind()
    assert (inbox.state, owner.behind) == (State.CLOSED, [])
    inbox.ready()
    assert owner.ready_count == 0


async def test_who_waits_for_room_gets_it_when_half_is_taken_or_it_is_closed() -> None:
    owner = Owner()
    inbox = owner.inbox()
    for lsn in range(1, 8):
        put_live(inbox, arrival(lsn))
    inbox.when_room(owner.room.append)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.wait_for_room)
        await trio.testing.wait_all_tasks_blocked()
        inbox.take(2)
        assert owner.room == []
        inbox.take(1)
        assert owner.room == [inbox]
    for lsn in range(10, 13):
        put_live(inbox, arrival(lsn))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.wait_for_room)
            await trio.testing.wait_all_tasks_blocked()
            inbox.close()


def test_removing_messages_of_another_subscription_keeps_the_rest_and_its_room() -> None:
    owner = Owner()
    inbox = owner.inbox()
    theirs = [arrival(size=100) for _ in range(6)]
    inbox.put(theirs, sum(map(size_bytes, theirs)))
    put_live(inbox, arrival(3))
    inbox.when_room(owner.room.append)
    inbox.discard(theirs.__contains__)
    assert owner.room == [inbox]
    assert inbox.queued_count == 1
    assert inbox.safe_lsn == 0
    assert lsns(inbox.take(9)) == [3]
    owner.reach.reached_lsn = 3
    assert inbox.safe_lsn == 3
    for lsn in range(4, 12):
        assert put_live(inbox, arrival(lsn))


def test_an_idle_inbox_costs_little() -> None:
    owner = Owner()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        inboxes = [owner.inbox() for _ in range(1000)]
        each = (tracemalloc.get_traced_memory()[0] - before) / len(inboxes)
    finally:
        tracemalloc.stop()
    assert each < 2000, f"{each:.0f} bytes"


def test_bounds_below_one_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="max_tails is 0"):
        DeliveryLimits(max_tails=0)
