"""Shared files hold what the logs of many shards held, shard by shard and record by record, however they are read."""

from __future__ import annotations

import errno
import os
import random
from itertools import pairwise

import attrs
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.errors import CorruptionError
from shards.format.batch import Codec, iterate, stamp
from shards.format.record import Record, StoredRecord
from shards.parquet.schema import SHARED_SCHEMA
from shards.parquet.shared_file import write_shared_files
from shards.parquet.shared_reading import PartOfFile, as_appended
from shards.segments.conversion_plan import GatheredFiles, PartSource, SharedPlan, SourceKind
from shards.segments.segment_paths import date_of_day, day_of_date, shared_path
from tests.shards.batches import NOW_US
from tests.shards.parquet.shared_files import (
    DAY_US,
    FILE_ID,
    SEALING,
    Appended,
    Gathered,
    Log,
    gather,
    logs,
    plan_of,
)
from tests.shards.parquet.stamped_batches import decode_all, records_of
from tests.shards.test_batch_damage import crafted
from tests.simulation.file_system import CrashNow, SimulatedFileSystem, everything_lost

few = settings(deadline=None, max_examples=40)  # Each example writes and reads several files.
row_group_sizes = st.sampled_from([1, 300, 2000, 1 << 20])
buffer_sizes = st.sampled_from([1, 300, 4096, 1 << 20])
TODAY = NOW_US // DAY_US


def values(count: int, size: int = 20, *, later_us: int = 50) -> Appended:
    return Appended([Record(value=b"%0*d" % (size, n), timestamp_us=NOW_US) for n in range(count)], later_us)


@pytest.mark.few_cases(6, "each example writes and reads Parquet files")
@few
@given(logs(), row_group_sizes, buffer_sizes)
def test_each_shard_reads_back_its_own_batches(written: list[Log], row_group_bytes: int, buffer_bytes: int) -> None:
    gathered = gather(written, row_group_bytes=row_group_bytes, buffer_bytes=buffer_bytes)
    for number, log in enumerate(written):
        before, groups = log.encode(), gathered.groups_of(number)
        found = b"".join(group.data for group in groups)
        for group in groups:
            assert group.positions == [at for at, _ in iterate(group.data)]
            assert group.base_offsets == [header.base_offset for _, header in iterate(group.data)]
        assert all(header.codec == header.producer_id == 0 for _, header in iterate(found))
        assert decode_all(found) == log.stored
        assert [(h.base_offset, h.lsn, h.append_time_us) for _, h in iterate(found)] == [
            (h.base_offset, h.lsn, h.append_time_us) for _, h in iterate(before)
        ]
        if all(batch.codec is Codec.NONE for batch in log.batches):
            assert found == before
    for number in range(len(gathered.made.files)):
        assert gathered.problems_in_place(number) == []


@pytest.mark.few_cases(6, "each example writes and reads Parquet files")
@few
@given(logs(), row_group_sizes)
def test_the_rows_of_all_files_are_the_records_of_all_shards(written: list[Log], row_group_bytes: int) -> None:
    gathered = gather(written, row_group_bytes=row_group_bytes)
    found: dict[int, list[StoredRecord]] = {log.shard_id: [] for log in written}
    names: dict[int, set[str]] = {log.shard_id: set() for log in written}
    topics: list[tuple[str, StoredRecord, str]] = []
    for number, made in enumerate(gathered.made.files):
        with gathered.open(number) as reader:
            tables = [reader.table(index) for index in range(made.row_groups)]
        rows = pa.Table.from_batches(tables, SHARED_SCHEMA)
        assert rows.num_rows == made.record_count
        appended = records_of(pa.Table.from_batches([as_appended(batch) for batch in tables]))
        for shard_id, name, topic, record in zip(
            *(rows.column(column).to_pylist() for column in ("shard_id", "shard", "topic")), appended, strict=True
        ):
            found[shard_id].append(record)
            names[shard_id].add(name)
            topics.append((name, record, topic))
            assert record.append_time_us // DAY_US == made.day
    for log in written:
        assert found[log.shard_id] == log.stored
        assert names[log.shard_id] == {log.name}
    assert all(topic == (record.topic or name) for name, record, topic in topics)


