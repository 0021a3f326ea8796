"""A reader of a sealed segment gets from the engine what its log gave: the same records, offsets and answers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.engine.read import parquet_reader
from journal.engine.read.parquet_reader import ParquetReader
from journal.engine.read.reader import Reader
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.unfetched_files import UnfetchedFiles
from journal.engine.state.views import Views
from shards.errors import CorruptionError, OffsetOutOfRangeError, ShardDamagedError
from shards.format.batch import BatchHeader, Codec, encode, iterate, read_records, verify
from shards.format.record import Record, StoredRecord
from shards.model import Mode, SegmentKind
from shards.position import Start
from shards.seams.file_system import FileSystem
from shards.segments.parquet_segment import ParquetSegment, SharedPlace
from shards.segments.read_slices import Place
from shards.segments.segment_paths import shared_path
from tests.journal.sealed import HookedFiles, convert, swap
from tests.shards.batches import NOW_US, codecs, record_lists, stamped
from tests.shards.parquet.shared_files import FILE_ID, Appended, Log, gather
from tests.shards.shard_workload import ShardWorkload, Step, conversion_steps

_LARGE_BATCH = 300_000


def reader_of(workload: ShardWorkload, files: object = None, largest_batch_bytes: int = 1 << 23) -> Reader:
    # Reading by offset, time and lsn needs neither the table nor what was folded into the views.
    views = cast("Views", SimpleNamespace(unfetched=UnfetchedFiles()))
    return Reader(files or workload.files, cast("ShardTable", None), views, largest_batch_bytes)


async def records_from(
    reader: Reader, workload: ShardWorkload, offset: int, max_bytes: int, *, hints: bool = True
) -> list[object]:
    """Every record and gap from an offset on, with all fields."""
    found: list[object] = []
    place: Place | None = None
    while offset < workload.shard.published_offset:
        extent = await reader.read(workload.shard, offset, max_bytes, place if hints else None)
        data = b"".join(map(bytes, extent.buffers))
        assert len(data) == extent.size_bytes
        headers = [verify(data, at) for at, _ in iterate(data)]
        assert extent.start_offset == headers[0].base_offset <= offset
        assert headers[-1].next_offset == extent.next_offset > offset
        found += read_records(data, start_offset=offset)
        offset, place = extent.next_offset, extent.place
    return found


async def answers_of(workload: ShardWorkload) -> tuple[object, ...]:
    """What a shard says to every question."""
    reader, shard = reader_of(workload), workload.shard
    everything = await records_from(reader, workload, shard.start_offset, 1 << 20)
    times = {record.timestamp_us + more for record in everything if isinstance(record, StoredRecord) for more in (0, 1)}
    lsns = {record.lsn + more for record in everything if isinstance(record, StoredRecord) for more in (0, 1)}
    return (
        everything,
        [await first_batch_at(reader, workload, at) for at in range(shard.start_offset, shard.published_offset)],
        [(time_us, await reader.find_offset(shard, Start.time(time_us))) for time_us in sorted(times)],
        [(lsn, await reader.find_offset(shard, Start.lsn(lsn))) for lsn in sorted(lsns)],
    )


async def first_batch_at(reader: Reader, workload: ShardWorkload, offset: int) -> tuple[object, ...]:
    """What the batch that holds an offset says of itself, but for how it is stored, and for what was trimmed of it."""
    extent = await reader.read(workload.shard, offset, 1)
    header = BatchHeader.unpack(extent.buffers[0])
    return (
        max(header.base_offset, workload.shard.start_offset),
        header.next_offset,
        header.lsn,
        header.append_time_us,
        header.is_gap,
        header.min_timestamp_us,
        header.max_timestamp_us,
    )


@settings(deadline=None, max_examples=60)
@given(conversion_steps)
def test_every_question_has_the_same_answer_before_and_after_conversion(wanted: list[Step]) -> None:
    workload = ShardWorkload(make_sealed=convert)
    workload.run(wanted)
    workload.publish_all()
    workload._flush(0)
    before = trio.run(answers_of, workload)
    swap(workload, [convert(workload, segment) for segment in workload.can_be_sealed()])
    assert trio.run(answers_of, workload) == before


def append(workload: ShardWorkload, batch: bytes) -> None:
    shard = workload.shard
    workload.lsn += 2
    header = BatchHeader.unpack(stamped(batch, shard.next_offset))
    if shard.active() is None:
        workload._open(Mode.FILE)
    shard.segments[-1].append(
        stamped(batch, shard.next_offset, workload.lsn, NOW_US + workload.lsn),
        header.next_offset,
        workload.lsn,
        NOW_US + workload.lsn,
        header.max_timestamp_us,
    )
    shard.next_offset, shard.last_lsn = header.next_offset, workload.lsn
    workload.pending.append(shard.published_now())


def closed(workload: ShardWorkload) -> ShardWorkload:
    """Publish and flush everything and close the active segment."""
    workload.publish_all()
    workload._flush(0)
    workload.shard.segments[-1].closed = True
    return workload


@pytest.mark.few_cases(6, "each example writes and reads Parquet files")
@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(record_lists, codecs), min_size=1, max_size=6))
def test_every_field_of_a_record_comes_back_as_it_was(batches: list[tuple[list[Record], Codec]]) -> None:
    workload = ShardWorkload(make_sealed=convert)
    for records, codec in batches:
        append(workload, encode(records, now_us=NOW_US, codec=codec))
    closed(workload)
    before = trio.run(answers_of, workload)
    swap(workload, [convert(workload, segment) for segment in workload.can_be_sealed()])
    assert [segment.kind for segment in workload.shard.segments] == [SegmentKind.PARQUET]
    assert trio.run(answers_of, workload) == before


def three_groups() -> ShardWorkload:
    """A closed log segment of 30 large batches, which has three row groups and more, with small ones in between."""
    workload = ShardWorkload(make_sealed=convert)
    for number in range(30):
        append(workload, encode([Record(bytes((number,)) * _LARGE_BATCH)], now_us=NOW_US + number))
        append(workload, encode([Record(b"small")] * 3, now_us=NOW_US + number))
    return closed(workload)


def sealed(workload: ShardWorkload) -> ShardWorkload:
    swap(workload, [convert(workload, segment) for segment in workload.can_be_sealed()])
    return workload


@pytest.mark.parametrize("max_bytes", [1, 100_000, 1 << 20, 1 << 24])
@pytest.mark.parametrize("hints", [False, True])
async def test_a_reader_that_continues_never_has_a_row_group_decoded_twice(max_bytes: int, hints: bool) -> None:
    workload = three_groups()
    expected = await records_from(reader_of(workload), workload, 0, 1 << 20)
    sealed(workload)
    opens: list[str] = []
    reader = reader_of(workload, HookedFiles(workload.files, opens.append))
    decoded = count_decodes(reader)
    assert await records_from(reader, workload, 0, max_bytes, hints=hints) == expected
    assert decoded == sorted(set(decoded))
    assert len(decoded) >= 3
    operations = len(opens)
    assert await records_from(reader, workload, 0, max_bytes, hints=hints) == expected
    assert len(opens) == operations, "the second time everything is there"


def count_decodes(reader: Reader) -> list[int]:
    """The row groups that the reader decodes from now on, in order."""
    decoded: list[int] = []
    parquet: ParquetReader = reader._parquet
    in_thread = parquet._in_thread

    async def counted(work: object, *args: object) -> object:
        # Without rows from the cache, a row group is decoded and made into batches in one step.
        if work == parquet._read_rows or (work == parquet._encode and args[-1] is None):
            decoded.append(args[2])
        return await in_thread(work, *args)

    parquet._in_thread = counted
    return decoded


async def test_readers_who_want_the_same_row_group_at_once_have_it_decoded_once() -> None:
    workload = sealed(three_groups())
    reader = reader_of(workload)
    decoded = count_decodes(reader)
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(records_from, reader, workload, 0, 1 << 20)
    assert decoded == sorted(set(decoded))


async def test_a_row_group_of_many_shards_is_decoded_once_for_all_of_them() -> None:
    records = [Record(b"one"), Record(b"two"), Record(b"three")]
    gathered = gather([Log(f"plant/{number:02}", 7 + number, [Appended(records)]) for number in range(20)])
    ((file,), files) = gathered.made.files, gathered.files
    path = shared_path("/sealed", file.day, FILE_ID)
    files.mkdir(path.rpartition("/")[0])
    files.rename(file.path, path)
    segments = [
        ParquetSegment(
            "/sealed",
            gathered.plan.sources[part.source].name,
            gathered.plan.sources[part.source].shard_id,
            base_offset=part.base_offset,
            next_offset=part.next_offset,
            size_bytes=part.size_bytes,
            created_us=NOW_US,
            newest_append_us=part.newest_append_us,
            last_lsn=part.last_lsn,
            newest_us=part.newest_us,
            place=SharedPlace(file.day, FILE_ID, part.first_row),
        )
        for part in gathered.made.parts
    ]
    opens: list[str] = []
    reader = ParquetReader(cast("FileSystem", HookedFiles(files, opens.append)), 1 << 23)
    await reader.read(segments[0], 0, 1000, None)
    operations = len(opens)
    for segment in segments[1:]:
        found = await reader.read(segment, 0, 1000, None)
        header = BatchHeader.unpack(found.buffers[0])
        assert (header.base_offset, found.next_offset) == (0, 3)
    assert len(opens) == operations, "the file is read once"
    assert 0 < reader._rows.cost <= parquet_reader.ROWS_BYTES


async def test_what_is_kept_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_reader, "GROUPS_BYTES", 7_000_000)
    workload = three_groups()
    expected = await records_from(reader_of(workload), workload, 0, 1 << 20)
    sealed(workload)
    reader = reader_of(workload)
    for _ in range(2):
        assert await records_from(reader, workload, 0, 1 << 20) == expected
        assert 0 < reader._parquet._groups.cost <= 7_000_000


async def test_what_is_kept_is_given_without_a_wait() -> None:
    workload = sealed(three_groups())
    reader, shard = reader_of(workload), workload.shard
    assert reader.read_nowait(shard, 0, 1000) is None
    extent = await reader.read(shard, 0, 1000)
    assert reader.read_nowait(shard, extent.next_offset, 1000, extent.place) is not None
    assert reader.read_nowait(shard, extent.next_offset, 1000) is not None
    shard.trim(2)
    with pytest.raises(OffsetOutOfRangeError):
        reader.read_nowait(shard, 1, 1000)


async def operations_of(workload: ShardWorkload, start: Start | None) -> int:
    count: list[str] = []
    await ask(reader_of(workload, HookedFiles(workload.files, count.append)), workload, start)
    return len(count)


async def ask(reader: Reader, workload: ShardWorkload, start: Start | None) -> object:
    if start is None:
        return await records_from(reader, workload, 0, 150_000)
    return await reader.find_offset(workload.shard, start)


class Once:
    """Does something on the loop at the operation with this number, and nothing at others."""

    def __init__(self, at: int, work: Callable[[], object]) -> None:
        self._left = at
        self._work = work

    def __call__(self, path: str) -> None:
        if self._left == 0:
            trio.from_thread.run_sync(self._work)
        self._left -= 1


def trim(workload: ShardWorkload, offset: int) -> None:
    """Trim a shard of log segments, and remove the files of those that go."""
    for segment in workload.shard.trim(offset):
        for path in (segment.path, segment.index_path):
            if workload.files.exists(path):
                workload.files.remove(path)


def logs_to_read() -> ShardWorkload:
    """Two log segments, the first with an index that has to be loaded, both in files alone."""
    workload = ShardWorkload(make_sealed=convert)
    for number in range(5):
        append(workload, encode([Record(b"%d" % number * 40_000)] * 2, now_us=NOW_US + number))
    workload._roll(0)
    append(workload, encode([Record(b"in the second segment")], now_us=NOW_US + 50))
    workload.publish_all()
    workload._flush(0)
    workload.recorded = workload.save()
    workload.shard = workload.load()
    workload.shard.segments[-1].closed = True
    return workload


@pytest.mark.parametrize("start", [None, Start.time(NOW_US + 4), Start.lsn(8), Start.lsn(11), Start.time(NOW_US + 50)])
async def test_a_segment_may_be_sealed_at_any_moment_of_a_read(start: Start | None) -> None:
    """A read that met the log's end or its removal was once a fault: the file is gone, and its records are not."""
    expected = await ask(reader_of(logs_to_read()), logs_to_read(), start)
    operations = await operations_of(logs_to_read(), start)
    assert operations > 2
    for at in range(operations):
        workload = logs_to_read()
        made = [convert(workload, segment) for segment in workload.can_be_sealed()]
        assert len(made) == 2
        reader = reader_of(workload, HookedFiles(workload.files, Once(at, partial(swap, workload, made))))
        assert await ask(reader, workload, start) == expected, at
        assert [segment.kind for segment in workload.shard.segments] == [SegmentKind.PARQUET] * 2


