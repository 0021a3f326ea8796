"""Batches become rows of Arrow columns, record by record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import BatchError
from shards.format.batch import Codec, encode_values, gap_batch, iterate
from shards.format.record import Record
from shards.parquet.arrow_batches import BatchCollector, read_table
from shards.parquet.schema import RECORD_SCHEMA
from tests.shards.batches import NOW_US, stamped
from tests.shards.parquet.stamped_batches import batch_lists, decode_all, encode_all, records_of, stamp_all

Batches = list[tuple[list[Record], Codec]]


@given(batch_lists, st.integers(0, 6))
def test_the_rows_of_stored_batches_are_their_records(batches: Batches, gap_at: int) -> None:
    pieces = encode_all(batches)
    log = stamp_all(pieces[:gap_at])
    rest = stamp_all(pieces[gap_at:], base_offset=9000, first_lsn=100)
    table = read_table(log + gap_batch(5000, 9000, 99, NOW_US) + rest)
    table.validate(full=True)
    assert table.schema.equals(RECORD_SCHEMA)
    assert records_of(table) == decode_all(log) + decode_all(rest)


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
    assert read_table(gap_batch(1, 2, 3, 4)).schema.equals(RECORD_SCHEMA)


def test_a_batch_over_the_readers_limit_is_refused() -> None:
    batch = stamped(encode_values([bytes(100)], timestamp_us=NOW_US))
    with pytest.raises(BatchError, match="the reader's limit is 64"):
        read_table(batch, max_raw_bytes=64)