@pytest.mark.few_cases(6, "each example writes and reads Parquet files")
@few
@given(logs(), row_group_sizes)
def test_parts_tile_their_sources_and_share_the_pages(written: list[Log], row_group_bytes: int) -> None:
    gathered = gather(written, row_group_bytes=row_group_bytes)
    for number, source in enumerate(gathered.plan.sources):
        parts = [part for part in gathered.made.parts if part.source == number]
        assert parts[0].base_offset == source.base_offset
        assert parts[-1].next_offset == source.next_offset
        assert all(before.next_offset == after.base_offset for before, after in pairwise(parts))
        stored = written[number].stored
        for part in parts:
            inside = [record for record in stored if part.base_offset <= record.offset < part.next_offset]
            assert part.last_lsn == inside[-1].lsn
            assert part.newest_append_us == inside[-1].append_time_us
            assert part.newest_us == max(record.timestamp_us for record in inside)
    for number, made in enumerate(gathered.made.files):
        parts = [part for part in gathered.made.parts if part.file == number]
        rows = [(part.first_row, part.first_row + part.next_offset - part.base_offset) for part in parts]
        assert rows[0][0] == 0
        assert rows[-1][1] == made.record_count
        assert all(before[1] == after[0] for before, after in pairwise(rows))
        with gathered.open(number) as reader:
            assert sum(part.size_bytes for part in parts) == reader.metadata.data_bytes - 4
            assert (reader.metadata.file_id, reader.metadata.day) == (FILE_ID, made.day)


def test_records_before_and_after_midnight_are_in_files_of_their_own_days() -> None:
    midnight = (TODAY + 1) * DAY_US
    late = Log("a", 7, [values(3, later_us=0), values(2, later_us=1)], first_us=midnight - 1)
    early = Log("b", 8, [values(4, later_us=0)], first_us=midnight - 1)
    gathered = gather([late, early])
    assert [(made.day, made.record_count) for made in gathered.made.files] == [(TODAY, 7), (TODAY + 1, 2)]
    assert [made.path for made in gathered.made.files] == [
        f"{SEALING}/7-2023-11-14.parquet",
        f"{SEALING}/7-2023-11-15.parquet",
    ]
    assert [(part.source, part.file, part.base_offset, part.next_offset) for part in gathered.made.parts] == [
        (0, 0, 0, 3),
        (0, 1, 3, 5),
        (1, 0, 0, 4),
    ]
    assert decode_all(gathered.batches_of(0)) == late.stored


@pytest.mark.few_cases(6, "each example writes and reads Parquet files")
@few
@given(logs(), row_group_sizes, row_group_sizes)
def test_rewritten_files_have_the_same_batches(written: list[Log], before_bytes: int, after_bytes: int) -> None:
    gathered = gather(written, row_group_bytes=before_bytes)
    sources = tuple(
        PartSource(
            log_path=gathered.made.files[part.file].path,
            name=gathered.plan.sources[part.source].name,
            shard_id=gathered.plan.sources[part.source].shard_id,
            base_offset=part.base_offset,
            next_offset=part.next_offset,
            kind=SourceKind.SHARED,
            first_row=part.first_row,
        )
        for part in gathered.made.parts
    )
    plan = SharedPlan(f"{SEALING}/8", FILE_ID + 1, sources)
    again = Gathered(gathered.files, plan, write_shared_files(gathered.files, plan, row_group_bytes=after_bytes))
    for number, log in enumerate(written):
        parts = [index for index, part in enumerate(gathered.made.parts) if part.source == number]
        assert decode_all(b"".join(map(again.batches_of, parts))) == log.stored
    with gathered.open() as reader:
        assert reader.shard_ids() == sorted({part.shard_id for part in gathered.parts_in(0)})


def test_a_part_that_is_not_in_its_file_is_damage() -> None:
    gathered = gather([Log("a", 7, [values(3)])])
    source = PartSource(
        log_path=gathered.made.files[0].path,
        name="a",
        shard_id=7,
        base_offset=0,
        next_offset=9,
        kind=SourceKind.SHARED,
    )
    with pytest.raises(CorruptionError, match="expected rows 0 to 9"):
        write_shared_files(gathered.files, SharedPlan(f"{SEALING}/8", 8, (source,)))


