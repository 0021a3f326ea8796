"""How full a queue is taken to be: never emptier than it is, but for what others have under way."""

from __future__ import annotations

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.cache_queue.gauge import Depth, Gauge, depth_of, offset_with_bytes_behind
from shards.model import SegmentInfo, SegmentKind, ShardConfig, ShardInfo

RECORD_BYTES = 100


def shard(start_offset: int, segments: list[tuple[int, int]]) -> ShardInfo:
    """A shard with segments of so many records and bytes, the first of which begins at the start."""
    infos, offset = [], start_offset
    for count, size_bytes in segments:
        infos.append(SegmentInfo(SegmentKind.LOG, offset, offset + count, size_bytes, 0, True))
        offset += count
    total = sum(size_bytes for _, size_bytes in segments)
    return ShardInfo("$queue/q", 1, ShardConfig(), 0, start_offset, offset, 1, total, tuple(infos))


SHARDS = st.builds(
    shard, st.integers(0, 50), st.lists(st.tuples(st.integers(1, 40), st.integers(0, 10_000)), max_size=6)
)


@given(SHARDS, st.integers(0, 300))
def test_depth_is_the_number_of_records_between_the_cursor_and_the_end(info: ShardInfo, cursor_offset: int) -> None:
    depth = depth_of(info, cursor_offset)
    assert info.start_offset <= depth.first_offset <= depth.next_offset == info.next_offset
    assert depth.record_count == max(0, info.next_offset - max(cursor_offset, info.start_offset))
    assert 0 <= depth.size_bytes <= info.size_bytes
    assert depth.record_count or not depth.size_bytes


@given(SHARDS, st.integers(0, 300))
def test_what_is_drained_takes_no_room(info: ShardInfo, cursor_offset: int) -> None:
    assert depth_of(info, cursor_offset + 1).size_bytes <= depth_of(info, cursor_offset).size_bytes


@given(SHARDS, st.integers(0, 300), st.integers(0, 70_000))
def test_no_more_than_asked_for_is_left_and_not_much_less(info: ShardInfo, cursor_offset: int, size_bytes: int) -> None:
    depth = depth_of(info, cursor_offset)
    offset = offset_with_bytes_behind(info, depth, size_bytes)
    assert depth.first_offset <= offset <= info.next_offset
    assert depth_of(info, offset).size_bytes <= size_bytes
    if offset > depth.first_offset:
        # One record more would have been too much, but for rounding by a byte in each of the two halves.
        assert depth_of(info, offset - 1).size_bytes >= size_bytes - 1


def test_a_part_of_a_segment_counts_in_proportion() -> None:
    info = shard(10, [(10, 1000), (10, 500)])
    assert depth_of(info, 15) == Depth(15, 30, 15, 1000)
    assert offset_with_bytes_behind(info, depth_of(info, 0), 700) == 18
    assert offset_with_bytes_behind(info, depth_of(info, 0), 250) == 25
    assert offset_with_bytes_behind(info, depth_of(info, 0), 0) == 30


@attrs.define
class World:
    """A queue of records of one size, a gauge that follows it, and others who put in and drain.

    Attributes:
        next_offset: Records that are stored.
        stored: Ours of which the outcome is not known to the gauge yet: count and offset behind, None if they failed.
        others: Offsets of what others put in, as far as the gauge knows of nothing behind it.
    """

    gauge: Gauge = attrs.Factory(Gauge)
    first_offset: int = 0
    next_offset: int = 0
    stored: list[tuple[int, int | None]] = attrs.Factory(list)
    others: list[int] = attrs.Factory(list)
    asked: Depth | None = None

    def put(self, count: int) -> None:
        self.gauge.put(count, count * RECORD_BYTES)
        self.next_offset += count
        self.stored.append((count, self.next_offset))

    def put_in_vain(self, count: int) -> None:
        self.gauge.put(count, count * RECORD_BYTES)
        self.stored.append((count, None))

    def others_put(self, count: int) -> None:
        self.others += range(self.next_offset, self.next_offset + count)
        self.next_offset += count

    def drain(self, count: int) -> None:
        self.first_offset = min(self.next_offset, self.first_offset + count)

    def settle(self, count: int) -> None:
        for each, next_offset in self.stored[:count]:
            self.gauge.settled(each, each * RECORD_BYTES, next_offset)
            self.learn(next_offset or 0)
        del self.stored[:count]

    def ask(self, _count: int) -> None:
        self.gauge.begin_look()
        size_bytes = (self.next_offset - self.first_offset) * RECORD_BYTES
        self.asked = Depth(self.first_offset, self.next_offset, self.next_offset - self.first_offset, size_bytes)

    def answer(self, _count: int) -> None:
        if self.asked is not None:
            self.gauge.look(self.asked)
            self.learn(self.asked.next_offset)
            self.asked = None

    def learn(self, next_offset: int) -> None:
        self.others = [offset for offset in self.others if offset >= next_offset]

    def check(self) -> None:
        waiting = self.next_offset - self.first_offset
        assert self.gauge.record_count + len(self.others) >= waiting
        assert self.gauge.size_bytes + len(self.others) * RECORD_BYTES >= waiting * RECORD_BYTES


STEPS = st.tuples(
    st.sampled_from(
        [World.put, World.settle, World.ask, World.answer, World.put_in_vain, World.others_put, World.drain]
    ),
    st.integers(1, 5),
)
MANY_STEPS = st.integers(1, 40).flatmap(lambda count: st.lists(STEPS, min_size=count, max_size=count))


@settings(max_examples=400)
@given(MANY_STEPS)
def test_a_queue_is_never_taken_for_emptier_than_it_is(steps: list[tuple[object, int]]) -> None:
    world = World()
    for step, count in steps:
        step(world, count)  # type: ignore[operator]
        world.check()


@settings(max_examples=400)
@given(MANY_STEPS)
def test_with_nothing_in_flight_a_look_gives_the_exact_depth(steps: list[tuple[object, int]]) -> None:
    world = World()
    for step, count in steps:
        step(world, count)  # type: ignore[operator]
    world.settle(len(world.stored))
    world.ask(1)
    world.answer(1)
    assert world.gauge.record_count == world.next_offset - world.first_offset
    assert world.gauge.size_bytes == world.gauge.record_count * RECORD_BYTES


def test_a_queue_that_was_made_anew_is_not_taken_for_full() -> None:
    gauge = Gauge()
    gauge.look(Depth(900, 1000, 100, 10_000))
    gauge.begin_look()
    gauge.look(Depth(0, 5, 5, 500))
    assert (gauge.record_count, gauge.size_bytes) == (5, 500)