async def test_a_segment_may_be_sealed_between_any_two_reads_of_a_reader_in_it() -> None:
    expected = await records_from(reader_of(logs_to_read()), logs_to_read(), 0, 50_000)
    for steps_before in range(8):
        workload = logs_to_read()
        reader, shard = reader_of(workload), workload.shard
        found: list[object] = []
        place: Place | None = None
        offset, steps = 0, 0
        while offset < shard.published_offset:
            if steps == steps_before:
                sealed(workload)
            extent = await reader.read(shard, offset, 50_000, place)
            found += read_records(b"".join(map(bytes, extent.buffers)), start_offset=offset)
            offset, place = extent.next_offset, extent.place
            steps += 1
        assert found == expected


async def test_a_segment_that_is_trimmed_during_a_search_is_passed_over() -> None:
    for at in range(await operations_of(logs_to_read(), Start.lsn(4))):
        workload = logs_to_read()
        reader = reader_of(workload, HookedFiles(workload.files, Once(at, partial(trim, workload, 10))))
        assert await reader.find_offset(workload.shard, Start.lsn(4)) in (2, 10), at


async def test_a_batch_that_was_appended_compressed_is_not_given_larger_than_a_client_takes() -> None:
    """What fits a frame when it is compressed may not fit it otherwise: a client refused the whole connection."""
    records = [Record(b"%d" % number * 2000, tags=("t",)) for number in range(100)]
    workload = ShardWorkload(make_sealed=convert)
    for number in range(3):
        append(workload, encode(records[: 1 + 40 * number], now_us=NOW_US, codec=Codec.ZSTD))
    closed(workload)
    largest = max(workload.shard.segments[0].size_bytes, 2100)
    expected = await answers_of(workload)
    sealed(workload)
    assert await answers_of(workload) == expected
    reader = reader_of(workload, largest_batch_bytes=largest)
    assert await records_from(reader, workload, 0, 1) == expected[0]
    for offset in range(workload.shard.published_offset):
        assert (await reader.read(workload.shard, offset, 1)).size_bytes <= largest


