"""Records of a shard never promise more than its files hold, and a loaded shard is the one that was saved."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.errors import CorruptionError, FormatVersionError
from shards.model import SegmentKind
from shards.seams.store import Family, Mutations
from shards.segments.log_segment import LogSegment
from shards.segments.parquet_segment import ParquetSegment
from shards.views.shard_records import held_ranges, newest_lsn, outlines, safe_offset, save
from tests.shards.shard_workload import ShardWorkload, Step, conversion_steps

SHARD_KEY = (7).to_bytes(8, "big")


@settings(deadline=None)
@given(conversion_steps)
def test_a_loaded_shard_knows_what_the_files_hold(wanted: list[Step]) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    shard = workload.shard
    shard.reserved_offset, shard.damage = 5000, "something at a place"
    present = workload.save()
    loaded = workload.load()
    assert (loaded.start_offset, loaded.reserved_offset, loaded.damage) == (shard.start_offset, 5000, shard.damage)
    assert loaded.next_offset == safe_offset(shard) <= shard.published_offset
    assert {each.base_offset for each in loaded.segments} == present
    originals = {each.base_offset: each for each in shard.segments if isinstance(each, LogSegment | ParquetSegment)}
    for segment in loaded.segments:
        original = originals[segment.base_offset]
        if isinstance(original, ParquetSegment):
            assert isinstance(segment, ParquetSegment)
            assert everything_in(segment) == everything_in(original)
            continue
        assert isinstance(segment, LogSegment)
        assert isinstance(original, LogSegment)
        assert segment.header == original.header
        assert (segment.end, segment.next_offset) == (original.flushed, original.flushed_offset)
        assert segment.saved_entries == original.saved_entries
        assert segment.next_offset <= loaded.next_offset or segment.next_offset == segment.base_offset
    # Everything but the last recorded segment is whole, so the journal goes on in the last one or behind it.
    for segment in loaded.segments[:-1]:
        assert segment.next_offset == originals[segment.base_offset].next_offset
        assert segment.closed


def everything_in(segment: ParquetSegment) -> dict[str, object]:
    slots = [name for each in type(segment).__mro__ for name in getattr(each, "__slots__", ())]
    return {name: getattr(segment, name) for name in slots}


def test_a_log_record_becomes_a_parquet_record_of_the_same_key() -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("roll", 0), Step("append", 6), Step("restart", 0)])
    assert workload.recorded == {0, 7}
    workload.run([Step("convert", 0)])
    assert workload.save() == {0, 7}
    loaded = workload.load()
    assert [each.kind for each in loaded.segments] == [SegmentKind.PARQUET, SegmentKind.LOG]
    assert safe_offset(workload.shard) == loaded.next_offset == 14
    stored = dict(workload.store.scan(Family.SEGMENTS, SHARD_KEY))
    assert [value[0] for value in stored.values()] == [1, 3, 1]


@settings(deadline=None)
@given(st.lists(conversion_steps, max_size=4))
def test_what_is_left_alone_is_as_it_would_be_written(wanted: list[list[Step]]) -> None:
    workload = ShardWorkload()
    for steps in wanted:
        workload.run(steps)
        workload.recorded = workload.save()
        everything = Mutations()
        save(everything, workload.shard, recorded=())
        stored = dict(workload.store.scan(Family.SEGMENTS, SHARD_KEY))
        assert stored == {key: value for family, key, value in everything if family is Family.SEGMENTS}


def test_closed_segments_are_written_once() -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("roll", 0), Step("append", 6), Step("roll", 0), Step("append", 6)])
    workload.run([Step("convert", 0), Step("restart", 0), Step("append", 6), Step("flush", 0)])
    mutations = Mutations()
    save(mutations, workload.shard, recorded=tuple(workload.recorded))
    open_one = workload.shard.segments[-1].base_offset.to_bytes(8, "big")
    assert [key for _, key, _ in mutations] == [SHARD_KEY, SHARD_KEY + open_one]


def test_the_journal_is_needed_only_for_records_behind_the_sealed_segments() -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("roll", 0), Step("convert", 0), Step("append", 6), Step("append", 6)])
    workload.publish_all()
    assert safe_offset(workload.shard) == 7
    workload._flush(0)
    assert safe_offset(workload.shard) == 21


def test_the_record_of_a_sealed_segment_goes_when_it_is_trimmed() -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("roll", 0), Step("append", 6), Step("convert", 0)])
    workload.recorded = workload.save()
    workload.shard.trim(3)
    assert workload.save() == {0, 7}, "a trim inside it leaves it as it is"
    workload.shard.trim(7)
    assert workload.save() == {7}
    assert [each.base_offset for each in workload.load().segments] == [7]


@settings(deadline=None)
@given(conversion_steps)
def test_a_segment_is_recorded_only_if_it_is_published(wanted: list[Step]) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    shard = workload.shard
    present = workload.save()
    published = []
    for segment in shard.segments if shard.published_segment is not None else []:
        published.append(segment.base_offset)
        if segment is shard.published_segment:
            break
    assert present <= set(published)


def test_nothing_is_recorded_behind_a_segment_that_is_not_whole() -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("publish", 0), Step("flush", 0), Step("append", 6), Step("roll", 0)])
    workload.publish_all()
    # A checkpoint flushed before the last append and the roll, and saves after them.
    assert workload.save() == {0}
    loaded = workload.load()
    assert [(each.base_offset, each.next_offset, each.closed) for each in loaded.segments] == [(0, 7, False)]
    assert loaded.next_offset == 7


def test_a_record_goes_when_its_segment_does() -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("roll", 0), Step("append", 6)])
    workload.publish_all()
    workload._flush(0)
    workload.recorded = workload.save()
    assert workload.recorded == {0, 7}
    workload.shard.trim(7)
    assert workload.save() == {7}
    assert [each.base_offset for each in workload.load().segments] == [7]


@settings(deadline=None)
@given(
    st.sampled_from([(SHARD_KEY, 1), (SHARD_KEY + bytes(8), 1), (SHARD_KEY + bytes(8), 3)]),
    st.integers(0, 20) | st.integers(80, 100),
)
def test_a_record_that_is_cut_short_is_damage_of_this_shard(record: tuple[bytes, int], size: int) -> None:
    key, version = record
    workload = ShardWorkload()
    mutations = Mutations()
    mutations.put(Family.SEGMENTS, key, bytes((version,)) + bytes(size))
    workload.store.write(mutations)
    if len(key) == len(SHARD_KEY) and size >= 80:
        return  # behind a head's numbers comes a text of any length
    with pytest.raises(CorruptionError, match=f"shard 'plant/line' in the views at byte 0: {size + 1} bytes"):
        workload.load()


@pytest.mark.parametrize("key", [SHARD_KEY, SHARD_KEY + bytes(8)])
def test_a_record_of_a_newer_program_is_refused(key: bytes) -> None:
    workload = ShardWorkload()
    mutations = Mutations()
    mutations.put(Family.SEGMENTS, key, bytes((4,)) + bytes(80))
    workload.store.write(mutations)
    with pytest.raises(FormatVersionError, match=r"has format 04, this program reads 1, (2, )?3$"):
        workload.load()


@settings(deadline=None)
@given(conversion_steps)
def test_offsets_that_were_lost_with_the_memory_are_not_counted_as_records(wanted: list[Step]) -> None:
    """A shard with 10 records had 1,048,586 after a crash: its offsets were subtracted."""
    workload = ShardWorkload()
    workload.run(wanted)
    shard, offsets = workload.shard, sorted(workload.readable())
    assert shard.info(with_segments=False).record_count == len(offsets)
    middle = offsets[len(offsets) // 2] if offsets else 3
    assert shard.record_count_from(middle) == sum(offset >= middle for offset in offsets)
    workload.run([Step("restart", 0)])
    if workload.shard.published_segment is not None:
        held = held_ranges(workload.store, workload.shard.shard_id)
        assert [offset for first, end in held for offset in range(first, end)] == sorted(workload.readable())


@pytest.mark.parametrize("damage", ["", "some bytes have changed"])
def test_the_head_of_a_restored_shard_is_of_a_version_of_its_own(damage: str) -> None:
    workload = ShardWorkload()
    workload.run([Step("append", 6), Step("publish", 0), Step("flush", 0)])
    workload.shard.damage = damage
    workload.save()
    assert dict(workload.store.scan(Family.SEGMENTS, SHARD_KEY))[SHARD_KEY][0] == 1
    loaded = workload.load()
    assert (loaded.restored_lsn, loaded.info(with_segments=False).restored_offset) == (0, None)

    end = workload.shard.next_offset
    workload.shard.note_restore(1 << 46)
    workload.save()
    published_lsn = workload.shard.published_lsn
    stored = b"\x02" + struct.pack("<QQQQQQ", 0, end, 0, published_lsn, 1 << 46, end) + damage.encode()
    assert dict(workload.store.scan(Family.SEGMENTS, SHARD_KEY))[SHARD_KEY] == stored
    loaded = workload.load()
    assert (loaded.restored_lsn, loaded.restored_offset) == (1 << 46, end)
    assert (loaded.next_offset, loaded.damage, loaded.info(with_segments=False).restored_offset) == (end, damage, end)
    assert held_ranges(workload.store, 7) == [(0, end)]
    assert newest_lsn(workload.store, 7, 0) == workload.shard.published_lsn
    assert [each for each in outlines(workload.store) if each[1] is None] == [(7, None, bool(damage), end)]


def test_a_shard_notes_each_restore_once_and_none_that_is_older_than_itself() -> None:
    workload = ShardWorkload()
    shard = workload.shard
    shard.note_restore(0)
    shard.note_restore(7)
    assert shard.info(with_segments=False).restored_offset is None, "it was created after them, with lsn 7"
    shard.next_offset = 5
    shard.note_restore(100)
    shard.next_offset = 9
    shard.note_restore(100)
    assert (shard.restored_lsn, shard.restored_offset) == (100, 5)
    shard.note_restore(200)
    assert (shard.restored_lsn, shard.restored_offset) == (200, 9)
