"""Conversion of records between JSON and batches: for appends, and for reads in pages. Pure.

A batch that is small on the wire may be large when it is decoded. So batches are decoded one at a time, and a batch
that would be too large is not decoded at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import msgspec

from journal.protocol.record_json import record_fields
from journal.server.json_protocol.messages import Append, Header, NewRecord
from shards.errors import BatchError, InvalidRequestError, LimitExceededError, StorageError
from shards.format import batch
from shards.format.record import Gap, Record, StoredRecord
from shards.segments.chunks import Readable

_LARGEST_RECORD_COUNT = 100_000
_MOST_LIST_ITEMS = 200_000
_LEAST_ITEM_BYTES = 4
_SEPARATOR_BYTES = 1
_encode = msgspec.json.Encoder().encode


def encode_batch(request: Append, now_us: int) -> bytes:
    """Encode the batch of an append request.

    Raises:
        InvalidRequestError: A field is given twice, or cannot be stored.
        LimitExceededError: The records are too large for a batch.
    """
    return batch.encode([_record(record) for record in request.records], now_us=now_us)


def item_count(request: Append) -> int:
    """The number of records, headers and tags of an append request, which decides how long encoding takes."""
    return sum(1 + len(record.headers) + len(record.tags) for record in request.records)


def _record(record: NewRecord) -> Record:
    return Record(
        value=_bytes("value", record.value, record.value_base64),
        key=_bytes("key", record.key, record.key_base64),
        topic=record.topic,
        timestamp_us=record.timestamp_us,
        headers=tuple(_header(header) for header in record.headers),
        tags=tuple(record.tags),
        expires_at_us=record.expires_at_us,
    )


def _header(header: Header) -> tuple[str, bytes]:
    return header.name, _bytes("header", header.value, header.value_base64)


def _bytes(what: str, text: str | None, data: bytes | None) -> bytes:
    if text is not None and data is not None:
        raise InvalidRequestError(f"a record has its {what} twice, as text and as base64; give one of them")
    if data is not None:
        return data
    try:
        return b"" if text is None else text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the {what} of a record is not Unicode text: {error}; give it as base64") from error


@attrs.frozen(slots=True)
class Page:
    """A page of records of one shard.

    Attributes:
        records: Each record as JSON.
        gaps: Lost ranges between them: first offset, and the one after the last.
        next_offset: Offset of the next page.
        size_bytes: Size of the records.
        error: Why the records from ``next_offset`` on could not be decoded.
        skip_offset: With ``error``: the offset after the records that could not be decoded.
    """

    records: list[msgspec.Raw]
    gaps: list[tuple[int, int]]
    next_offset: int
    size_bytes: int = 0
    error: StorageError | None = None
    skip_offset: int = 0


def is_large(buffers: Sequence[Readable], bound_bytes: int) -> bool:
    """Whether decoding these batches takes too long for the event loop.

    Raises:
        BatchError: These are not valid batches.
    """
    return (
        any(
            header.raw_size > bound_bytes or header.record_count * 64 > bound_bytes
            for buffer in buffers
            for _, header in batch.iterate(buffer)
        )
        or sum(map(len, buffers)) > bound_bytes
    )


def pages(
    shard: str,
    buffers: Sequence[Readable],
    first_offset: int,
    next_offset: int,
    *,
    now_us: int,
    page_bytes: int,
    largest_raw_bytes: int,
) -> Iterator[Page]:
    """Decode batches from ``first_offset`` to ``next_offset`` into pages of about ``page_bytes`` of JSON.

    Every page has at least one record, a gap or an error, or reports that everything up to ``next_offset`` has
    expired. The caller may stop after any page; later batches are then not decoded.

    Args:
        shard: The shard's name.
        buffers: Complete batches, one after another.
        first_offset: Records below this offset are left out.
        next_offset: Records from this offset on are left out.
        now_us: Records that have expired at this time are left out.
        page_bytes: Approximate size of a page.
        largest_raw_bytes: A batch with a larger body is not decoded.
    """
    records: list[msgspec.Raw] = []
    gaps: list[tuple[int, int]] = []
    size_bytes, at_offset = 0, first_offset
    for buffer in buffers:
        for at, header in batch.iterate(buffer):
            begin, end = max(header.base_offset, first_offset), min(header.next_offset, next_offset)
            if begin >= end:
                continue
            try:
                found = _open(buffer, at, header, begin, end, now_us, largest_raw_bytes)
            except StorageError as error:
                yield Page(records, gaps, begin, size_bytes, error, end)
                records, gaps, size_bytes, at_offset = [], [], 0, end
                continue
            for record in found:
                if isinstance(record, Gap):
                    gaps.append((record.first_offset, record.next_offset))
                    continue
                text = _encode(record_fields(record, shard))
                if records and size_bytes + len(text) > page_bytes:
                    yield Page(records, gaps, record.offset, size_bytes)
                    records, gaps, size_bytes = [], [], 0
                records.append(msgspec.Raw(text))
                size_bytes += len(text) + _SEPARATOR_BYTES
            at_offset = end
    if records or gaps or at_offset > first_offset:
        yield Page(records, gaps, at_offset, size_bytes)


def _open(
    buffer: Readable,
    at: int,
    header: batch.BatchHeader,
    start_offset: int,
    end_offset: int,
    now_us: int,
    largest_raw_bytes: int,
) -> Sequence[StoredRecord | Gap]:
    if header.raw_size > largest_raw_bytes or header.record_count > _LARGEST_RECORD_COUNT:
        raise LimitExceededError(
            f"the batch at offset {header.base_offset} has {header.record_count} records in {header.raw_size} bytes; "
            f"at most {_LARGEST_RECORD_COUNT} in {largest_raw_bytes} bytes (limits.max_frame_bytes) can be read as "
            f"JSON; read it with the native protocol"
        )
    try:
        # Each takes an offset at least, so most batches need not be looked into.
        if header.raw_size > _LEAST_ITEM_BYTES * _MOST_LIST_ITEMS:
            items = batch.list_item_count(buffer, at, max_raw_bytes=largest_raw_bytes)
            if items > _MOST_LIST_ITEMS:
                raise LimitExceededError(
                    f"the batch at offset {header.base_offset} has {items} headers and tags; at most "
                    f"{_MOST_LIST_ITEMS} can be read as JSON; read it with the native protocol"
                )
        return batch.batch_records(header, buffer, at, start_offset, end_offset, now_us, largest_raw_bytes)
    except BatchError as error:
        raise BatchError(f"the batch at offset {header.base_offset} cannot be decoded: {error}") from error
