"""Record batches: the unit of append, storage, transport and read; encoding, decoding, slicing and iterating.

The header, its stamp and its checks are in `shards.format.batch_header`, the columns in `shards.format.columns`. A
server passes batches on without decoding them: it needs only `verify_body`, `stamp` and `iterate`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

from shards.errors import BatchError, InvalidRequestError, LimitExceededError
from shards.format.batch_header import (
    CHECKED,
    CHECKED_FROM,
    GAP_FIELDS,
    HEADER_SIZE,
    INT64,
    MAX_RAW_BYTES,
    MAX_RECORD_COUNT,
    MAX_SEQUENCE,
    PREFIX_SIZE,
    PRODUCER,
    PRODUCER_AT,
    PRODUCER_END,
    BatchHeader,
    stamp,
    verify,
    verify_body,
    verify_content,
    verify_magic,
)
from shards.format.checksum import Buffer, crc32c
from shards.format.columns import (
    MAX_TIME_US,
    Column,
    count_list_items,
    count_words,
    pad,
    write_binary,
    write_columns,
)
from shards.format.compression import Codec, compress, decompress
from shards.format.record import Gap, Record, StoredRecord
from shards.format.record_decoder import checked_columns, decode_records

__all__ = [
    "HEADER_SIZE",
    "MAX_RAW_BYTES",
    "MAX_RECORD_COUNT",
    "MAX_SEQUENCE",
    "BatchHeader",
    "Codec",
    "batch_records",
    "decode",
    "encode",
    "encode_values",
    "gap_batch",
    "iterate",
    "keys",
    "list_item_count",
    "read_records",
    "recompress",
    "slice_batch",
    "stamp",
    "tags",
    "timestamps",
    "topics",
    "values",
    "verify",
    "verify_body",
    "with_sequence",
]

_UNSTAMPED = bytes(PREFIX_SIZE)
# The checked fields and the two offsets of a value column with one value.
_ONE_VALUE = struct.Struct(CHECKED.format + "ii")
_VALUE_COLUMN = int(Column.VALUE)
# Above every offset that 8 bytes can name.
_NO_END = 2**65
_record_fields = attrgetter("timestamp_us", "topic", "key", "value", "headers", "tags", "expires_at_us")


def encode(
    records: Sequence[Record],
    *,
    now_us: int,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
) -> bytes:
    """Return an unstamped batch of the records.

    A body that compression does not make smaller is stored uncompressed.

    Args:
        records: At least one.
        now_us: Timestamp of the records that have none.
        sequence: The producer's number of the first record, modulo `MAX_SEQUENCE`.

    Raises:
        InvalidRequestError: There are no records, or a field of one cannot be stored.
        LimitExceededError: More than `MAX_RECORD_COUNT` records or `MAX_RAW_BYTES` bytes.
    """
    _check_count(len(records))
    times_us, topics, keys, values, headers, tags, expiries = zip(*map(_record_fields, records), strict=True)
    if not all(times_us):
        times_us = tuple(time_us or now_us for time_us in times_us)
    columns: dict[int, Sequence[Any]] = {}
    if any(topics):
        columns[Column.TOPIC] = topics
    if any(keys):
        columns[Column.KEY] = keys
    if any(values):
        columns[Column.VALUE] = values
    if any(headers):
        columns[Column.HEADERS] = headers
    if any(tags):
        columns[Column.TAGS] = tags
    if any(expiries):
        columns[Column.EXPIRES_AT] = expiries
    return _build(columns, times_us, codec, (producer_epoch, producer_id, sequence))


def encode_values(
    values: Sequence[bytes],
    *,
    timestamp_us: int,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    producer_epoch: int = 0,
    sequence: int = 0,
) -> bytes:
    """Return an unstamped batch of records that have only a value: the fast way, see `encode`."""
    count = len(values)
    if count == 1 and not codec:
        value = values[0]
        size_bytes = len(value)
        if size_bytes <= MAX_RAW_BYTES - 16 and 0 <= timestamp_us <= MAX_TIME_US:
            # Many clients send one message at a time: the same bytes in one step.
            if size_bytes & 7:
                value += pad(size_bytes)
            body_size = 8 + len(value)
            try:
                fields = _ONE_VALUE.pack(
                    body_size,
                    body_size,
                    1,
                    _VALUE_COLUMN,
                    0,
                    0,
                    producer_epoch,
                    producer_id,
                    sequence,
                    0,
                    timestamp_us,
                    timestamp_us,
                    0,
                    size_bytes,
                )
            except struct.error as error:
                raise _bad_producer((producer_epoch, producer_id, sequence)) from error
            return b"".join((_UNSTAMPED, crc32c(value, crc32c(fields)).to_bytes(4, "little"), fields, value))
    _check_count(count)
    body = b"".join(write_binary(values))
    return _assemble(
        body,
        count,
        Column.VALUE,
        times_us=(timestamp_us, timestamp_us),
        codec=codec,
        producer=(producer_epoch, producer_id, sequence),
    )


def with_sequence(batch: Buffer, *, producer_id: int, producer_epoch: int, sequence: int) -> bytes:
    """Return a copy of an encoded batch with these producer fields and the matching body checksum.

    The batch must come from `encode`; it is not checked again.
    """
    view = memoryview(batch)
    checked = b"".join(
        (
            view[CHECKED_FROM:PRODUCER_AT],
            PRODUCER.pack(producer_epoch, producer_id, sequence),
            view[PRODUCER_END:],
        )
    )
    return b"".join((view[:PREFIX_SIZE], crc32c(checked).to_bytes(4, "little"), checked))


def decode(buffer: Buffer, at: int = 0, *, max_raw_bytes: int = MAX_RAW_BYTES) -> list[StoredRecord]:
    """Return the records of the stamped batch at ``at``; a gap batch has none.

    Raises:
        BatchError: A checksum, header field or column is wrong, or the body is over ``max_raw_bytes`` uncompressed.
    """
    return _decode(verify(buffer, at), buffer, at, max_raw_bytes)


def values(buffer: Buffer, at: int = 0, *, max_raw_bytes: int = MAX_RAW_BYTES) -> list[bytes]:
    """Return the values of a batch, stamped or not, without its other columns; see `decode` for the errors."""
    return _read_column(buffer, at, Column.VALUE, b"", max_raw_bytes)


def keys(buffer: Buffer, at: int = 0, *, max_raw_bytes: int = MAX_RAW_BYTES) -> list[bytes]:
    """Return the keys of a batch, stamped or not, without its other columns; see `decode` for the errors."""
    return _read_column(buffer, at, Column.KEY, b"", max_raw_bytes)


def topics(buffer: Buffer, at: int = 0, *, max_raw_bytes: int = MAX_RAW_BYTES) -> list[str]:
    """Return the topics of a batch, stamped or not, without its other columns; see `decode` for the errors."""
    return _read_column(buffer, at, Column.TOPIC, "", max_raw_bytes)


def tags(buffer: Buffer, at: int = 0, *, max_raw_bytes: int = MAX_RAW_BYTES) -> list[tuple[str, ...]]:
    """Return the tags of a batch, stamped or not, without its other columns; see `decode` for the errors."""
    return _read_column(buffer, at, Column.TAGS, (), max_raw_bytes)


def word_count(buffer: Buffer, at: int = 0, *, wanted: int, max_raw_bytes: int = MAX_RAW_BYTES) -> int:
    """Return the number of keys that are not empty and of tags of the batch at ``at``, before any of them is decoded.

    Args:
        wanted: The columns to count, of `Column.KEY` and `Column.TAGS`.

    Raises:
        BatchError: As `decode`, as far as these columns can show it.
    """
    header = verify_content(buffer, at)
    if header.is_gap:
        return 0
    raw = _raw_body(header, buffer, at, max_raw_bytes)
    return count_words(raw, header.record_count, header.columns, wanted)


def list_item_count(buffer: Buffer, at: int = 0, *, max_raw_bytes: int = MAX_RAW_BYTES) -> int:
    """Return the number of headers and tags of the batch at ``at``, before any of them is decoded.

    Raises:
        BatchError: As `decode`, as far as sizes can show it.
    """
    header = verify_content(buffer, at)
    if header.is_gap or not header.columns & (Column.HEADERS | Column.TAGS):
        return 0
    raw = _raw_body(header, buffer, at, max_raw_bytes)
    return count_list_items(raw, header.record_count, header.columns)


def timestamps(buffer: Buffer, at: int = 0, *, max_raw_bytes: int = MAX_RAW_BYTES) -> list[int]:
    """Return the timestamps of a batch, stamped or not, in microseconds; see `decode` for the errors."""
    default = BatchHeader.unpack(buffer, at).min_timestamp_us
    return _read_column(buffer, at, Column.TIMESTAMP, default, max_raw_bytes)


def iterate(buffer: Buffer, at: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each of the adjacent stamped batches from ``at`` to ``end``.

    Only magic and sizes are checked, so this costs little; use `verify` on bytes that are not trusted.

    Raises:
        BatchError: Other bytes than a batch are found, or the last batch is cut off.
    """
    end = len(buffer) if end is None else end
    while at < end:
        verify_magic(buffer, at)
        header = BatchHeader.unpack(buffer, at)
        next_at = at + header.size_bytes
        if next_at > end:
            raise BatchError(
                f"record batch at byte {at} is cut off: expected {header.size_bytes} bytes, found {end - at}"
            )
        yield at, header
        at = next_at


