"""Record batches come back as they went in, whole, in part and back to back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import BatchError, InvalidRequestError, LimitExceededError
from shards.format import batch
from shards.format.batch import (
    HEADER_SIZE,
    MAX_RECORD_COUNT,
    MAX_SEQUENCE,
    BatchHeader,
    Codec,
    decode,
    encode,
    encode_values,
    gap_batch,
    iterate,
    read_records,
    recompress,
    slice_batch,
    stamp,
    verify,
    verify_body,
    with_sequence,
)
from shards.format.record import Gap, Record, StoredRecord
from tests.shards.batches import NOW_US, codecs, encode_stamped, payloads, record_lists, stamped, stored

pytestmark = pytest.mark.usefixtures("form_of_record_decoder")
offsets = st.integers(min_value=0, max_value=2**62)


@given(record_lists, codecs, offsets)
def test_records_come_back_with_every_field(records: list[Record], codec: Codec, base_offset: int) -> None:
    encoded = encode_stamped(records, base_offset, codec=codec)
    assert decode(encoded) == stored(records, base_offset)
    assert len(encoded) % 8 == 0


@given(record_lists, codecs)
def test_one_column_is_read_without_the_others(records: list[Record], codec: Codec) -> None:
    encoded = encode(records, now_us=NOW_US, codec=codec)
    assert batch.values(encoded) == [record.value for record in records]
    assert batch.keys(encoded) == [record.key for record in records]
    assert batch.topics(encoded) == [record.topic for record in records]
    assert batch.tags(encoded) == [record.tags for record in records]
    assert batch.timestamps(encoded) == [record.timestamp_us or NOW_US for record in records]


@given(st.lists(payloads, min_size=1, max_size=12), codecs)
def test_values_alone_encode_to_the_bytes_of_records_with_only_values(values: list[bytes], codec: Codec) -> None:
    records = [Record(value=value) for value in values]
    assert encode_values(values, timestamp_us=NOW_US, codec=codec) == encode(records, now_us=NOW_US, codec=codec)


@given(record_lists, codecs, offsets, st.data())
def test_a_slice_of_a_batch_is_the_slice_of_its_records(
    records: list[Record], codec: Codec, base_offset: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    whole = stamped(
        encode(records, now_us=NOW_US, codec=codec, producer_id=7, producer_epoch=2, sequence=MAX_SEQUENCE - 3),
        base_offset,
    )
    part = slice_batch(b"before" + whole, 6, base_offset + start, base_offset + stop)
    header = verify(part)
    assert decode(part) == decode(whole)[start:stop]
    assert (header.producer_id, header.producer_epoch) == (7, 2)
    assert header.sequence == (MAX_SEQUENCE - 3 + start) % MAX_SEQUENCE


def test_a_slice_of_a_gap_is_a_gap() -> None:
    assert slice_batch(gap_batch(5, 50, lsn=3, append_time_us=4), 0, 7, 9) == gap_batch(7, 9, lsn=3, append_time_us=4)


@pytest.mark.parametrize(("first", "end"), [(9, 11), (11, 13), (11, 11), (12, 11)])
def test_a_slice_outside_the_batch_is_refused(first: int, end: int) -> None:
    encoded = encode_stamped([Record(value=b"a"), Record(value=b"b")], 10)
    with pytest.raises(InvalidRequestError, match="not part of a batch that has 10 to 12"):
        slice_batch(encoded, 0, first, end)


@given(record_lists, codecs, st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_producer_fields_can_be_set_afterwards(
    records: list[Record], codec: Codec, producer_id: int, epoch: int, sequence: int
) -> None:
    plain = encode(records, now_us=NOW_US, codec=codec)
    at_once = encode(
        records, now_us=NOW_US, codec=codec, producer_id=producer_id, producer_epoch=epoch, sequence=sequence
    )
    assert with_sequence(plain, producer_id=producer_id, producer_epoch=epoch, sequence=sequence) == at_once
    header = verify_body(at_once)
    assert (header.producer_id, header.producer_epoch, header.sequence) == (producer_id, epoch, sequence)


def test_a_stamp_gives_a_batch_its_place_and_leaves_the_rest_alone() -> None:
    encoded = encode_values([b"one", b"two"], timestamp_us=5)
    buffer = bytearray(b"........" + encoded + b"........")
    stamp(buffer, 8, 100, 7, 9)
    header = verify(buffer, 8)
    assert (header.base_offset, header.last_offset, header.next_offset) == (100, 101, 102)
    assert (header.lsn, header.append_time_us, header.is_gap) == (7, 9, False)
    assert encoded[:32] == bytes(32)
    assert buffer[40:] == encoded[32:] + b"........"
    assert buffer[:8] == b"........"


def test_an_unstamped_batch_is_good_to_append_but_not_to_read() -> None:
    encoded = encode_values([b"one"], timestamp_us=5)
    assert verify_body(encoded).record_count == 1
    with pytest.raises(BatchError, match="never stamped"):
        verify(encoded)


def test_a_gap_batch_is_good_to_read_but_not_to_append() -> None:
    gap = gap_batch(10, 2**40, lsn=5, append_time_us=6)
    header = verify(gap)
    assert (header.is_gap, header.record_count, header.next_offset, header.last_offset) == (True, 0, 2**40, 2**40 - 1)
    assert decode(gap) == []
    assert batch.keys(gap) == []
    assert batch.timestamps(gap) == []
    with pytest.raises(BatchError, match="flags: expected 0"):
        verify_body(gap)


@pytest.mark.parametrize(("first", "end"), [(5, 5), (6, 5), (-1, 5)])
def test_an_empty_gap_is_refused(first: int, end: int) -> None:
    with pytest.raises(InvalidRequestError):
        gap_batch(first, end, lsn=1, append_time_us=1)


@given(st.lists(st.tuples(record_lists, codecs), max_size=4), st.integers(0, 60), st.integers(0, 60))
def test_readers_see_batches_back_to_back_within_their_range_of_offsets(
    parts: list[tuple[list[Record], Codec]], start_offset: int, end_offset: int
) -> None:
    buffer, offset = b"", 3
    expected: list[StoredRecord | Gap] = []
    for records, codec in parts:
        gap_end = offset + 5
        buffer += gap_batch(offset, gap_end, lsn=1, append_time_us=1)
        if max(offset, start_offset) < min(gap_end, end_offset):
            expected.append(Gap(max(offset, start_offset), min(gap_end, end_offset)))
        buffer += encode_stamped(records, gap_end, codec=codec)
        expected += [record for record in stored(records, gap_end) if start_offset <= record.offset < end_offset]
        offset = gap_end + len(records)
    assert read_records(buffer, start_offset=start_offset, end_offset=end_offset) == expected
    assert [header.next_offset for _, header in iterate(buffer)][-1:] == ([offset] if parts else [])


def test_expired_records_are_hidden_from_readers_that_say_what_time_it_is() -> None:
    records = [Record(value=b"kept"), Record(value=b"gone", expires_at_us=100), Record(value=b"due", expires_at_us=101)]
    encoded = encode_stamped(records)
    assert [record.value for record in read_records(encoded, now_us=100)] == [b"kept", b"due"]  # type: ignore[union-attr]
    assert len(read_records(encoded)) == 3


@given(record_lists, codecs, codecs, offsets)
def test_a_batch_stored_by_another_codec_is_the_same_batch(
    records: list[Record], first: Codec, second: Codec, base_offset: int
) -> None:
    encoded = b"before it" + encode_stamped(records, base_offset, codec=first)
    changed = recompress(encoded, 9, second)
    assert decode(changed) == decode(encoded, 9)
    assert len(changed) <= len(encode_stamped(records, base_offset))
    assert changed == encode_stamped(records, base_offset, codec=second)


def test_walking_stops_at_the_end_it_is_given() -> None:
    first, second = encode_stamped([Record(value=b"a")]), encode_stamped([Record(value=b"b")], 1)
    assert [at for at, _ in iterate(first + second, 0, len(first))] == [0]
    with pytest.raises(BatchError, match="cut off"):
        list(iterate(first + second, 0, len(first) + 90))


def test_a_one_topic_batch_costs_little_over_its_values() -> None:
    encoded = encode([Record(value=b"x" * 100) for _ in range(150)], now_us=NOW_US)
    assert len(encoded) - 150 * 100 <= HEADER_SIZE + 4 * 151 + 16


def test_a_body_that_does_not_shrink_is_stored_as_it_is() -> None:
    encoded = encode_values([bytes(range(200))], timestamp_us=1, codec=Codec.ZSTD)
    assert BatchHeader.unpack(encoded).codec == Codec.NONE
    assert BatchHeader.unpack(encode_values([bytes(999)], timestamp_us=1, codec=Codec.LZ4)).codec == Codec.LZ4


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (Record(timestamp_us=-1), "found -1"),
        (Record(timestamp_us=2**63), "found .* to 9223372036854775808"),
        (Record(expires_at_us=-5), "times must be"),
        (Record(topic="\ud800"), "UTF-8"),
        (Record(tags=("fine", "\udfff")), "UTF-8"),
        (Record(headers=(("\ud800", b""),)), "UTF-8"),
    ],
)
def test_a_record_that_cannot_be_stored_is_refused(record: Record, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        encode([Record(), record], now_us=NOW_US)


def test_an_empty_or_oversized_batch_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="at least one record"):
        encode([], now_us=NOW_US)
    with pytest.raises(LimitExceededError, match=str(MAX_RECORD_COUNT)):
        encode_values([b""] * (MAX_RECORD_COUNT + 1), timestamp_us=1)
    with pytest.raises(LimitExceededError, match="split"):
        encode_values([bytes(33 << 20)] * 2, timestamp_us=1)
    with pytest.raises(InvalidRequestError, match="do not fit"):
        encode_values([b""], timestamp_us=1, sequence=MAX_SEQUENCE)


def test_the_header_is_declared_as_documented() -> None:
    declared = struct.Struct("<4sIQQQIIIIHBBIQIIQQ")
    encoded = stamped(encode_values([b"x"], timestamp_us=11, producer_id=1, producer_epoch=2, sequence=3), 4, 5, 6)
    assert declared.unpack_from(encoded) == (b"JRB1", *BatchHeader.unpack(encoded))
    assert declared.size == HEADER_SIZE
