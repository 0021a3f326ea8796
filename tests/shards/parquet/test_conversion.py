"""What conversion refuses of a log, what it leaves behind when it fails, and what it takes of memory and disk."""

from __future__ import annotations

import errno
import os
import random
import struct
import tracemalloc

import attrs
import pytest

from shards.errors import CorruptionError
from shards.format.batch import HEADER_SIZE, Codec, encode, encode_values, gap_batch, stamp
from shards.format.batch_header import CHECKED_FROM
from shards.format.record import Record
from shards.parquet.shared_file import write_shared_files
from shards.segments.conversion_plan import PartSource
from tests.shards.batches import NOW_US
from tests.shards.parquet.shared_files import (
    SEALING,
    Gathered,
    gather_batches,
    make_directories,
    plan_for,
    write_batches,
)
from tests.shards.parquet.stamped_batches import stamp_all
from tests.shards.test_batch_damage import crafted
from tests.simulation.file_system import SimulatedFileSystem

BATCH = encode_values([b"abc", b"defgh"], timestamp_us=NOW_US)
LOG = stamp_all([BATCH] * 5)
SIZE = len(BATCH)


def written(files: SimulatedFileSystem, log: bytes) -> PartSource:
    """Write a log of these batches."""
    make_directories(files)
    return write_batches(files, log)


def refusal(files: SimulatedFileSystem, source: PartSource, **options: int) -> CorruptionError:
    """Return the error that conversion ends with, which names the log; no file may be left."""
    with pytest.raises(CorruptionError) as caught:
        write_shared_files(files, plan_for(source), **options)
    assert files.listdir(SEALING) == []
    assert caught.value.path == source.log_path
    return caught.value


def refusal_of(log: bytes, **changes: object) -> CorruptionError:
    files = SimulatedFileSystem()
    return refusal(files, attrs.evolve(written(files, log), **changes))


@pytest.mark.parametrize("buffer_bytes", [1, 300, 1 << 20])
def test_every_flipped_byte_of_a_log_is_found_and_its_batch_named(buffer_bytes: int) -> None:
    files = SimulatedFileSystem()
    source = written(files, LOG)
    log = files.open(source.log_path)
    for at in range(0, len(LOG), 3):
        position = source.start_position + at
        before = log.pread(1, position)
        log.pwritev([bytes([before[0] ^ 0x10])], position)
        error = refusal(files, source, buffer_bytes=buffer_bytes)
        assert error.position == source.start_position + at // SIZE * SIZE
        log.pwritev([before], position)
    made = write_shared_files(files, plan_for(source), buffer_bytes=buffer_bytes)
    assert made.files[0].record_count == 10


def test_batches_must_run_from_the_base_to_the_end_of_the_plan() -> None:
    assert "base offset: expected 1001, found 1000" in str(refusal_of(LOG, base_offset=1001))
    error = refusal_of(LOG, next_offset=1009)
    assert "the batches end before offset 1010, expected 1009" in error.problem
    assert (
        "expected a batch from offset 1002 on, found one from 1004" in refusal_of(LOG[:SIZE] + LOG[2 * SIZE :]).problem
    )


def test_a_log_that_ends_early_is_refused() -> None:
    files = SimulatedFileSystem()
    source = written(files, LOG)
    files.open(source.log_path).truncate(source.end_position - 10)
    error = refusal(files, source)
    assert error.position == source.end_position - 10
    assert f"the file ends here, expected {source.end_position} bytes" in error.problem


def test_a_plan_that_ends_within_a_batch_is_refused() -> None:
    files = SimulatedFileSystem()
    source = written(files, LOG)
    for missing in (8, SIZE - 8):
        error = refusal(files, attrs.evolve(source, end_position=source.end_position - missing), buffer_bytes=300)
        assert error.position == source.end_position - SIZE


def test_places_must_rise() -> None:
    once, again = stamp_all([BATCH], first_lsn=5), stamp_all([BATCH], first_lsn=5, base_offset=1002)
    assert "expected a batch with an lsn over 5, found lsn 5" in refusal_of(once + again).problem
    early = bytearray(stamp_all([BATCH], base_offset=1006, first_lsn=99))
    stamp(early, 0, 1006, 99, NOW_US)
    error = refusal_of(stamp_all([BATCH] * 3) + early)
    assert f"expected a batch appended at {NOW_US + 50} us or later, found {NOW_US} us" in error.problem


def test_a_gap_is_no_part_of_a_log() -> None:
    gap = gap_batch(1010, 1020, 99, NOW_US + 1000)
    assert "expected a batch of records, found a gap" in refusal_of(LOG + gap).problem


def offsets(*numbers: int) -> bytes:
    packed = struct.pack(f"<{len(numbers)}i", *numbers)
    return packed + bytes(-len(packed) & 7)