def slice_batch(buffer: Buffer, at: int, first_offset: int, next_offset: int) -> bytes:
    """Return a stamped batch with only the records from ``first_offset`` up to but not including ``next_offset``.

    lsn, append time and producer are kept; base offset and sequence become those of its first record. For a gap batch
    the result is the gap of that range.

    Raises:
        InvalidRequestError: The range is empty or not within the batch.
        BatchError: As `decode`.
    """
    header = verify(buffer, at)
    if not header.base_offset <= first_offset < next_offset <= header.next_offset:
        raise InvalidRequestError(
            f"offsets {first_offset} to {next_offset} are not part of a batch that has "
            f"{header.base_offset} to {header.next_offset}"
        )
    if header.is_gap:
        return gap_batch(first_offset, next_offset, header.lsn, header.append_time_us)
    start, stop = first_offset - header.base_offset, next_offset - header.base_offset
    columns = checked_columns(header, _raw_body(header, buffer, at, MAX_RAW_BYTES), at)
    times_us = columns.pop(Column.TIMESTAMP, None)
    sequence = (header.sequence + start) % MAX_SEQUENCE if header.producer_id else header.sequence
    batch = bytearray(
        _build(
            {column: items[start:stop] for column, items in columns.items()},
            times_us[start:stop] if times_us else (header.min_timestamp_us,) * (stop - start),
            Codec(header.codec),
            (header.producer_epoch, header.producer_id, sequence),
        )
    )
    stamp(batch, 0, first_offset, header.lsn, header.append_time_us)
    return bytes(batch)


