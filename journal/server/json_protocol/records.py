"""Records between their JSON form and batches: what is appended, what is read, cut into messages. Pure.

A batch is small on the wire and may be large when it is opened. So what a reader asks for is opened a batch at a time,
and a batch that would be too large is not opened at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import msgspec

from journal.protocol.record_json import record_fields
from journal.server.json_protocol.messages import Append, Header, NewRecord
from shards.errors import BatchError, InvalidRequestError, LimitExceededError, StorageError
from shards.format import batch
from shards.format.columns import Column
from shards.format.record import Record, StoredRecord
from shards.segments.chunks import Readable

_LARGEST_RECORD_COUNT = 100_000
_SEPARATOR_BYTES = 1
_encode = msgspec.json.Encoder().encode


def encode_batch(request: Append, now_us: int) -> bytes:
    """The batch that an append asks for.

    Raises:
        InvalidRequestError: A field is given twice, or cannot be stored.
        LimitExceededError: It is too large for a batch.
    """
    return batch.encode([_record(record) for record in request.records], now_us=now_us)


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
        raise InvalidRequestError(f"the {what} of a record is no Unicode text: {error}; give it as base64") from error


@attrs.frozen(slots=True)
class Page:
    """Records of one shard on their way out.

    Attributes:
        records: Each as JSON.
        gaps: Lost ranges between them: first offset, and the one behind the last.
        next_offset: Where to go on.
        size_bytes: Of the records.
        error: Why the records from ``next_offset`` on could not be opened.
        skip_offset: With ``error``: behind what could not be opened.
    """

    records: list[msgspec.Raw]
    gaps: list[tuple[int, int]]
    next_offset: int
    size_bytes: int = 0
    error: StorageError | None = None
    skip_offset: int = 0


def is_large(buffers: Sequence[Readable], bound_bytes: int) -> bool:
    """Whether opening these batches takes so long that it is not for the event loop.

    Raises:
        BatchError: These are no batches.
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
    """What batches hold, from ``first_offset`` to ``next_offset``, in pages of about ``page_bytes`` of JSON.

    A page has at least one record, or a gap, or the news that a batch could not be opened, or says that everything up
    to ``next_offset`` has expired. The caller may stop after any page; what comes later is not opened then.

    Args:
        shard: The shard's name.
        buffers: Whole batches, one after another.
        first_offset: Records below it are left out.
        next_offset: So are those from here on.
        now_us: Records that have expired by then are left out.
        page_bytes: See above.
        largest_raw_bytes: A batch whose body is larger is not opened.
    """
    records: list[msgspec.Raw] = []
    gaps: list[tuple[int, int]] = []
    size_bytes, at_offset = 0, first_offset
    for buffer in buffers:
        for at, header in batch.iterate(buffer):
            begin, end = max(header.base_offset, first_offset), min(header.next_offset, next_offset)
            if begin >= end:
                continue
            if header.is_gap:
                gaps.append((begin, end))
                at_offset = end
                continue
            try:
                found = _open(buffer, at, header, now_us, largest_raw_bytes)
            except StorageError as error:
                yield Page(records, gaps, begin, size_bytes, error, end)
                records, gaps, size_bytes, at_offset = [], [], 0, end
                continue
            for record in found:
                if not begin <= record.offset < end:
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
    buffer: Readable, at: int, header: batch.BatchHeader, now_us: int, largest_raw_bytes: int
) -> list[StoredRecord]:
    if header.raw_size > largest_raw_bytes or header.record_count > _LARGEST_RECORD_COUNT:
        raise LimitExceededError(
            f"the batch at offset {header.base_offset} has {header.record_count} records in {header.raw_size} bytes; "
            f"at most {_LARGEST_RECORD_COUNT} in {largest_raw_bytes} bytes (limits.max_frame_bytes) are given as JSON; "
            f"read it with the native protocol"
        )
    try:
        records = batch.decode(buffer, at, max_raw_bytes=largest_raw_bytes)
    except BatchError as error:
        raise BatchError(f"the batch at offset {header.base_offset} cannot be opened: {error}") from error
    if header.columns & Column.EXPIRES_AT:
        return [record for record in records if not 0 < record.expires_at_us <= now_us]
    return records