def test_a_small_shard_lies_in_one_row_group() -> None:
    written = [Log(f"shard-{number:03}", number + 1, [values(1), values(2)]) for number in range(60)]
    gathered = gather(written, row_group_bytes=2000)
    with gathered.open() as reader:
        assert reader.metadata.row_groups[0].row_count > 3, "several shards"
        assert len(reader.metadata.row_groups) > 3
        for part in gathered.parts_in(0):
            assert len(reader.groups_of(part)) == 1


def test_a_large_shard_fills_row_groups_of_its_own_size() -> None:
    written = [Log("a", 1, [values(2)]), Log("b", 2, [values(10)] * 30), Log("c", 3, [values(2)])]
    gathered = gather(written, row_group_bytes=2000)
    with gathered.open() as reader:
        first, large, last = gathered.parts_in(0)
        groups = reader.groups_of(large)
        assert len(groups) > 3
        assert [group.first_offset for group in groups[1:]] == [group.next_offset for group in groups[:-1]]
        assert [group.index for group in reader.groups_of(first)] == [0]
        assert reader.groups_of(last)[0].index >= groups[-1].index


def test_two_segments_of_one_shard_are_two_parts() -> None:
    first = Log("a", 7, [values(3)], base_offset=10)
    second = Log("a", 7, [values(2)], base_offset=20, first_lsn=90, first_us=NOW_US + 60)
    gathered = gather([first, second])
    assert [(part.base_offset, part.next_offset, part.first_row) for part in gathered.made.parts] == [
        (10, 13, 0),
        (20, 22, 3),
    ]
    assert decode_all(gathered.batches_of(1)) == second.stored
    assert gathered.problems_in_place() == []


def test_a_later_shard_of_the_same_name_is_told_apart() -> None:
    gathered = gather([Log("a", 7, [values(3)]), Log("a", 9, [values(2)], first_lsn=50)])
    assert gathered.problems_in_place() == []
    assert [part.shard_id for part in gathered.parts_in(0)] == [7, 9]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Log("b", 1, [values(1)]), Log("a", 2, [values(1)])),
        (Log("a", 2, [values(1)]), Log("a", 1, [values(1)])),
        (Log("a", 1, [values(3)]), Log("a", 1, [values(3)], base_offset=2, first_lsn=90)),
    ],
)
def test_sources_that_are_out_of_order_are_refused(first: Log, second: Log) -> None:
    with pytest.raises(ValueError, match="sources are sorted by shard name, shard id and offset"):
        gather([first, second])


def test_a_plan_without_records_makes_no_file() -> None:
    files = SimulatedFileSystem()
    assert write_shared_files(files, plan_of(files, [])) == GatheredFiles((), [])


@pytest.mark.parametrize("buffer_bytes", [1, 300, 1 << 20])
def test_damage_to_one_log_names_it_and_leaves_no_file(buffer_bytes: int) -> None:
    files = SimulatedFileSystem()
    written = [Log(name, number, [values(3, later_us=DAY_US)] * 3) for number, name in enumerate("abc", start=1)]
    plan = plan_of(files, written)
    source = plan.sources[1]
    log = files.open(source.log_path)
    position = source.end_position - 30
    before = log.pread(1, position)
    log.pwritev([bytes([before[0] ^ 1])], position)
    with pytest.raises(CorruptionError) as caught:
        write_shared_files(files, plan, row_group_bytes=1, buffer_bytes=buffer_bytes)
    assert caught.value.path == source.log_path
    assert source.start_position < caught.value.position < position
    assert files.listdir(SEALING) == []
    log.pwritev([before], position)
    made = write_shared_files(files, plan, row_group_bytes=1, buffer_bytes=buffer_bytes)
    assert sum(file.record_count for file in made.files) == 27


def test_an_unreadable_body_names_its_log_and_batch() -> None:
    files = SimulatedFileSystem()
    plan = plan_of(files, [Log("a", 1, [values(3)]), Log("b", 2, [values(1), values(1)])])
    source = plan.sources[1]
    bad = bytearray(crafted(b"\xff" * 8))
    stamp(bad, 0, 0, 5, NOW_US + 50)
    log = files.open(source.log_path)
    log.pwritev([bad], source.start_position)
    broken = attrs.evolve(source, end_position=source.start_position + len(bad), next_offset=1)
    with pytest.raises(CorruptionError) as caught:
        write_shared_files(files, attrs.evolve(plan, sources=(plan.sources[0], broken)))
    assert (caught.value.path, caught.value.position) == (source.log_path, source.start_position)