def recompress(buffer: Buffer, at: int, codec: Codec) -> bytes:
    """Return the stamped batch at ``at`` with its body stored by another codec, if that makes it smaller.

    Raises:
        BatchError: As `decode`.
    """
    header = verify(buffer, at)
    raw = _raw_body(header, buffer, at, MAX_RAW_BYTES)
    batch = bytearray(
        _assemble(
            raw,
            header.record_count,
            header.columns,
            times_us=(header.min_timestamp_us, header.max_timestamp_us),
            codec=codec,
            producer=(header.producer_epoch, header.producer_id, header.sequence),
        )
    )
    stamp(batch, 0, header.base_offset, header.lsn, header.append_time_us)
    return bytes(batch)


def gap_batch(first_offset: int, next_offset: int, lsn: int, append_time_us: int) -> bytes:
    """Return the stamped control batch that reports lost offsets up to but not including ``next_offset`` to readers.

    Raises:
        InvalidRequestError: The range is empty or below 0.
    """
    if not 0 <= first_offset < next_offset:
        raise InvalidRequestError(f"a gap from offset {first_offset} to {next_offset} is not a range")
    body = INT64.pack(next_offset)
    checked = CHECKED.pack(*GAP_FIELDS) + body
    batch = bytearray(_UNSTAMPED + crc32c(checked).to_bytes(4, "little") + checked)
    stamp(batch, 0, first_offset, lsn, append_time_us)
    return bytes(batch)


