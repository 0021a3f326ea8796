"""What a reader gets out of a segment: whole batches, the same from memory as from the file, found from any place."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shards.format.batch import iterate
from shards.format.batch_header import SMALLEST_BATCH_BYTES
from shards.format.record import Record
from shards.segments.log_segment import LogSegment
from shards.segments.read_slices import base_offset_at, batch_size, find_in_bytes, locate_in_memory, memory_slice
from tests.shards.batches import encode_stamped
from tests.shards.shard_workload import ShardWorkload, Step, steps


@settings(deadline=None)
@given(steps)
def test_every_published_offset_is_in_exactly_one_place_in_memory_or_in_the_file(wanted: list[Step]) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    shard = workload.shard
    for offset in workload.readable():
        segment, at = shard.segment_at(offset)
        assert segment is not None
        assert at == offset
        end = shard.visible_end(segment)
        position = locate_in_memory(segment, offset, end)
        if position is None:
            assert isinstance(segment, LogSegment)
            assert segment.flushed > segment.start_position
            continue
        base = base_offset_at(segment.chunks, position)
        extent = memory_slice(shard, segment, position, 1)
        assert base == extent.start_offset <= offset < extent.next_offset
        assert extent.size_bytes == batch_size(extent.buffers[0], 0)


@settings(deadline=None)
@given(steps)
def test_the_file_and_what_is_still_in_memory_agree_byte_by_byte(wanted: list[Step]) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    for segment in workload.shard.segments:
        if isinstance(segment, LogSegment) and segment.flushed > segment.start_position:
            file = workload.files.open(segment.path, write=False)
            stored = file.pread(segment.flushed, 0)
            assert stored[: segment.start_position] == segment.header.encode()
            assert len(stored) == segment.flushed
            if segment.chunks.start < segment.flushed:
                held = b"".join(map(bytes, segment.chunks.views(segment.chunks.start, segment.flushed)))
                assert stored[segment.chunks.start :] == held
            headers = [header for _, header in iterate(stored, segment.start_position)]
            assert headers[-1].next_offset == segment.flushed_offset


@settings(deadline=None)
@given(steps)
def test_nothing_that_is_not_published_is_shown(wanted: list[Step]) -> None:
    workload = ShardWorkload()
    workload.run(wanted)
    shard = workload.shard
    published = shard.published_offset
    assert shard.segment_at(published) == (None, published)
    for segment in shard.segments:
        if (
            segment.base_offset < published
            and segment.chunks.starts
            and segment.chunks.start < shard.visible_end(segment)
        ):
            assert memory_slice(shard, segment, segment.chunks.start, 1 << 30).next_offset <= published
    info = shard.info(with_segments=True)
    assert info.next_offset == published
    assert all(each.next_offset <= published for each in info.segments)
    assert info.size_bytes == sum(each.size_bytes for each in info.segments)


@given(st.integers(1, 6), st.integers(0, 10), st.integers(0, 120))
def test_a_search_in_bytes_that_end_anywhere_says_where_to_go_on(count: int, wanted: int, missing: int) -> None:
    batches = [encode_stamped([Record(value=b"v" * number)] * 2, 2 * number) for number in range(count)]
    data = b"".join(batches)
    cut = data[: max(0, len(data) - missing)]
    at, header = find_in_bytes(cut, lambda each: each.next_offset > wanted)
    if header is not None:
        assert header.base_offset <= wanted < header.next_offset or wanted < header.base_offset
        assert data[at : at + header.size_bytes] == batches[header.base_offset // 2]
    else:
        # Every batch whose header is there was looked at; the next one begins at the place that is given.
        assert len(cut) - at < SMALLEST_BATCH_BYTES
        assert at in {sum(map(len, batches[:number])) for number in range(count + 1)}