def sealed_segment(workload: ShardWorkload) -> ParquetSegment:
    (segment,) = workload.shard.segments
    assert isinstance(segment, ParquetSegment)
    return segment


async def test_a_damaged_row_group_is_an_error_that_names_what_cannot_be_read_and_the_others_go_on() -> None:
    workload = sealed(three_groups())
    segment = sealed_segment(workload)
    reader, shard = reader_of(workload), workload.shard
    opened = await reader._parquet._open(segment)
    damaged = opened.row_groups[1]
    file = workload.files.open(segment.path)
    position = opened._reader.metadata.row_groups[damaged.index].start + 20
    byte = file.pread(1, position)[0]
    file.pwritev([bytes((byte ^ 1,))], position)
    for _ in range(2):
        with pytest.raises(CorruptionError) as caught:
            await reader.read(shard, damaged.first_offset, 1000)
        for told in (segment.path, repr(shard.name), str(damaged.first_offset), str(damaged.next_offset - 1)):
            assert told in str(caught.value)
    for offset in (*range(damaged.first_offset), *range(damaged.next_offset, shard.published_offset)):
        assert (await reader.read(shard, offset, 1000)).start_offset <= offset
    file.pwritev([bytes((byte,))], position)
    assert (await reader.read(shard, damaged.first_offset, 1000)).size_bytes