def read_records(
    buffer: Buffer,
    *,
    start_offset: int = 0,
    end_offset: int = _NO_END,
    now_us: int = 0,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> list[StoredRecord | Gap]:
    """Return the records and gaps of the adjacent batches in ``buffer``, as a reader sees them.

    Args:
        start_offset: Records below it are left out; a gap that includes it begins there.
        end_offset: Records from it on are left out; a gap that includes it ends there.
        now_us: Records that have expired at this time are left out; 0 keeps all.
        max_raw_bytes: Limit of one batch's body before compression.

    Raises:
        BatchError: As `decode`, for any batch with records to return.
    """
    found: list[StoredRecord | Gap] = []
    for at, header in iterate(buffer):
        found += batch_records(header, buffer, at, start_offset, end_offset, now_us, max_raw_bytes)
    return found


def batch_records(
    header: BatchHeader,
    buffer: Buffer,
    at: int,
    start_offset: int = 0,
    end_offset: int = _NO_END,
    now_us: int = 0,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Sequence[StoredRecord | Gap]:
    """Return what `read_records` does of one batch, for readers that go on after a damaged batch.

    Args:
        header: The batch's header, from `iterate`. The batch is verified here if it has records to return.
        buffer: It has the batch at ``at``.
    """
    first_offset, next_offset = header.base_offset, header.next_offset
    if next_offset <= start_offset or first_offset >= end_offset:
        return ()
    header = verify(buffer, at)
    if header.is_gap:
        first_offset, next_offset = max(first_offset, start_offset), min(next_offset, end_offset)
        return (Gap(first_offset, next_offset),) if first_offset < next_offset else ()
    records = _decode(header, buffer, at, max_raw_bytes)
    if next_offset > end_offset:
        del records[end_offset - first_offset :]
    if first_offset < start_offset:
        del records[: start_offset - first_offset]
    if now_us and header.columns & Column.EXPIRES_AT:
        return [record for record in records if not 0 < record.expires_at_us <= now_us]
    return records


def _check_count(count: int) -> None:
    if not 0 < count <= MAX_RECORD_COUNT:
        if count:
            raise LimitExceededError(f"a batch of {count} records is over the limit of {MAX_RECORD_COUNT}")
        raise InvalidRequestError("a record batch must hold at least one record")


def _build(
    columns: dict[int, Sequence[Any]],
    times_us: Sequence[int],
    codec: Codec,
    producer: tuple[int, int, int],
) -> bytes:
    earliest_us, latest_us = min(times_us), max(times_us)
    if earliest_us != latest_us:
        columns[Column.TIMESTAMP] = times_us
    if not columns:
        # Without any column the size of the body would not bound the number of records.
        columns[Column.VALUE] = (b"",) * len(times_us)
    return _assemble(
        write_columns(columns),
        len(times_us),
        sum(columns),
        times_us=(earliest_us, latest_us),
        codec=codec,
        producer=producer,
    )


def _assemble(
    raw: bytes, count: int, columns: int, *, times_us: tuple[int, int], codec: Codec, producer: tuple[int, int, int]
) -> bytes:
    raw_size = len(raw)
    if raw_size > MAX_RAW_BYTES:
        raise LimitExceededError(f"a batch body of {raw_size} bytes is over the limit of {MAX_RAW_BYTES}: split it")
    if not 0 <= times_us[0] <= times_us[1] <= MAX_TIME_US:
        raise InvalidRequestError(
            f"timestamps must be from 0 to {MAX_TIME_US} us, found {times_us[0]} to {times_us[1]}"
        )
    if codec:
        body = compress(codec, raw)
        body_size = len(body)
        if body_size < raw_size:
            body += pad(body_size)
        else:
            body, body_size, codec = raw, raw_size, Codec.NONE
    else:
        body, body_size = raw, raw_size
    try:
        fields = CHECKED.pack(body_size, raw_size, count, columns, codec, 0, *producer, 0, *times_us)
    except struct.error as error:
        raise _bad_producer(producer) from error
    return b"".join((_UNSTAMPED, crc32c(body, crc32c(fields)).to_bytes(4, "little"), fields, body))


def _bad_producer(producer: tuple[int, int, int]) -> InvalidRequestError:
    return InvalidRequestError(f"producer epoch, id and sequence {producer} do not fit u32, u64 and u32")


def _raw_body(header: BatchHeader, buffer: Buffer, at: int, max_raw_bytes: int) -> bytes:
    start = at + HEADER_SIZE
    stored = memoryview(buffer)[start : start + header.body_size]
    return decompress(header.codec, stored, header.raw_size, max_raw_bytes=max_raw_bytes)


def _read_column(buffer: Buffer, at: int, column: int, default: Any, max_raw_bytes: int) -> list[Any]:
    header = verify_content(buffer, at)
    if header.is_gap:
        return []
    found = checked_columns(header, _raw_body(header, buffer, at, max_raw_bytes), at, column)
    return list(found.get(column, repeat(default, header.record_count)))


def _decode(header: BatchHeader, buffer: Buffer, at: int, max_raw_bytes: int) -> list[StoredRecord]:
    if header.is_gap:
        return []
    return decode_records(header, _raw_body(header, buffer, at, max_raw_bytes), at)