@pytest.mark.parametrize(
    ("unreadable", "message"),
    [
        (crafted(offsets(0, 9)), "cut off: expected 9 bytes, found 0"),
        (crafted(offsets(0, -1)), "expected number 1 to be at least 0, found -1"),
        (crafted(offsets(1, 1)), "expected the first to be 0, found 1"),
        (crafted(offsets(0, 8, 4) + bytes(8), count=2), "expected number 2 to be at least 8, found 4"),
        (crafted(offsets(0, -(2**31), 1) + bytes(8), count=2), "expected number 1 to be at least 0"),
        (crafted(offsets(0, 0) + bytes(8)), "body is 16 bytes, its columns take 8"),
        (crafted(offsets(0, 1) + b"\xff" + bytes(7), columns=2), "expected UTF-8"),
        (crafted(offsets(0, 1, 2) + "\u00e9".encode() + bytes(6), columns=2, count=2), "expected UTF-8"),
        (crafted(struct.pack("<q", -1), columns=64), "expected times from 0, found -1"),
        (crafted(struct.pack("<qq", 5, 7), columns=1, count=2, times_us=(5, 6)), "the header says 5 to 6"),
        (crafted(offsets(0, 0), times_us=(5, 6)), "timestamps are from 5 to 5"),
        (crafted(b"not zstd", codec=1, raw_size=16), "zstd frame"),
        (crafted(offsets(0, 0)[:7]), "body"),
        (crafted(offsets(0, 2**31 - 1), columns=16), "cut off"),
        (crafted(offsets(0, 2**31 - 1), columns=32), "cut off"),
    ],
)
def test_unreadable_columns_are_refused_and_their_batch_named(unreadable: bytes, message: str) -> None:
    files = SimulatedFileSystem()
    good = encode([Record(value=b"good", topic="t\u00fc", tags=("a",))], now_us=NOW_US)
    source = written(files, stamp_all([good, unreadable, good]))
    error = refusal(files, source)
    assert error.position == source.start_position + len(good)
    assert message in error.problem


def test_a_log_of_another_shard_is_refused() -> None:
    assert "shard: expected other, found plant/line-" in refusal_of(LOG, name="other").problem
    assert "shard id: expected 0000000000000008, found 0000000000000007" in refusal_of(LOG, shard_id=8).problem


def test_a_batch_that_claims_too_much_takes_no_memory() -> None:
    files = SimulatedFileSystem()
    source = written(files, LOG)
    files.open(source.log_path).pwritev(
        [(2**32 - 9).to_bytes(4, "little")], source.start_position + SIZE + CHECKED_FROM
    )
    tracemalloc.start()
    try:
        error = refusal(files, source)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "a batch of 4294967376 bytes begins here" in error.problem
    assert peak_bytes < 4 << 20


def test_a_full_disk_leaves_no_file() -> None:
    files = SimulatedFileSystem(capacity_bytes=3000)
    source = written(files, LOG)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        write_shared_files(files, plan_for(source))
    assert files.listdir(SEALING) == []


def test_an_older_file_at_the_target_is_written_over() -> None:
    files = SimulatedFileSystem()
    plan = plan_for(written(files, LOG))
    made = write_shared_files(files, plan)
    files.open(made.files[0].path).pwritev([bytes(100_000)], 0)
    assert write_shared_files(files, plan) == made
    assert Gathered(files, plan, made).problems_in_place() == []


@pytest.mark.slow("converts a large segment")
def test_memory_does_not_grow_with_the_segment() -> None:
    peaks = []
    for count in (64, 1024):
        files = SimulatedFileSystem()
        plan = plan_for(written(files, stamp_all([encode_values([bytes(1000)] * 16, timestamp_us=NOW_US)] * count)))
        tracemalloc.start()
        write_shared_files(files, plan, row_group_bytes=1 << 16, buffer_bytes=1 << 18)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # The simulated disk is memory too: what grows is the file, not more.
    assert peaks[1] - peaks[0] < 16 * 1000 * (1024 - 64) // 8


def test_telemetry_takes_a_fifth_of_its_log_at_most() -> None:
    choose = random.Random(1)
    values = [
        b'{"device": "sensor-%03d", "celsius": %.2f, "humidity": %.1f, "battery": %d, "firmware": "1.4.2"}'
        % (choose.randrange(100), 20 + choose.random(), 40 + choose.random(), choose.randrange(100))
        for _ in range(4000)
    ]
    batches = [encode_values(values[at : at + 100], timestamp_us=NOW_US + at) for at in range(0, 4000, 100)]
    log = stamp_all(batches)
    assert gather_batches(log).made.files[0].size_bytes * 5 < len(log)


@pytest.mark.parametrize("codec", Codec)
def test_a_checksum_is_checked_before_a_body_is_opened(codec: Codec) -> None:
    batch = bytearray(stamp_all([encode_values([bytes(999)], timestamp_us=NOW_US, codec=codec)]))
    batch[HEADER_SIZE + 4] ^= 1
    assert "wrong body checksum: expected" in refusal_of(bytes(batch)).problem
