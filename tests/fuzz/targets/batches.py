"""Record batches: header, columns, compression; read record by record, as Arrow columns and as JSON."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from journal.server.json_protocol.records import pages
from shards import compiled
from shards.errors import BatchError, InvalidRequestError, StorageError
from shards.format import batch
from shards.format.batch import Codec
from shards.format.batch_header import BODY_CRC_AT, CHECKED_FROM, MAGIC, PREFIX_SIZE, verify_content
from shards.format.checksum import crc32c
from shards.format.columns import ALL_COLUMNS, Column, read_columns, write_columns
from shards.format.compression import compress, decompress
from shards.format.record import Gap, Record, StoredRecord
from shards.format.record_decoder import decode_in_python
from shards.parquet.arrow_batches import read_table
from shards.segments.read_slices import LostBatchError, find_in_bytes
from tests.fuzz.target import Target
from tests.shards.batches import NOW_US, encode_stamped
from tests.shards.parquet.stamped_batches import records_of

_GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
_MAX_RAW_BYTES = 1 << 20
_MAX_INT64 = 2**63 - 1

RECORDS: tuple[list[Record], ...] = (
    [Record(b"one")],
    [Record(b"a"), Record(b""), Record(b"ccc")],
    [
        Record(b"value", b"key", "topic/\u00fc", 5, (("name", b"x"), ("n", b"")), ("tag", "\u20ac"), 77),
        Record(b"", b"k2", "", 6, (), ("t",), 0),
        Record(b"more", b"", "topic", 9, (("h", b"\xff"),), (), 99),
    ],
    [Record(b"v" * 300, b"k" * 40, "t", NOW_US + number) for number in range(4)],
)


def seeds() -> list[bytes]:
    """Batches of every kind, alone and behind each other."""
    made = [encode_stamped(records, 10, codec=codec) for records in RECORDS for codec in Codec]
    golden = [path.read_bytes() for path in sorted(_GOLDEN.glob("batch_*.bin"))]
    gap = batch.gap_batch(5, 9, 3, NOW_US)
    return [*made, *golden, gap, gap + made[3] + made[6], b"".join(made[:4])]


def repair(data: bytes) -> bytes:
    """Make magic, sizes and checksums of the batches in these bytes right, one batch after another."""
    fixed = bytearray(data)
    at = 0
    while len(fixed) - at >= batch.HEADER_SIZE:
        repair_one(fixed, at, len(fixed))
        (body_size,) = struct.unpack_from("<I", fixed, at + CHECKED_FROM)
        at += batch.HEADER_SIZE + (body_size + 7 & -8)
    return bytes(fixed)


def repair_one(fixed: bytearray, at: int, end: int) -> None:
    """Make the batch at a place one that passes its checksums, cut to what is there."""
    fixed[at : at + 4] = MAGIC
    left = end - at - batch.HEADER_SIZE
    (body_size,) = struct.unpack_from("<I", fixed, at + CHECKED_FROM)
    codec, flags = fixed[at + 50], fixed[at + 51]
    if body_size + 7 & -8 > left:
        body_size = left & -8
        struct.pack_into("<I", fixed, at + CHECKED_FROM, body_size)
    if flags == 0 and codec == 0:
        struct.pack_into("<I", fixed, at + CHECKED_FROM + 4, body_size)
    stop = at + batch.HEADER_SIZE + (body_size + 7 & -8)
    struct.pack_into("<I", fixed, at + BODY_CRC_AT, crc32c(memoryview(fixed)[at + CHECKED_FROM : stop]))
    struct.pack_into("<I", fixed, at + 4, crc32c(memoryview(fixed)[at + 8 : at + PREFIX_SIZE]))


def run_batches(data: bytes) -> None:
    """Batches back to back are read, or refused by BatchError; no other error, and never memory over the limit.

    Whole batches and single columns say the same; Arrow columns have the same records; what was read encodes to a
    batch that reads the same; a part of a batch has that part of its records; another codec changes nothing.
    """
    try:
        places = list(batch.iterate(data))
    except BatchError:
        places = []
    with contextlib.suppress(LostBatchError):
        find_in_bytes(data, lambda _: False)
    all_records: list[Any] | None = []
    for at, header in places:
        found = _check_one(data, at)
        if all_records is not None:
            all_records = None if found is None else all_records + found
        assert header.size_bytes >= batch.HEADER_SIZE
    if places:
        _check_together(data, all_records)
        for page in pages("s", [data], 0, _MAX_INT64, now_us=50, page_bytes=500, largest_raw_bytes=_MAX_RAW_BYTES):
            assert page.error is None or isinstance(page.error, StorageError)


def _check_one(data: bytes, at: int) -> list[Any] | None:
    try:
        header = verify_content(data, at)
        stamped = batch.verify(data, at)
        assert stamped == header
        found = batch.decode(data, at, max_raw_bytes=_MAX_RAW_BYTES)
    except BatchError:
        _check_columns_of_refused(data, at)
        return None
    if header.is_gap:
        assert not found
        assert header.next_offset > header.base_offset
        part = batch.slice_batch(data, at, header.base_offset, header.base_offset + 1)
        assert batch.verify(part).next_offset == header.base_offset + 1
        return found
    assert len(found) == header.record_count
    assert batch.values(data, at) == [record.value for record in found]
    assert batch.keys(data, at) == [record.key for record in found]
    assert batch.topics(data, at) == [record.topic for record in found]
    assert batch.tags(data, at) == [record.tags for record in found]
    assert batch.timestamps(data, at) == [record.timestamp_us for record in found]
    for codec in Codec:
        other = batch.recompress(data, at, codec)
        assert batch.decode(other) == found
    _check_encoded_again(header, found)
    middle = header.base_offset + len(found) // 2
    if header.base_offset < middle < header.next_offset <= 2**64 - 1:
        for first, after in ((header.base_offset, middle), (middle, header.next_offset)):
            part = batch.slice_batch(data, at, first, after)
            assert batch.decode(part) == [record for record in found if first <= record.offset < after]
    return found


def _check_encoded_again(header: batch.BatchHeader, found: Sequence[Any]) -> None:
    if any(record.timestamp_us == 0 for record in found):
        return  # an encoder takes 0 for "now"
    records = [
        Record(each.value, each.key, each.topic, each.timestamp_us, each.headers, each.tags, each.expires_at_us)
        for each in found
    ]
    again = bytearray(batch.encode(records, now_us=1, codec=Codec(header.codec)))
    batch.stamp(again, 0, header.base_offset, header.lsn, header.append_time_us)
    assert batch.decode(again) == found


def _check_columns_of_refused(data: bytes, at: int) -> None:
    for read in (batch.values, batch.keys, batch.topics, batch.tags, batch.timestamps):
        try:
            read(data, at, max_raw_bytes=_MAX_RAW_BYTES)
        except BatchError:
            continue
    for change in (lambda: batch.recompress(data, at, Codec.ZSTD), lambda: batch.slice_batch(data, at, 0, 1)):
        try:
            change()
        except (BatchError, InvalidRequestError):
            continue


def _check_together(data: bytes, records: list[Any] | None) -> None:
    try:
        seen = batch.read_records(data, max_raw_bytes=_MAX_RAW_BYTES)
    except BatchError:
        assert records is None
        seen = None
    if records is not None and seen is not None:
        assert [each for each in seen if not isinstance(each, Gap)] == records
    try:
        rows = read_table(data, max_raw_bytes=_MAX_RAW_BYTES)
    except BatchError:
        # Arrow has signed numbers: what does not fit them is refused there alone.
        assert records is None or any(
            max(record.offset, record.lsn, record.append_time_us) >= _MAX_INT64 for record in records
        )
        return
    assert records is not None
    assert plain(records_of(rows)) == plain(records)


def plain(records: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [
        (
            each.offset,
            each.lsn,
            each.append_time_us,
            each.value,
            each.key,
            each.topic,
            each.timestamp_us,
            tuple(each.headers),
            tuple(each.tags),
            each.expires_at_us,
        )
        for each in records
    ]


_COLUMNS_HEAD = struct.Struct("<HB")


def run_columns(data: bytes) -> None:
    """A body is read as columns or refused by BatchError; each column alone says the same as all of them together.

    What was read is written to a body that reads the same. Both forms of the decoder of records agree.
    """
    if len(data) < _COLUMNS_HEAD.size:
        return
    count, present = _COLUMNS_HEAD.unpack_from(data)
    present &= ALL_COLUMNS
    body = data[_COLUMNS_HEAD.size :]
    try:
        found = read_columns(body, count, present)
    except BatchError:
        found = None
    for column in (Column.TIMESTAMP, Column.TOPIC, Column.KEY, Column.VALUE, Column.HEADERS, Column.TAGS):
        try:
            alone = read_columns(body, count, present, column)
        except BatchError:
            assert found is None
            continue
        assert found is None or alone.get(column) == found.get(column)
    if found and count:
        assert read_columns(write_columns(found), count, present) == found
    if count and present:
        _check_both_forms(body, count, present, (found or {}).get(Column.TIMESTAMP, (5,)))


def _check_both_forms(body: bytes, count: int, present: int, times_us: Sequence[int]) -> None:
    """The compiled decoder of records reads what the one in Python reads, and nothing else."""
    if compiled.decode_records is None:
        return
    place = (10, 3, NOW_US)
    header = batch.BatchHeader(
        0, *place, 0, len(body), len(body), count, present, 0, 0, 0, 0, 0, 0, min(times_us), max(times_us)
    )
    try:
        expected = decode_in_python(header, body, 0)
    except BatchError:
        expected = None
    found = compiled.decode_records(body, count, present, *place, min(times_us), max(times_us), StoredRecord)
    assert found == expected


def _column_seeds() -> list[bytes]:
    made = []
    for records in RECORDS:
        whole = batch.encode(records, now_us=NOW_US)
        header = batch.BatchHeader.unpack(whole)
        made.append(_COLUMNS_HEAD.pack(header.record_count, header.columns) + whole[batch.HEADER_SIZE :])
    return made


_COMPRESSED_HEAD = struct.Struct("<BI")


def run_compression(data: bytes) -> None:
    """Compressed bytes give exactly the size that was asked for, or BatchError, and no memory over the limit."""
    if len(data) < _COMPRESSED_HEAD.size:
        return
    codec, raw_size = _COMPRESSED_HEAD.unpack_from(data)
    try:
        raw = decompress(codec, memoryview(data)[_COMPRESSED_HEAD.size :], raw_size, max_raw_bytes=_MAX_RAW_BYTES)
    except BatchError:
        return
    assert len(raw) == raw_size <= _MAX_RAW_BYTES
    stored = compress(codec, raw)
    assert decompress(codec, stored, raw_size, max_raw_bytes=_MAX_RAW_BYTES) == raw


def _compressed_seeds() -> list[bytes]:
    raws = (b"", b"a" * 5000, bytes(range(256)) * 4, bytes(1 << 19))
    return [_COMPRESSED_HEAD.pack(codec, len(raw)) + compress(codec, raw)[:3000] for raw in raws for codec in Codec]


TARGETS = (
    Target("batches", run_batches, seeds, repair, (MAGIC,), is_slow=True),
    Target("columns", run_columns, _column_seeds),
    Target("compression", run_compression, _compressed_seeds, tokens=(b"\x28\xb5\x2f\xfd",)),
)