def test_an_append_after_the_last_date_is_damage() -> None:
    with pytest.raises(CorruptionError, match="expected a time before the year 10000"):
        gather([Log("a", 1, [values(3)], first_us=2**62)])


def test_what_the_writer_returns_survives_a_power_loss() -> None:
    gathered = gather([Log("a", 1, [values(3)]), Log("b", 2, [values(3, later_us=DAY_US)])])
    contents = [gathered.content(number) for number in range(2)]
    gathered.files.sync_directory(SEALING)
    after = gathered.files.crash(everything_lost)
    for made, content in zip(gathered.made.files, contents, strict=True):
        file = after.open(made.path, write=False)
        assert file.pread(file.size(), 0) == content


def two_days() -> list[Log]:
    return [Log("a", 1, [values(3)]), Log("b", 2, [values(3, later_us=DAY_US), values(2)])]


def steps_to_gather() -> tuple[int, int]:
    """Number of operations before gathering `two_days`, and after it."""
    files = SimulatedFileSystem()
    plan = plan_of(files, two_days())
    begun = len(files.operations)
    write_shared_files(files, plan, row_group_bytes=1)
    return begun, len(files.operations)


def test_after_a_crash_at_any_step_the_logs_are_gathered_again() -> None:
    begun, ended = steps_to_gather()
    assert ended - begun > 10
    expected = gather(two_days(), row_group_bytes=1).made
    choose = random.Random(1).randrange
    for step in range(begun + 1, ended + 1):
        crashing = SimulatedFileSystem()
        plan = plan_of(crashing, two_days())
        crashing.crash_at(step)
        with pytest.raises(CrashNow):
            write_shared_files(crashing, plan, row_group_bytes=1)
        assert write_shared_files(crashing.crash(choose), plan, row_group_bytes=1) == expected


def test_a_failing_write_or_sync_leaves_no_file() -> None:
    begun, ended = steps_to_gather()
    for step in range(begun + 1, ended + 1):
        files = SimulatedFileSystem()
        plan = plan_of(files, two_days())
        files.fail_at(step, errno.EIO)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            write_shared_files(files, plan, row_group_bytes=1)
        assert files.listdir(SEALING) == []


def test_plan_and_result_survive_json() -> None:
    gathered = gather(two_days())
    plan = msgspec.json.decode(msgspec.json.encode(gathered.plan), type=SharedPlan)
    assert attrs.evolve(plan, sources=tuple(plan.sources)) == gathered.plan
    made = msgspec.json.decode(msgspec.json.encode(gathered.made), type=GatheredFiles)
    assert made == gathered.made


def test_a_part_that_the_file_does_not_have_is_refused() -> None:
    gathered = gather([Log("a", 1, [values(3)]), Log("b", 2, [values(3)])])
    first, second = gathered.parts_in(0)
    with gathered.open() as reader:
        for wrong in (
            attrs.evolve(second, first_row=4),
            attrs.evolve(first, first_row=-1),
            attrs.evolve(first, next_offset=0),
        ):
            with pytest.raises(ValueError, match=r"has 6 rows, expected rows -?\d to \d for offsets"):
                reader.groups_of(wrong)
        for wrong in (
            attrs.evolve(first, first_row=1),
            attrs.evolve(second, shard_id=1),
            attrs.evolve(second, base_offset=1, next_offset=4),
            PartOfFile(1, 0, 5, 0),
        ):
            with pytest.raises(CorruptionError, match=r"row group 0 \(rows 0 to 6\): expected offsets"):
                for group in reader.groups_of(wrong):
                    reader.batches(wrong, group)


@given(st.integers(-1000, 100_000))
def test_days_and_dates_are_the_same(day: int) -> None:
    assert day_of_date(date_of_day(day)) == day


@pytest.mark.parametrize("text", ["2026-1-2", "20260102", "2026-02-30", "", "date"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a date such as 2026-11-22"):
        day_of_date(text)


def test_the_path_of_a_shared_file_has_its_date_and_its_number() -> None:
    assert shared_path("/sealed", 20_414, 0xABC) == "/sealed/date=2025-11-22/0000000000000abc.parquet"
