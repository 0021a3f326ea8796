"""A log file shows whose it is, holds what was flushed and nothing that is not committed, and gets its index back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.errors import CorruptionError, FormatVersionError
from shards.format.batch import BatchHeader, encode_values
from shards.segments.chunks import ChunkPool
from shards.segments.log_segment import LogHeader, LogSegment
from shards.segments.sparse_index import INTERVAL_BYTES, STORED_SIZE
from tests.shards.batches import NOW_US, stamped
from tests.simulation.file_system import SimulatedFileSystem

u64 = st.integers(0, 2**64 - 1)
names = st.text(min_size=1, max_size=40)
HEADER = LogHeader(7, 100, NOW_US, "plant/line-\u00fc")


@given(u64, u64, u64, names)
def test_a_header_is_read_back_as_it_was_written(shard_id: int, base_offset: int, created_us: int, name: str) -> None:
    header = LogHeader(shard_id, base_offset, created_us, name)
    stored = header.encode()
    assert len(stored) % 8 == 0
    assert LogHeader.decode("f", stored + b"batches") == (header, len(stored))


def test_every_flipped_bit_of_a_header_is_found() -> None:
    stored = HEADER.encode()
    for bit in range(len(stored) * 8):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, FormatVersionError)):
            LogHeader.decode("f", bytes(damaged))


def test_a_header_of_which_only_the_magic_was_written_is_damage() -> None:
    """The checksum of no bytes is 0: zeros in place of size and checksum passed as a header of no bytes."""
    with pytest.raises(CorruptionError, match="header size: expected at least 40 bytes, found 0"):
        LogHeader.decode("f", HEADER.encode()[:4] + bytes(60))


def test_a_header_that_is_cut_short_is_damage() -> None:
    stored = HEADER.encode()
    for size in range(len(stored)):
        with pytest.raises(CorruptionError, match="f at byte 0"):
            LogHeader.decode("f", stored[:size])


def fill(segment: LogSegment, sizes: list[int]) -> bytes:
    whole = b""
    for number, size in enumerate(sizes, segment.last_lsn):
        # Clocks of producers jump: the newest record is not always the last one.
        timestamp_us = NOW_US + number * 7 % 5
        batch = stamped(encode_values([b"v" * size], timestamp_us=timestamp_us), segment.next_offset, number + 1)
        segment.append(batch, segment.next_offset + 1, number + 1, NOW_US, timestamp_us)
        whole += batch
    return whole


def flush(files: SimulatedFileSystem, segment: LogSegment, end: int, next_offset: int) -> None:
    plan = segment.plan_flush(end, next_offset)
    file = files.open(segment.path, create=True)
    plan.write(file, lambda: files.open(segment.index_path, create=True))
    file.close()
    segment.flushed_to(plan)


def new_segment() -> tuple[SimulatedFileSystem, LogSegment]:
    return SimulatedFileSystem(), LogSegment("/a.log", HEADER, ChunkPool(0))


def restored(segment: LogSegment) -> LogSegment:
    """The segment after a restart, as the last checkpoint recorded it."""
    found = LogSegment(segment.path, HEADER, ChunkPool(0))
    found.restore(
        end=segment.flushed,
        next_offset=segment.flushed_offset,
        newest_append_us=segment.newest_append_us,
        last_lsn=segment.last_lsn,
        newest_us=segment.newest_us,
        entries=segment.saved_entries,
    )
    return found


large_sizes = st.lists(st.integers(1, 60_000), min_size=1, max_size=15)


@settings(deadline=None, max_examples=50)
@given(large_sizes, st.data())
def test_flushes_to_any_batch_leave_the_file_with_exactly_that_much(sizes: list[int], data: st.DataObject) -> None:
    files, segment = new_segment()
    whole = HEADER.encode() + fill(segment, sizes)
    ends, position = [], segment.start_position
    for size in sizes:
        position += len(encode_values([b"v" * size], timestamp_us=0))
        ends.append(position)
    last = -1
    for stop in sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))):
        flush(files, segment, ends[stop], 100 + stop + 1)
        last = stop
        assert segment.chunks.start <= ends[stop]
        assert (segment.flushed, segment.flushed_offset) == (ends[stop], 101 + stop)
        file = files.open(segment.path, write=False)
        assert file.pread(1 << 30, 0) == whole[: ends[stop]]
    # The index file has every entry whose batch is in the file, and no other.
    saved = sum(position < ends[last] for position in segment.index.positions)
    assert segment.saved_entries == saved
    size = files.open(segment.index_path, write=False).size() if files.exists(segment.index_path) else 0
    assert size == saved * STORED_SIZE


@settings(deadline=None, max_examples=50)
@given(large_sizes, st.sampled_from(["kept", "missing", "cut", "flipped"]))
def test_the_index_comes_from_its_file_or_is_made_anew_from_the_log(sizes: list[int], fate: str) -> None:
    files, segment = new_segment()
    fill(segment, [*sizes, INTERVAL_BYTES, INTERVAL_BYTES])
    flush(files, segment, segment.end, segment.next_offset)
    file = files.open(segment.index_path)
    if fate == "missing":
        files.remove(segment.index_path)
    elif fate == "cut":
        file.truncate(file.size() - 1)
    elif fate == "flipped":
        file.pwritev([b"\xff"], 3)
    loaded = restored(segment)
    assert loaded.needs_index
    index = loaded.read_index(files)
    loaded.adopt_index(index)
    assert not loaded.needs_index
    for column in ("offsets", "positions", "lsns", "times"):
        assert getattr(index, column) == getattr(segment.index, column)


def batches_of(files: SimulatedFileSystem, segment: LogSegment) -> list[tuple[int, int]]:
    """Offset and position of each batch in the file."""
    data = files.open(segment.path, write=False).pread(1 << 30, 0)
    found, position = [], segment.start_position
    while position < len(data):
        header = BatchHeader.unpack(data, position)
        found.append((header.base_offset, position))
        position += header.size_bytes
    return found


@settings(deadline=None, max_examples=50)
@given(
    st.lists(large_sizes, min_size=1, max_size=4),
    st.sets(st.integers(0, 3)),
    st.sets(st.integers(0, 3)),
    st.booleans(),
)
def test_what_is_appended_after_a_restart_is_in_the_index_before_that_is_loaded(
    runs: list[list[int]], restarts: set[int], loads: set[int], is_missing: bool
) -> None:
    """It was not: a read of a single record looked through all batches that were appended since the restart."""
    files, segment = new_segment()
    fill(segment, [INTERVAL_BYTES, INTERVAL_BYTES])
    flush(files, segment, segment.end, segment.next_offset)
    segment = restored(segment)
    for number, sizes in enumerate(runs):
        fill(segment, sizes)
        flush(files, segment, segment.end, segment.next_offset)
        if number in loads and segment.needs_index:
            segment.adopt_index(segment.read_index(files))
        if number in restarts:
            segment = restored(segment)
    if is_missing:
        files.remove(segment.index_path)
    if segment.needs_index:
        segment.adopt_index(segment.read_index(files))
    batches = batches_of(files, segment)
    indexed = [*zip(segment.index.offsets, segment.index.positions, strict=True)]
    assert indexed == sorted(set(indexed) & set(batches))
    positions = [segment.start_position, *segment.index.positions, segment.end]
    most = INTERVAL_BYTES + max(after - at for (_, at), (_, after) in pairwise([*batches, (0, segment.end)]))
    assert max(after - at for at, after in pairwise(positions)) <= most
    if not is_missing:
        # What was flushed is in the file, and the numbers of its entries are those of the index.
        assert segment.saved_entries == len(segment.index)
        again = restored(segment).read_index(files)
        assert again.positions == segment.index.positions


def test_a_log_that_ends_before_its_recorded_end_is_reported_when_the_index_is_made_again() -> None:
    files, segment = new_segment()
    fill(segment, [INTERVAL_BYTES, INTERVAL_BYTES, 10])
    flush(files, segment, segment.end, segment.next_offset)
    files.open(segment.path).truncate(segment.start_position + INTERVAL_BYTES)
    with pytest.raises(CorruptionError, match="bytes were flushed"):
        segment.rebuild_index(files)


def test_an_index_made_anew_of_a_damaged_log_is_refused() -> None:
    """Where the header of a batch was damaged, the index got entries that pointed into the middle of batches."""
    files, segment = new_segment()
    fill(segment, [INTERVAL_BYTES, INTERVAL_BYTES, 10])
    flush(files, segment, segment.end, segment.next_offset)
    second = segment.start_position + INTERVAL_BYTES + 96
    log = files.open(segment.path)
    # The size of the first body: the next batch is then looked for where none begins.
    log.pwritev([(INTERVAL_BYTES - 800).to_bytes(4, "little")], segment.start_position + 36)
    with pytest.raises(CorruptionError, match="wrong magic"):
        segment.rebuild_index(files)
    log.pwritev([(INTERVAL_BYTES + 8).to_bytes(4, "little")], segment.start_position + 36)
    assert segment.rebuild_index(files).positions[0] == second
    log.pwritev([b"\xff"], second + 8)
    with pytest.raises(CorruptionError, match="prefix checksum"):
        segment.rebuild_index(files)


def test_a_small_segment_has_no_index_file() -> None:
    files, segment = new_segment()
    fill(segment, [10, 10])
    flush(files, segment, segment.end, segment.next_offset)
    assert not files.exists(segment.index_path)
    assert not segment.needs_index
