"""`FairQueue` never says that more has been read than was, and says it all once it was; shards take turns."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shards.subscriptions.fair_queue import FairQueue, QueuedPosition

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
        self.queue: FairQueue[QueuedPosition] = FairQueue(
            self.start_lsn,
            until,
            lambda: self.committed_lsn,
            lambda position: len(self.logs[position.shard_id].lsns),
        )
        # The shards that have something newer are found a while after the feed begins.
        self.queue.finding = True
        self.unread_turns: dict[int, int] = {}
        self.postponed: list[QueuedPosition] = []

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
        assert self.queue.attach(QueuedPosition(number, offset)) is not was_waiting

    @rule(number=st.integers(0, SHARDS - 1), count=st.integers(1, 3))
    def publish(self, number: int, count: int) -> None:
        for _ in range(count):
            self.committed_lsn += 1
            self.logs[number].lsns.append(self.committed_lsn)
        position = self.queue.get(number)
        if position is None:
            self.attach(number)
        elif position not in self.postponed:
            self.queue.queue(position)

    @rule(lsns=st.integers(1, 5))
    def others_commit(self, lsns: int) -> None:
        self.committed_lsn += lsns

    @precondition(lambda self: self.queue.waiting_count)
    @rule(count=st.integers(1, 4), also=st.none() | st.integers(0, SHARDS - 1))
    def read(self, count: int, also: int | None) -> None:
        """A turn; another shard may publish while it reads."""
        position = self.queue.next()
        if position is None:
            return
        if also is not None:
            self.publish(also, 1)
        lsns = self.logs[position.shard_id].lsns
        assert position.offset is not None
        readable = len(lsns) if self.until is None else sum(lsn <= self.until for lsn in lsns)
        position.offset = max(position.offset, min(position.offset + count, readable))
        self.queue.done(position, more=position.offset < readable)

    @precondition(lambda self: self.queue.waiting_count)
    @rule()
    def fail_to_read(self) -> None:
        position = self.queue.next()
        if position is not None:
            self.queue.postpone(position)
            self.postponed.append(position)

    @precondition(lambda self: self.postponed)
    @rule()
    def try_again(self) -> None:
        position = self.postponed.pop()
        assert self.queue.resume(position) is (self.queue.get(position.shard_id) is position)

    @rule(number=st.integers(0, SHARDS - 1))
    def delete(self, number: int) -> None:
        position = self.queue.get(number)
        if position is not None:
            self.queue.remove(position)
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
            position = self.queue.get(number)
            due = [at for at, lsn in enumerate(log.lsns) if self.start_lsn < lsn <= reached]
            if due:
                assert position is not None
                assert position.offset is not None
                assert position.offset > due[-1], f"lsn {reached} reported, but shard {number} is at {position.offset}"

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
                position = self.queue.next()
                assert position is not None or not self.queue.waiting_count
                if position is None:
                    break
                position.offset = len(self.logs[position.shard_id].lsns)
                self.publish(position.shard_id, 1)
                self.queue.done(position, more=True)
        assert self.queue.reached_lsn() >= wanted
        self.ask()


TestFeed = Feed.TestCase
TestFeed.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def queue_of(*positions: QueuedPosition) -> FairQueue[QueuedPosition]:
    queue: FairQueue[QueuedPosition] = FairQueue(0, None, lambda: 0, lambda position: 0)
    for position in positions:
        queue.attach(position)
    return queue


def test_shards_take_turns() -> None:
    """A shard that always has more does not keep the others waiting."""
    queue = queue_of(*(QueuedPosition(number, 0) for number in range(3)))
    turns = []
    for _ in range(9):
        position = queue.next()
        assert position is not None
        turns.append(position.shard_id)
        queue.done(position, more=True)
    assert turns == [0, 1, 2] * 3


def test_a_shard_waits_once_however_often_it_publishes() -> None:
    position = QueuedPosition(7, 0)
    queue = queue_of(position)
    assert not queue.queue(position)
    assert queue.waiting_count == 1
    assert queue.next() is position
    assert queue.next() is None
    assert queue.queue(position)


@pytest.mark.parametrize("more", [False, True])
def test_what_is_removed_or_cleared_during_its_turn_does_not_come_back(more: bool) -> None:
    for end in ("remove", "clear"):
        position = QueuedPosition(1, 0)
        queue = queue_of(position)
        taken = queue.next()
        assert taken is position
        if end == "remove":
            queue.remove(position)
        else:
            queue.clear()
        queue.done(position, more=more)
        assert 1 not in queue
        assert len(queue) == 0
        assert queue.next() is None


def test_a_successor_is_not_taken_for_the_one_that_was_removed() -> None:
    """A shard that is deleted and made again under its number has a position of its own."""
    first, second = QueuedPosition(1, 5), QueuedPosition(1, 0)
    queue = queue_of(first)
    queue.remove(first)
    queue.attach(second)
    assert queue.next() is second
    assert queue.next() is None
    queue.remove(first)
    assert queue.get(1) is second


def test_a_feed_that_ends_before_it_begins_reported_an_lsn_and_then_a_lower_one() -> None:
    queue: FairQueue[QueuedPosition] = FairQueue(1, 0, lambda: 2, lambda position: 0)
    queue.finding = True
    assert queue.reached_lsn() == 0
    queue.finding = False
    assert queue.reached_lsn() == 0


def test_a_round_looked_at_every_shard_that_waits_when_it_began() -> None:
    """With 100,000 shards waiting, one question how far a feed is took 20 ms of the event loop."""
    looked_at = 0

    def published(position: QueuedPosition) -> int:
        nonlocal looked_at
        looked_at += 1
        return 1

    queue: FairQueue[QueuedPosition] = FairQueue(0, None, lambda: 7, published)
    for number in range(100):
        queue.attach(QueuedPosition(number, 0))
    assert queue.reached_lsn() == 0
    assert looked_at == 0
    for number in range(100):
        assert queue.reached_lsn() == 0
        position = queue.next()
        assert position is not None
        assert looked_at == number + 1
        position.offset = 1
        # Each has more to read, so that there is always one that waits.
        queue.done(position, more=True)
    assert queue.reached_lsn() == 7
