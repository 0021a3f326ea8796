"""How far a queue is done with, when its shard is in memory and loses offsets that no record ever had."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.cache_queue import QueueMode, QueueSettings, ensure_queue, look, names
from broker_adapter.cache_queue.end_tracker import EndTracker
from broker_adapter.cache_queue.gauge import Depth, Gauge, depth_of, gaps_of, offset_with_records_behind
from broker_adapter.cache_queue.progress import known_ends, left_behind, total, unused_in
from broker_adapter.cache_queue.queue import keep_within_bounds
from broker_adapter.cache_queue.ranges import contains, covered_count, from_offset, with_offsets
from broker_adapter.cache_queue.stored import Counts, Definition, KnownEnd, Progress, Status
from broker_adapter.state_forms import encode
from shards.model import Mode, SegmentInfo, SegmentKind, ShardConfig, ShardInfo
from shards.topics.names import QUEUE_CURSOR
from tests.cache_queue.queues import NAME, driven, filled, waiting

RESERVED = 1 << 20


def shard(start_offset: int, next_offset: int, *segments: tuple[int, int], mode: Mode = Mode.MEMORY) -> ShardInfo:
    infos = tuple(
        SegmentInfo(SegmentKind.MEMORY, first, after, 100 * (after - first), 0, closed=False)
        for first, after in segments
    )
    return ShardInfo("$queue/q", 1, ShardConfig(mode=mode), 0, start_offset, next_offset, 1, 0, infos)


def test_an_empty_queue_whose_store_died_is_empty() -> None:
    """It counted 1,048,577 records after a crash: the offsets that the store had reserved for records in memory."""
    info = shard(0, RESERVED + 1)
    assert depth_of(info, 1) == Depth(1, RESERVED + 1, 0, 0)
    gauge = Gauge()
    gauge.begin_look()
    gauge.look(depth_of(info, 1))
    assert (gauge.record_count, gauge.size_bytes) == (0, 0)


def test_a_writer_that_outlives_the_store_does_not_take_the_gap_for_records() -> None:
    """Its first append after the crash had an offset a million higher: `reject` refused all until the next look."""
    gauge = Gauge()
    gauge.begin_look()
    gauge.look(Depth(0, 5, 5, 500))
    gauge.put(2, 200)
    gauge.settled(2, 200, RESERVED + 7)
    assert (gauge.record_count, gauge.size_bytes) == (7, 700)


def test_the_newest_records_are_kept_across_a_gap() -> None:
    """Dropping the oldest beyond ten records dropped everything before the gap, and counted the gap as records."""
    info = shard(0, RESERVED + 6, (0, 8), (RESERVED, RESERVED + 6))
    assert offset_with_records_behind(info, 10) == 4
    assert depth_of(info, 4).record_count == 10


def test_what_was_lost_is_what_had_been_put_in() -> None:
    tracker = EndTracker()
    tracker.look(shard(0, 3, (0, 3)), 0)
    tracker.appended(3, 10)
    info = shard(0, RESERVED + 3)
    tracker.look(info, 0)
    assert tracker.known == KnownEnd(1, RESERVED + 3, ((10, RESERVED + 3),))
    assert left_behind(info, Progress(1), [tracker.known]) == Counts(lost=10)
    # Another look, and more records, change nothing of that.
    tracker.appended(RESERVED + 3, RESERVED + 5)
    info = shard(0, RESERVED + 5, (RESERVED + 3, RESERVED + 5))
    tracker.look(info, 0)
    assert tracker.known is not None
    assert left_behind(info, Progress(1), [tracker.known]) == Counts(lost=10, purged=2)
    # A second crash, whose gap is behind the first one without anything between.
    info = shard(0, 2 * RESERVED + 3)
    tracker.look(info, 0)
    assert tracker.known is not None
    assert left_behind(info, Progress(1), [tracker.known]) == Counts(lost=12)
    # What is done with is forgotten.
    tracker.look(info, info.next_offset)
    assert tracker.known == KnownEnd(1, info.next_offset)


def test_appends_acknowledged_between_crash_and_look_are_distinguished() -> None:
    tracker = EndTracker()
    tracker.look(shard(0, 3, (0, 3)), 0)
    tracker.appended(3, 7)
    tracker.appended(RESERVED, RESERVED + 2)
    info = shard(0, RESERVED + 2, (RESERVED, RESERVED + 2))
    tracker.look(info, 0)
    assert tracker.known is not None
    assert left_behind(info, Progress(1), [tracker.known]) == Counts(lost=7, purged=2)


@pytest.mark.parametrize("looked_first", [True, False])
def test_a_store_that_dies_twice_between_two_looks_loses_what_was_put_in_and_no_reserved_offsets(
    looked_first: bool,
) -> None:
    """The offsets that its first life had reserved counted as a million lost records."""
    tracker = EndTracker()
    if looked_first:
        tracker.look(shard(0, 3, (0, 3)), 0)
        tracker.appended(3, 7)
    else:
        tracker.appended(0, 7)
    tracker.appended(RESERVED, RESERVED + 20)
    tracker.appended(2 * RESERVED, 2 * RESERVED + 2)
    info = shard(0, 2 * RESERVED + 2, (2 * RESERVED, 2 * RESERVED + 2))
    tracker.look(info, 0)
    assert tracker.known is not None
    assert left_behind(info, Progress(1), [tracker.known]) == Counts(lost=27, purged=2)


def test_what_was_known_at_a_look_before_two_deaths_is_believed_for_both() -> None:
    tracker = EndTracker()
    tracker.look(shard(0, 3, (0, 3)), 0)
    tracker.appended(RESERVED, RESERVED + 20)
    info = shard(0, 2 * RESERVED)
    tracker.look(info, 0)
    assert tracker.known is not None
    assert left_behind(info, Progress(1), [tracker.known]) == Counts(lost=23)


def test_a_death_that_no_writer_has_looked_at_adds_no_reserved_offsets_to_those_before() -> None:
    """A driver that read the gap at once counted all that the second life had reserved as lost."""
    ends = [KnownEnd(1, RESERVED + 3, ((10, RESERVED + 3),)), KnownEnd(1, 7)]
    info = shard(0, 2 * RESERVED + 3)
    assert unused_in((0, 2 * RESERVED + 3), ends) == [(10, RESERVED + 3), (RESERVED + 3, 2 * RESERVED + 3)]
    assert left_behind(info, Progress(1), ends) == Counts(lost=10)


def test_a_store_that_ends_in_order_loses_all_that_was_put_in_since_the_last_look() -> None:
    """It gives up no offsets. What came behind the last look counted as never put in."""
    tracker = EndTracker()
    tracker.look(shard(0, 3, (0, 3)), 0)
    tracker.appended(3, 10)
    info = shard(0, 10)
    tracker.look(info, 0)
    assert tracker.known == KnownEnd(1, 10)
    assert left_behind(info, Progress(1), [tracker.known]) == Counts(lost=10)


@pytest.mark.parametrize("mode", [QueueMode.MEMORY, QueueMode.HYBRID])
async def test_a_queue_stores_where_its_records_in_memory_begin_before_any_writer_has_looked(mode: QueueMode) -> None:
    """The store died behind a change of the mode, and a million reserved offsets counted as lost."""
    async with open_adapter("memory:") as adapter:
        await filled(adapter, b"1", b"2")
        settings = QueueSettings(mode=mode)
        await ensure_queue(adapter, NAME, settings)
        info = await adapter.describe_shard(names.shard_of(NAME))
        await keep_within_bounds(adapter, NAME, settings, info, 0)
        [end] = await known_ends(adapter, NAME, info.shard_id)
    assert end == KnownEnd(info.shard_id, 2)
    assert unused_in((2, RESERVED), [end]) == [(2, RESERVED)]


def test_of_several_writers_each_knows_its_own_part() -> None:
    gap = (0, RESERVED)
    ends = [KnownEnd(1, RESERVED, ((5, RESERVED),)), KnownEnd(1, RESERVED, ((9, RESERVED),)), KnownEnd(1, 7)]
    assert unused_in(gap, ends) == [(9, RESERVED)]
    # No process has looked since the crash: what they knew before counts.
    assert unused_in(gap, [KnownEnd(1, 5), KnownEnd(1, 7)]) == [(7, RESERVED)]
    # Without a writer it is not known: then every offset may have been a record.
    assert unused_in(gap, []) == []


def test_a_writer_that_saw_only_the_second_of_two_deaths_does_not_hide_it_from_one_that_saw_the_first() -> None:
    """What the first one knew was taken, and the offsets that the second life had reserved counted as lost."""
    ends = [KnownEnd(1, RESERVED + 6, ((6, RESERVED + 6),)), KnownEnd(1, 2 * RESERVED + 22, ((0, 2 * RESERVED + 22),))]
    assert covered_count(unused_in((0, 2 * RESERVED + 22), ends), 0, 2 * RESERVED + 22) == 2 * RESERVED + 16


def test_writers_that_each_saw_another_life_of_the_store_know_all_three_deaths_together() -> None:
    """Of overlapping ranges of two writers only the lower end was used, and a million offsets counted as lost."""
    first, second = RESERVED + 10, 2 * RESERVED + 19
    end = 3 * RESERVED + 26
    ends = [KnownEnd(1, end, ((10, second), (second + 7, end))), KnownEnd(1, end, ((0, first), (first + 9, end)))]
    assert unused_in((0, end), ends) == [(10, first), (first + 9, second), (second + 7, end)]


def test_a_writer_that_began_after_a_death_does_not_hide_what_others_know_of_it() -> None:
    later = 2 * RESERVED + 3
    ends = [KnownEnd(1, later, ((7, RESERVED), (RESERVED + 5, later))), KnownEnd(1, later, ((RESERVED + 9, later),))]
    assert unused_in((0, later), ends) == [(7, RESERVED), (RESERVED + 9, later)]


class QueueInMemory:
    """A queue whose store keeps its records in memory and dies, and what two writers and a driver see of it."""

    def __init__(self) -> None:
        self.put_count = self.lost_count = self.confirmed_count = 0
        self._next_offset = self._reserved_offset = self._done_offset = 0
        self._held: list[tuple[int, int]] = []
        self._trackers = [EndTracker(), EndTracker()]
        self._ends: list[KnownEnd | None] = [None, None]
        for writer in (0, 1):
            self.look(writer, 0)

    @property
    def info(self) -> ShardInfo:
        return shard(0, self._next_offset, *self._held)

    def append(self, writer: int, count: int, *, is_answered: bool = True) -> None:
        first = self._next_offset
        self._next_offset += count
        self.put_count += count
        if self._next_offset > self._reserved_offset - RESERVED // 2:
            self._reserved_offset = self._next_offset + RESERVED
        if is_answered:
            self._trackers[writer].appended(first, self._next_offset)
        if self._held:
            self._held = [(self._held[0][0], self._next_offset)]
        else:
            self._held = [(first, self._next_offset)]

    def append_and_die(self, writer: int, count: int) -> None:
        self.append(writer, count, is_answered=False)
        self.die(writer, count)

    def die(self, _writer: int, _count: int) -> None:
        self._next_offset = max(self._next_offset, self._reserved_offset)
        self._held = []

    def look(self, writer: int, _count: int) -> None:
        tracker = self._trackers[writer]
        tracker.look(self.info, self._done_offset)
        self._ends[writer] = tracker.known or self._ends[writer]

    def drain(self, _writer: int, _count: int) -> None:
        """All of them are confirmed, and those in gaps counted as lost."""
        counts = left_behind(self.info, Progress(1, self._done_offset), [end for end in self._ends if end is not None])
        self.lost_count += counts.lost
        self.confirmed_count += counts.purged
        self._done_offset = self._next_offset


STEPS = ("append", "append_and_die", "die", "look", "drain")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.integers(1, 20)), max_size=12))
def test_no_more_records_are_lost_than_were_put_in(steps: list[tuple[str, int, int]]) -> None:
    """In some orders of deaths, looks and appends a million reserved offsets counted as lost."""
    queue = QueueInMemory()
    for step, writer, count in [*steps, ("drain", 0, 0)]:
        getattr(queue, step)(writer, count)
    assert queue.lost_count + queue.confirmed_count <= queue.put_count


def test_a_queue_of_files_needs_no_such_knowledge() -> None:
    tracker = EndTracker()
    segments = (SegmentInfo(SegmentKind.LOG, 0, 9, 900, 0, closed=False),)
    tracker.look(ShardInfo("$queue/q", 1, ShardConfig(), 0, 0, 9, 1, 900, segments), 0)
    assert tracker.known is None


def test_what_a_shard_that_is_gone_had_is_not_believed() -> None:
    tracker = EndTracker()
    tracker.known = KnownEnd(99, 5_000, ((3, 400),))
    tracker.look(shard(0, 2, (0, 2)), 0)
    assert tracker.known == KnownEnd(1, 2)


SPANS = st.lists(st.tuples(st.integers(1, 20), st.sampled_from(["held", "lost", "unused"])), max_size=8)


@settings(max_examples=300)
@given(SPANS, st.integers(0, 60), st.integers(0, 60), st.lists(st.integers(0, 160), max_size=10))
def test_every_record_is_counted_once(spans: list[tuple[int, str]], start: int, done: int, refused: list[int]) -> None:
    """Whatever lies where: held, lost, trimmed, set aside; only what never was a record is in no count."""
    kinds = [kind for count, kind in spans for _ in range(count)]
    start, done = min(start, len(kinds)), min(done, len(kinds))
    held = [(at, at + 1) for at, kind in enumerate(kinds) if kind == "held" and at >= start]
    unused = with_offsets((), [at for at, kind in enumerate(kinds) if kind == "unused"])
    info = shard(start, len(kinds), *held)
    set_aside = with_offsets((), [each for each in refused if done <= each < len(kinds) and kinds[each] != "unused"])
    progress = Progress(1, done, set_aside=set_aside)
    counts = left_behind(info, progress, [KnownEnd(1, len(kinds), unused)])
    records = [at for at, kind in enumerate(kinds) if at >= done and kind != "unused"]
    free = [at for at in records if not contains(set_aside, at)]
    # A gap that no writer knows anything of cannot be told from one that had records.
    assert total(counts) == len(records)
    assert counts.dead_lettered == len(records) - len(free)
    assert counts.purged == sum(at >= start and kinds[at] == "held" for at in free)
    assert counts.lost == sum(at >= start and kinds[at] == "lost" for at in free)
    assert counts.dropped_oldest == sum(at < start for at in free)


OFFSETS = st.sets(st.integers(0, 40), max_size=25)


@given(OFFSETS, OFFSETS, st.integers(0, 40), st.integers(0, 40))
def test_ranges_are_sets_of_offsets(first: set[int], second: set[int], lower: int, upper: int) -> None:
    ranges = with_offsets(with_offsets((), first), second)
    both = first | second
    assert {offset for offset in range(41) if contains(ranges, offset)} == both
    assert covered_count(ranges, lower, upper) == sum(lower <= offset < upper for offset in both)
    assert covered_count(from_offset(ranges, lower), 0, 50) == sum(offset >= lower for offset in both)
    assert all(after < first for (_, after), (first, _) in pairwise(ranges))


def test_gaps_are_what_no_segment_has() -> None:
    info = shard(2, 30, (5, 9), (9, 12), (20, 21))
    assert gaps_of(info, 0) == [(2, 5), (12, 20), (21, 30)]
    assert gaps_of(info, 15) == [(15, 20), (21, 30)]


async def test_a_queue_of_a_program_before_continues_where_it_was(adapter: StorageAdapter) -> None:
    """The offset was a cursor then, and the counts lay in the driver's status and in the definition."""
    await filled(adapter, *(b"%d" % number for number in range(10)))
    found = await adapter.get_state(names.definition_key(NAME))
    assert found is not None
    info = await adapter.describe_shard(names.shard_of(NAME))
    definition = Definition("0123456789abcdef", info.shard_id, {}, purged_count=2)
    await adapter.put_state(names.definition_key(NAME), encode(definition))
    await adapter.commit_cursor(names.shard_of(NAME), QUEUE_CURSOR, 7)
    status = Status("driver", "ok", 0, "", 0, Counts(confirmed=3), 3, 0.0, 0.0, 0)
    await adapter.put_state(names.status_key(NAME), encode(status))
    assert (await look(adapter, NAME)).depth.record_count == 3
    drain = await driven(adapter)
    assert drain.counts == Counts(confirmed=5, purged=2)
    assert [record.value for record in await waiting(drain)] == [b"7", b"8", b"9"]
    await ensure_queue(adapter, NAME, QueueSettings())
    assert (await look(adapter, NAME)).progress.offset == 7


async def test_the_cursor_follows_for_those_who_look_at_the_shard(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2")
    drain = await driven(adapter)
    await drain.confirm(1, Counts(confirmed=1), 0)
    await drain.show_cursor()
    cursor = await adapter.get_cursor(names.shard_of(NAME), QUEUE_CURSOR)
    assert cursor is not None
    assert cursor.offset == 1


@pytest.mark.parametrize("count", [0, 1])
async def test_progress_of_a_shard_that_is_gone_is_none(adapter: StorageAdapter, count: int) -> None:
    await filled(adapter, b"1", b"2")
    drain = await driven(adapter)
    await drain.confirm(1 + count, Counts(confirmed=1 + count), 0)
    await adapter.delete_shard(names.shard_of(NAME))
    await filled(adapter, b"3")
    state = await look(adapter, NAME)
    assert (state.progress.offset, state.progress.counts, state.depth.record_count) == (0, Counts(), 1)
