"""`FairQueue` never says that more has been read than was, and says it all once it was; shards take turns."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shards.subscriptions.fair_queue import FairQueue, Standing

SHARDS = 5


@attrs.define(eq=False)
class Log:
    """A shard of the model: the lsns of its records, of which the feed has read ``read_count``."""

    lsns: list[int] = attrs.Factory(list)


class Feed(RuleBasedStateMachine):
    """Shards publish, a feed reads them in turns of any length, shards go; in between it is asked how far it is."""

    @initialize(until=st.none() | st.integers(0, 25), before=st.lists(st.integers(0, SHARDS - 1), max_size=12))
    def open(self, until: int | None, before: list[int]) -> None:
        self.logs = {number: Log() for number in range(SHARDS)}
        self.committed_lsn = 0
        self.until = until
        for number in before:
            self.committed_lsn += 1
            self.logs[number].lsns.append(self.committed_lsn)
        self.start_lsn = len(before) // 2
        self.told_lsn = -1
        self.queue: FairQueue[Standing] = FairQueue(
            self.start_lsn,
            until,
            lambda: self.committed_lsn,
            lambda standing: len(self.logs[standing.shard_id].lsns),
        )
        # The shards that have something newer are found a while after the feed begins.
        self.queue.finding = True
        self.unread_turns: dict[int, int] = {}
        self.postponed: list[Standing] = []

    @precondition(lambda self: self.queue.finding)
    @rule()
    def find(self) -> None:
        for number, log in self.logs.items():
            if number not in self.queue and log.lsns and log.lsns[-1] > self.start_lsn:
                self.attach(number)
        self.queue.finding = False

    def attach(self, number: int) -> None:
        lsns = self.logs[number].lsns
        offset = sum(lsn <= self.start_lsn for lsn in lsns)
        was_waiting = self.queue.waiting_count > 0
        assert self.queue.attach(Standing(number, offset)) is not was_waiting

    @rule(number=st.integers(0, SHARDS - 1), count=st.integers(1, 3))
    def publish(self, number: int, count: int) -> None:
        for _ in range(count):
            self.committed_lsn += 1
            self.logs[number].lsns.append(self.committed_lsn)
        standing = self.queue.get(number)
        if standing is None:
            self.attach(number)
        elif standing not in self.postponed:
            self.queue.queue(standing)

    @rule(lsns=st.integers(1, 5))
    def others_commit(self, lsns: int) -> None:
        self.committed_lsn += lsns

    @precondition(lambda self: self.queue.waiting_count)
    @rule(count=st.integers(1, 4), also=st.none() | st.integers(0, SHARDS - 1))
    def read(self, count: int, also: int | None) -> None:
        """A turn; another shard may publish while it reads."""
        standing = self.queue.next()
        if standing is None:
            return
        if also is not None:
            self.publish(also, 1)
        lsns = self.logs[standing.shard_id].lsns
        assert standing.offset is not None
        readable = len(lsns) if self.until is None else sum(lsn <= self.until for lsn in lsns)
        standing.offset = max(standing.offset, min(standing.offset + count, readable))
        self.queue.done(standing, more=standing.offset < readable)

    @precondition(lambda self: self.queue.waiting_count)
    @rule()
    def fail_to_read(self) -> None:
        standing = self.queue.next()
        if standing is not None:
            self.queue.postpone(standing)
            self.postponed.append(standing)

    @precondition(lambda self: self.postponed)
    @rule()
    def try_again(self) -> None:
        standing = self.postponed.pop()
        assert self.queue.resume(standing) is (self.queue.get(standing.shard_id) is standing)

    @rule(number=st.integers(0, SHARDS - 1))
    def delete(self, number: int) -> None:
        standing = self.queue.get(number)
        if standing is not None:
            self.queue.remove(standing)
        self.logs[number] = Log()

    @rule()
    def ask(self) -> None:
        reached = self.queue.reached_lsn()
        assert reached >= self.told_lsn, "it has gone back"
        self.told_lsn = reached
        self.check(reached)
        if self.queue.is_idle and not self.queue.has_postponed:
            assert reached == (self.committed_lsn if self.until is None else min(self.committed_lsn, self.until))

    def check(self, reached: int) -> None:
        for number, log in self.logs.items():
            standing = self.queue.get(number)
            due = [at for at, lsn in enumerate(log.lsns) if self.start_lsn < lsn <= reached]
            if due:
                assert standing is not None
                assert standing.offset is not None
                assert standing.offset > due[-1], f"lsn {reached} is told, but shard {number} is at {standing.offset}"

    @invariant()
    def the_end_is_the_end(self) -> None:
        if not hasattr(self, "queue") or not self.queue.is_over:
            return
        assert self.until is not None
        self.check(self.until)

    @rule()
    def progress_is_made_under_load(self) -> None:
        """However much keeps coming, what is committed now is reported after each subscriber had some turns."""
        if self.queue.finding or self.until is not None or self.queue.has_postponed:
            return
        wanted = self.committed_lsn
        for _ in range(4):
            self.queue.reached_lsn()
            for _ in range(self.queue.waiting_count):
                standing = self.queue.next()
                assert standing is not None or not self.queue.waiting_count
                if standing is None:
                    break
                standing.offset = len(self.logs[standing.shard_id].lsns)
                self.publish(standing.shard_id, 1)
                self.queue.done(standing, more=True)
        assert self.queue.reached_lsn() >= wanted
        self.ask()


TestFeed = Feed.TestCase
TestFeed.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def queue_of(*standings: Standing) -> FairQueue[Standing]:
    queue: FairQueue[Standing] = FairQueue(0, None, lambda: 0, lambda standing: 0)
    for standing in standings:
        queue.attach(standing)
    return queue


def test_shards_take_turns() -> None:
    """A shard that always has more does not keep the others waiting."""
    queue = queue_of(*(Standing(number, 0) for number in range(3)))
    turns = []
    for _ in range(9):
        standing = queue.next()
        assert standing is not None
        turns.append(standing.shard_id)
        queue.done(standing, more=True)
    assert turns == [0, 1, 2] * 3


def test_a_shard_waits_once_however_often_it_publishes() -> None:
    standing = Standing(7, 0)
    queue = queue_of(standing)
    assert not queue.queue(standing)
    assert queue.waiting_count == 1
    assert queue.next() is standing
    assert queue.next() is None
    assert queue.queue(standing)


@pytest.mark.parametrize("more", [False, True])
def test_what_is_removed_or_cleared_during_its_turn_does_not_come_back(more: bool) -> None:
    for end in ("remove", "clear"):
        standing = Standing(1, 0)
        queue = queue_of(standing)
        taken = queue.next()
        assert taken is standing
        if end == "remove":
            queue.remove(standing)
        else:
            queue.clear()
        queue.done(standing, more=more)
        assert 1 not in queue
        assert len(queue) == 0
        assert queue.next() is None


def test_a_successor_is_not_taken_for_the_one_that_was_removed() -> None:
    """A shard that is deleted and made again under its number has a standing of its own."""
    first, second = Standing(1, 5), Standing(1, 0)
    queue = queue_of(first)
    queue.remove(first)
    queue.attach(second)
    assert queue.next() is second
    assert queue.next() is None
    queue.remove(first)
    assert queue.get(1) is second


def test_a_feed_that_ends_before_it_begins_reported_an_lsn_and_then_a_lower_one() -> None:
    queue: FairQueue[Standing] = FairQueue(1, 0, lambda: 2, lambda standing: 0)
    queue.finding = True
    assert queue.reached_lsn() == 0
    queue.finding = False
    assert queue.reached_lsn() == 0


def test_a_round_looked_at_every_shard_that_waits_when_it_began() -> None:
    """With 100,000 shards waiting, one question how far a feed is took 20 ms of the event loop."""
    looked_at = 0

    def published(standing: Standing) -> int:
        nonlocal looked_at
        looked_at += 1
        return 1

    queue: FairQueue[Standing] = FairQueue(0, None, lambda: 7, published)
    for number in range(100):
        queue.attach(Standing(number, 0))
    assert queue.reached_lsn() == 0
    assert looked_at == 0
    for number in range(100):
        assert queue.reached_lsn() == 0
        standing = queue.next()
        assert standing is not None
        assert looked_at == number + 1
        standing.offset = 1
        # Each has more to read, so that there is always one that waits.
        queue.done(standing, more=True)
    assert queue.reached_lsn() == 7
