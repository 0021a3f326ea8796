"""A shard's readers see what was published, in order, across segments and modes, and nothing that was dropped."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import example, given, settings

from shards.errors import ShardDamagedError, ShardNotFoundError
from shards.idempotence.resends import Place
from shards.model import Mode, SegmentKind, ShardConfig, ShardInfo
from shards.segments.chunks import ChunkPool
from shards.segments.shard import Shard
from tests.shards.shard_workload import ShardWorkload, Step, conversion_steps, steps


def workload_after(*actions: str) -> ShardWorkload:
    workload = ShardWorkload()
    workload.run([Step(action, 6 if action == "append" else 0) for action in actions])  # 7 records an append
    return workload


def ranges_with_records(info: ShardInfo) -> list[tuple[int, int]]:
    """Without the segments that were closed while empty: they go with the one that begins at the same offset.

    And without trimmed records, of which a Parquet segment has fewer.
    """
    ranges = [(max(each.base_offset, info.start_offset), each.next_offset) for each in info.segments]
    return [(base, end) for base, end in ranges if base < end]


@settings(deadline=None)
@given(steps)
def test_segments_are_in_order_and_only_the_last_one_is_open(wanted: list[Step]) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    segments = workload.shard.segments
    for older, newer in itertools.pairwise(segments):
        assert older.closed
        assert older.next_offset <= newer.base_offset
        missing = set(range(older.next_offset, newer.base_offset))
        assert missing <= workload.lost


def test_written_records_are_seen_when_they_are_published_and_not_before() -> None:
    workload = workload_after("append", "append")
    shard = workload.shard
    assert (shard.next_offset, shard.published_offset) == (14, 0)
    assert shard.segment_at(0) == (None, 0)
    workload._publish(0)
    assert shard.published_offset == 7
    assert shard.segment_at(6)[0] is shard.segments[0]
    assert shard.segment_at(7) == (None, 7)


def test_a_mode_switch_moves_no_record_and_offsets_go_on() -> None:
    workload = workload_after("append", "switch", "append", "switch", "append")
    workload.publish_all()
    shard = workload.shard
    assert [(each.kind, each.base_offset, each.next_offset, each.closed) for each in shard.segments] == [
        (SegmentKind.LOG, 0, 7, True),
        (SegmentKind.MEMORY, 7, 14, True),
        (SegmentKind.LOG, 14, 21, False),
    ]
    places = [shard.places_of(offset, offset + 1)[0] for offset in (0, 6, 7, 13, 14)]
    assert places == [Place.FILE, Place.FILE, Place.MEMORY, Place.MEMORY, Place.FILE]
    assert shard.places_of(0, 21) == (Place.FILE, Place.MEMORY)
    assert shard.places_of(7, 14) == (Place.MEMORY, Place.MEMORY)


def test_a_trim_drops_whole_sealed_segments_and_never_the_published_one() -> None:
    workload = workload_after(
        "append", "roll", "append", "roll", "append", "publish", "publish", "publish", "publish", "publish"
    )
    shard = workload.shard
    assert shard.published_offset == 21
    assert shard.trim(3) == []
    assert (shard.start_offset, len(shard.segments)) == (3, 3)
    assert [each.base_offset for each in shard.trim(14)] == [0, 7]
    assert shard.trim(21) == []
    assert shard.start_offset == 21
    assert [each.base_offset for each in shard.segments] == [14]
    assert shard.trim(5) == []
    assert shard.start_offset == 21


@settings(deadline=None)
@given(conversion_steps)
@example([Step("append", 5), *[Step("switch", 0)] * 4, Step("append", 0), Step("roll", 0)])
def test_converting_a_segment_changes_where_its_records_are_and_nothing_else(wanted: list[Step]) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    workload.publish_all()
    workload._flush(0)
    shard = workload.shard
    offsets = range(shard.start_offset, shard.published_offset + 1)
    before = [shard.segment_at(offset) for offset in offsets]
    described = shard.info(with_segments=True)
    for segment in workload.can_be_sealed():
        sealed = workload.make_sealed(workload, segment)
        assert segment in shard.put_parts([sealed])
        assert shard.put_parts([sealed]) == [], "put in its place twice"
    after = [shard.segment_at(offset) for offset in offsets]
    assert [at for _, at in after] == [at for _, at in before]
    assert [segment and segment.next_offset for segment, _ in after] == [
        segment and segment.next_offset for segment, _ in before
    ]
    info = shard.info(with_segments=True)
    assert attrs.evolve(info, size_bytes=0, segments=()) == attrs.evolve(described, size_bytes=0, segments=())
    assert ranges_with_records(info) == ranges_with_records(described)
    assert [each.closed for each in info.segments[-1:]] == [each.closed for each in described.segments[-1:]]
    assert info.size_bytes == sum(each.size_bytes for each in info.segments)
    for segment in shard.segments:
        if segment.next_offset == segment.base_offset:
            continue
        if segment.closed and segment.kind is not SegmentKind.MEMORY:
            assert segment.kind is SegmentKind.PARQUET
            assert shard.visible_end(segment) == segment.size_bytes
        place = Place.MEMORY if segment.kind is SegmentKind.MEMORY else Place.FILE
        first = max(segment.base_offset, shard.start_offset)
        if first < segment.next_offset:
            assert shard.places_of(first, first + 1) == (place, place)


def test_the_published_segment_may_be_a_sealed_one_and_appends_go_on_behind_it() -> None:
    workload = workload_after("append", "publish")
    shard = workload.shard
    shard.segments[-1].closed = True
    workload._convert(0)
    (sealed,) = shard.segments
    assert sealed.kind is SegmentKind.PARQUET
    assert shard.published_segment is sealed
    assert shard.active() is None
    assert shard.info(with_segments=False).size_bytes == sealed.size_bytes
    workload.run([Step("append", 6), Step("publish", 0)])
    assert [(each.kind, each.base_offset) for each in shard.segments] == [
        (SegmentKind.PARQUET, 0),
        (SegmentKind.LOG, 7),
    ]
    assert [each.base_offset for each in shard.trim(7)] == [0]


def test_offsets_that_were_lost_with_the_memory_lead_to_the_next_segment() -> None:
    workload = workload_after("append", "switch", "append", "switch", "append", "restart")
    shard = workload.shard
    assert [each.base_offset for each in shard.segments] == [0, 14]
    assert shard.segment_at(6) == (shard.segments[0], 6)
    assert shard.segment_at(7) == (shard.segments[1], 14)
    assert shard.segment_at(20) == (shard.segments[1], 20)


def test_a_segment_without_a_record_does_not_cut_a_lost_range_in_two() -> None:
    shard = Shard(1, "s", ShardConfig(), 0)
    pool = ChunkPool(0)
    empty = shard.open_segment(Mode.FILE, 4, 1, "/log/4.log", pool)
    shard.next_offset = 13
    following = shard.open_segment(Mode.FILE, 13, 2, "/log/13.log", pool)
    following.append(bytes(8), 20, 1, 2, 2)
    shard.next_offset = 20
    shard.publish(shard.published_now())
    assert empty.next_offset == empty.base_offset
    assert shard.segment_at(0) == (following, 13)
    assert shard.segment_at(4) == (following, 13)


def test_listeners_hear_of_each_publish_until_they_are_taken_off() -> None:
    heard: list[int] = []
    workload = workload_after("append", "append", "append")
    shard = workload.shard
    listener = lambda changed: heard.append(changed.published_offset)  # noqa: E731
    shard.add_listener(listener)
    workload._publish(0)
    workload._publish(0)
    shard.remove_listener(listener)
    workload._publish(0)
    assert heard == [7, 14]
    assert shard.listeners is None


def test_a_listener_may_take_itself_off_while_it_is_called() -> None:
    shard = Shard(1, "a", ShardConfig(), 0)
    heard: list[str] = []

    def once(_: Shard) -> None:
        heard.append("once")
        shard.remove_listener(once)

    shard.add_listener(once)
    shard.add_listener(lambda _: heard.append("other"))
    shard.notify()
    shard.notify()
    assert heard == ["once", "other", "other"]


def test_a_stopped_and_a_deleted_shard_say_so() -> None:
    shard = Shard(1, "a", ShardConfig(), 0)
    shard.check_usable()
    shard.damage = "x.log at byte 5: bits"
    with pytest.raises(ShardDamagedError, match=r"x\.log at byte 5"):
        shard.check_usable()
    shard.deleted = True
    with pytest.raises(ShardNotFoundError, match="was deleted"):
        shard.check_usable()


def test_an_open_segment_takes_batches_until_another_one_is_opened() -> None:
    shard = Shard(1, "a", ShardConfig(), 0)
    assert shard.active() is None
    first = shard.open_segment(Mode.FILE, 0, 5, "/a.log", ChunkPool(0))
    assert shard.active() is first
    second = shard.open_segment(Mode.MEMORY, 0, 6, "", ChunkPool(0))
    assert first.closed
    assert shard.active() is second
    assert shard.in_memory_mode