async def test_a_damaged_footer_is_an_error_of_the_segment_and_not_of_the_shard() -> None:
    workload = sealed(logs_to_read())
    first, second = workload.shard.segments
    assert isinstance(first, ParquetSegment)
    file = workload.files.open(first.path)
    file.truncate(file.size() - 3)
    reader = reader_of(workload)
    with pytest.raises(CorruptionError, match=r"offsets 0 to 9 of shard 'plant/line' cannot be read"):
        await reader.read(workload.shard, 3, 1000)
    with pytest.raises(CorruptionError, match=r"offsets 0 to 9 of shard 'plant/line' cannot be read"):
        await reader.find_offset(workload.shard, Start.lsn(1))
    assert (await reader.read(workload.shard, second.base_offset, 1000)).next_offset == workload.shard.published_offset


async def test_a_file_of_another_segment_in_its_place_is_damage() -> None:
    workload = sealed(logs_to_read())
    first, second = workload.shard.segments
    assert isinstance(first, ParquetSegment)
    assert isinstance(second, ParquetSegment)
    workload.files.rename(second.path, first.path)
    with pytest.raises(CorruptionError, match="cannot be read"):
        await reader_of(workload).read(workload.shard, 3, 1000)


async def test_a_wanted_file_that_is_missing_is_damage_and_a_dropped_one_is_not() -> None:
    workload = sealed(logs_to_read())
    first, _ = workload.shard.segments
    assert isinstance(first, ParquetSegment)
    workload.files.remove(first.path)
    reader, shard = reader_of(workload), workload.shard
    with pytest.raises(CorruptionError, match=r"the file is missing; it held offsets 0 to 9 of shard 'plant/line'"):
        await reader.read(shard, 3, 1000)
    with pytest.raises(CorruptionError, match="the file is missing"):
        await reader.find_offset(shard, Start.lsn(1))
    shard.trim(10)
    with pytest.raises(OffsetOutOfRangeError):
        await reader.read(shard, 3, 1000)
    assert await reader.find_offset(shard, Start.lsn(1)) == 10
    shard.damage = "something else"
    with pytest.raises(ShardDamagedError):
        await reader.read(shard, 10, 1000)


def test_pyarrow_is_imported_only_when_a_sealed_segment_is_read() -> None:
    program = (
        "import sys, journal.engine, journal.server, broker_adapter\n"
        "print([name for name in ('numpy', 'pyarrow') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


SHORT_OF_FILES = """
import resource, sys
from journal.engine.read.arrow_import import reader_types
from shards.errors import OverloadedError

limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, limit[1]))
try:
    reader_types("/sealed/s.parquet")
except OverloadedError as error:
    print(error)
print("numpy" in sys.modules)
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
print(reader_types("/sealed/s.parquet").shared.__name__)
"""


def test_libraries_are_not_imported_by_a_process_that_is_short_of_files_and_are_when_it_has_some() -> None:
    """numpy was left half imported, and the process could read no sealed segment any more."""
    finished = subprocess.run([sys.executable, "-c", SHORT_OF_FILES], capture_output=True, text=True, check=True)
    refused, numpy_begun, reader = finished.stdout.splitlines()
    assert "/sealed/s.parquet" in refused
    assert "Too many open files" in refused
    assert (numpy_begun, reader) == ("False", "SharedReader")
