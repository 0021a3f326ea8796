"""What a row group has, what the file says of it, and that it can be read alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.format.batch import encode, encode_values
from shards.format.record import Record
from shards.parquet.shared_file import write_shared_files
from shards.parquet.shared_reading import PartOfFile, SharedReader
from shards.parquet.shared_verification import verify_shared
from shards.seams.os_file_system import OsFileSystem
from tests.shards.batches import NOW_US, record_lists
from tests.shards.parquet.shared_files import Gathered, gather_batches, plan_for, write_batches
from tests.shards.parquet.stamped_batches import stamp_all
from tests.simulation.file_system import SimulatedFileSystem


def offsets_of(gathered: Gathered) -> list[tuple[int, int]]:
    """First and next offset of each row group of a file with one part."""
    (part,) = gathered.parts_in(0)
    with gathered.open() as reader:
        return [(group.first_offset, group.next_offset) for group in reader.groups_of(part)]


@settings(deadline=None, max_examples=60)  # Each example writes and reads a file.
@given(record_lists, st.sampled_from(["value", "topic", "tags"]))
def test_columns_are_read_alone(records: list[Record], name: str) -> None:
    with gather_batches(stamp_all([encode(records, now_us=NOW_US)])).open() as reader:
        expected = reader.table(0).select(["offset", name])
        assert reader.table(0, [name, "offset"]).equals(expected)
        assert reader.pages_of(0, [name, "offset"]).equals(expected)
        for read in (reader.table, reader.pages_of):
            with pytest.raises(KeyError, match="nothing"):
                read(0, [name, "nothing"])


def test_row_groups_end_where_batches_end() -> None:
    log = stamp_all([encode_values([bytes(100)] * 7, timestamp_us=NOW_US)] * 10)
    assert offsets_of(gather_batches(log, row_group_bytes=2000)) == [
        (1000, 1021),
        (1021, 1042),
        (1042, 1063),
        (1063, 1070),
    ]


def test_a_large_batch_is_a_row_group_of_its_own() -> None:
    small = encode_values([b"small"], timestamp_us=NOW_US)
    large = encode_values([bytes(3 << 20)], timestamp_us=NOW_US)
    log = stamp_all([small, large, small, small])
    gathered = gather_batches(log)
    assert offsets_of(gathered) == [(1000, 1001), (1001, 1002), (1002, 1004)]
    assert gathered.batches_of(0) == log
    with gathered.open() as reader:
        assert [entry.value_bytes for entry in reader.metadata.row_groups] == [5, 3 << 20, 10]


def test_what_a_file_says_of_its_rows_is_true() -> None:
    log = stamp_all([encode([Record(value=b"abc", timestamp_us=time_us)], now_us=NOW_US) for time_us in (9, 11, 10)])
    gathered = gather_batches(log, row_group_bytes=1)
    with gathered.open() as reader:
        metadata = reader.metadata
    assert [(entry.last_lsn, entry.newest_us) for entry in metadata.row_groups] == [(5, 9), (8, 11), (11, 10)]
    assert [(entry.row_count, entry.value_bytes) for entry in metadata.row_groups] == [(1, 3)] * 3
    assert (metadata.record_count, metadata.value_bytes, metadata.rewritten_from) == (3, 9, ())
    (made,) = gathered.made.files
    assert (made.record_count, made.value_bytes, made.row_groups) == (3, 9, 3)
    assert made.size_bytes == len(gathered.content())


def test_threads_may_share_a_reader_of_many_row_groups() -> None:
    log = stamp_all([encode_values([b"%d" % number], timestamp_us=NOW_US) for number in range(150)])
    gathered = gather_batches(log, row_group_bytes=1)
    (part,) = gathered.parts_in(0)
    with gathered.open() as reader, ThreadPoolExecutor(4) as pool:
        # More than is read of the end of a file at first.
        assert reader.end.size_bytes - reader.end.index_end > 1 << 16
        groups = pool.map(lambda group: reader.batches(part, group), reader.groups_of(part))
        assert b"".join(group.data for group in groups) == log


def test_the_operating_system_files_serve_as_well(tmp_path: Path) -> None:
    log = stamp_all([encode_values([b"%d" % number for number in range(100)], timestamp_us=NOW_US)] * 200)
    memory = SimulatedFileSystem()
    memory.mkdir("/log")
    source = write_batches(memory, log)
    path = tmp_path / "segment.log"
    file = memory.open(source.log_path, write=False)
    path.write_bytes(file.pread(file.size(), 0))
    (tmp_path / "date=2023-11-14").mkdir()
    plan = attrs.evolve(
        plan_for(attrs.evolve(source, log_path=str(path))), out_prefix=str(tmp_path / "date=2023-11-14" / "new")
    )
    files = OsFileSystem()
    made = write_shared_files(files, plan, row_group_bytes=5000)
    (written,) = made.files
    target = str(tmp_path / "date=2023-11-14" / f"{plan.file_id:016x}.parquet")
    Path(written.path).rename(target)
    part = PartOfFile(source.shard_id, source.base_offset, source.next_offset, 0)
    with SharedReader(files, target) as reader:
        groups = reader.groups_of(part)
        assert len(groups) == written.row_groups > 10
        assert b"".join(reader.batches(part, group).data for group in groups) == log
    assert verify_shared(files, target, [part], size_bytes=written.size_bytes, digest=written.digest) == []
