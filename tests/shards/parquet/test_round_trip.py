"""A sealed segment holds what the log held, record by record, however it is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shards.errors import BatchError
from shards.format.batch import (
    Codec,
    encode,
    encode_values,
    gap_batch,
    iterate,
)
from shards.format.record import Record
from shards.parquet.arrow_batches import BatchCollector, read_table
from shards.parquet.conversion import convert_log
from shards.parquet.reading import SealedReader
from shards.parquet.schema import SCHEMA
from shards.parquet.verification import verify
from shards.seams.os_file_system import OsFileSystem
from tests.shards.batches import NOW_US, record_lists, stamped
from tests.shards.parquet.segments import (
    batch_lists,
    convert,
    decode_all,
    encode_all,
    records_of,
    stamp_all,
    write_log,
)

Batches = list[tuple[list[Record], Codec]]
few = settings(deadline=None, max_examples=60)  # Each example writes and reads a file.
row_group_sizes = st.sampled_from([1, 200, 1000, 1 << 20])
buffer_sizes = st.sampled_from([1, 100, 512, 4096, 1 << 20])


@few
@given(batch_lists, row_group_sizes, buffer_sizes)
def test_batches_read_back_hold_the_same_records(batches: Batches, row_group_bytes: int, buffer_bytes: int) -> None:
    log = stamp_all(encode_all(batches))
    sealed = convert(log, row_group_bytes=row_group_bytes, buffer_bytes=buffer_bytes)
    with sealed.open() as reader:
        groups = [reader.batches(group.index) for group in reader.row_groups]
    found = b"".join(group.data for group in groups)
    assert decode_all(found) == decode_all(log)
    for group in groups:
        assert group.positions == [at for at, _ in iterate(group.data)]
        assert group.base_offsets == [header.base_offset for _, header in iterate(group.data)]
    before, after = ([(h.base_offset, h.next_offset, h.lsn) for _, h in iterate(data)] for data in (log, found))
    assert after == before
    assert all(header.codec == header.producer_id == 0 for _, header in iterate(found))
    assert verify(sealed.files, sealed.path, size_bytes=sealed.file.size_bytes, digest=sealed.file.digest) == []


@few
@given(batch_lists, row_group_sizes)
def test_batches_without_a_producer_and_a_codec_come_back_byte_by_byte(batches: Batches, row_group_bytes: int) -> None:
    log = stamp_all(encode_all([(records, Codec.NONE) for records, _ in batches]))
    sealed = convert(log, row_group_bytes=row_group_bytes)
    with sealed.open() as reader:
        assert b"".join(reader.batches(group.index).data for group in reader.row_groups) == log


@few
@given(batch_lists)
def test_the_rows_of_a_sealed_segment_are_its_records(batches: Batches) -> None:
    log = stamp_all(encode_all(batches))
    with convert(log).open() as reader:
        tables = [reader.table(group.index) for group in reader.row_groups]
    assert all(table.schema.equals(SCHEMA) for table in tables)
    assert records_of(pa.Table.from_batches(tables, SCHEMA)) == decode_all(log)


@few
@given(batch_lists, st.integers(0, 6))
def test_the_rows_of_stored_batches_are_their_records(batches: Batches, gap_at: int) -> None:
    pieces = encode_all(batches)
    log = stamp_all(pieces[:gap_at])
    rest = stamp_all(pieces[gap_at:], base_offset=9000, first_lsn=100)
    table = read_table(log + gap_batch(5000, 9000, 99, NOW_US) + rest)
    table.validate(full=True)
    assert table.schema.equals(SCHEMA)
    assert records_of(table) == decode_all(log) + decode_all(rest)


@few
@given(batch_lists, st.integers(0, 15))
def test_it_does_not_matter_where_in_memory_the_batches_lie(batches: Batches, shift: int) -> None:
    log = stamp_all(encode_all(batches))
    shifted = memoryview(bytes(shift) + log + bytes(3))[shift : shift + len(log)]
    assert records_of(read_table(shifted)) == decode_all(log)
    collector = BatchCollector()
    for at, header in iterate(shifted.obj, shift, shift + len(log)):
        collector.add(shifted.obj, at, header)
    assert records_of(collector.finish()) == decode_all(log)


def test_no_batches_are_no_rows() -> None:
    assert read_table(b"").num_rows == 0
    assert read_table(gap_batch(1, 2, 3, 4)).schema.equals(SCHEMA)


def test_a_log_without_batches_becomes_a_segment_without_row_groups() -> None:
    sealed = convert(b"")
    with sealed.open() as reader:
        assert reader.row_groups == []
        assert reader.base_offset == reader.next_offset
    assert verify(sealed.files, sealed.path) == []


@few
@given(record_lists, st.sampled_from(["value", "topic", "tags"]))
def test_columns_are_read_alone(records: list[Record], name: str) -> None:
    log = stamp_all([encode(records, now_us=NOW_US)])
    with convert(log).open() as reader:
        assert reader.table(0, [name, "offset"]).equals(reader.table(0).select(["offset", name]))
        with pytest.raises(KeyError, match="nothing"):
            reader.table(0, [name, "nothing"])


def test_row_groups_end_where_batches_end() -> None:
    log = stamp_all([encode_values([bytes(100)] * 7, timestamp_us=NOW_US)] * 10)
    with convert(log, row_group_bytes=2000).open() as reader:
        ranges = [(group.first_offset, group.next_offset) for group in reader.row_groups]
    assert ranges == [(1000, 1021), (1021, 1042), (1042, 1063), (1063, 1070)]


def test_a_large_batch_is_a_row_group_of_its_own() -> None:
    small = encode_values([b"small"], timestamp_us=NOW_US)
    large = encode_values([bytes(3 << 20)], timestamp_us=NOW_US)
    log = stamp_all([small, large, small, small])
    with convert(log).open() as reader:
        ranges = [(group.first_offset, group.next_offset) for group in reader.row_groups]
        assert ranges == [(1000, 1001), (1001, 1002), (1002, 1004)]
        assert b"".join(reader.batches(index).data for index in range(3)) == log
        assert [group.value_bytes for group in reader.row_groups] == [5, 3 << 20, 10]


def test_what_a_segment_says_of_itself_is_true() -> None:
    log = stamp_all([encode([Record(value=b"abc", timestamp_us=time_us)], now_us=NOW_US) for time_us in (9, 11, 10)])
    sealed = convert(log, row_group_bytes=1)
    with sealed.open() as reader:
        assert (reader.shard, reader.shard_id) == (sealed.plan.name, sealed.plan.shard_id)
        assert (reader.base_offset, reader.next_offset) == (1000, 1003)
        assert [(group.last_lsn, group.newest_us) for group in reader.row_groups] == [(5, 9), (8, 11), (11, 10)]
        assert [group.value_bytes for group in reader.row_groups] == [3, 3, 3]
    assert sealed.file.record_count == 3
    assert sealed.file.value_bytes == 9
    assert sealed.file.row_groups == 3
    assert sealed.file.size_bytes == len(sealed.content)


def test_threads_may_share_a_reader_of_many_row_groups() -> None:
    log = stamp_all([encode_values([b"%d" % number], timestamp_us=NOW_US) for number in range(150)])
    with convert(log, row_group_bytes=1).open() as reader, ThreadPoolExecutor(4) as pool:
        assert len(reader.row_groups) == 150
        # More than is read of the end of a file at first.
        assert reader.end.size_bytes - reader.end.index_end > 1 << 16
        groups = pool.map(reader.batches, range(150))
        assert b"".join(group.data for group in groups) == log


def test_the_operating_system_files_serve_as_well(tmp_path: Any) -> None:
    class Below(OsFileSystem):
        """The operating system's files with another root."""

        def open(self, path: str, *, create: bool = False, write: bool = True) -> Any:
            return super().open(f"{tmp_path}{path}", create=create, write=write)

        def mkdir(self, path: str) -> None:
            super().mkdir(f"{tmp_path}{path}")

        def sync_directory(self, path: str) -> None:
            super().sync_directory(f"{tmp_path}{path}")

    files = Below()
    log = stamp_all([encode_values([b"%d" % n for n in range(100)], timestamp_us=NOW_US)] * 200)
    plan = write_log(files, log)
    sealed = convert_log(files, plan, row_group_bytes=5000)
    with SealedReader(files, plan.out_path) as reader:
        assert len(reader.row_groups) == sealed.row_groups > 10
        assert b"".join(reader.batches(group.index).data for group in reader.row_groups) == log
    assert verify(files, plan.out_path, digest=sealed.digest) == []


def test_a_batch_over_the_readers_limit_is_refused() -> None:
    batch = stamped(encode_values([bytes(100)], timestamp_us=NOW_US))
    with pytest.raises(BatchError, match="the reader's limit is 64"):
        read_table(batch, max_raw_bytes=64)
