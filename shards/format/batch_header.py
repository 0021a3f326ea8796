"""The 88-byte header of a record batch: its layout, stamp and checks. The body is in `shards.format.columns`.

The first 32 bytes belong to the server, which writes them (the stamp) when the batch is appended; they are zero before.
The rest belongs to the producer and is never changed.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from shards.errors import BatchError
from shards.format.checksum import Buffer, crc32c
from shards.format.columns import ALL_COLUMNS, MAX_TIME_US
from shards.format.compression import Codec

MAGIC = b"JRB1"
HEADER_SIZE = 88
SMALLEST_BATCH_BYTES = HEADER_SIZE + 8
"""The smallest possible batch: a body has at least 4 bytes before compression, and a gap batch has 8."""
PREFIX_SIZE = 32
BODY_CRC_AT = 32
CHECKED_FROM = 36
"""body_crc covers the batch from here to its end."""
FLAGS_AT = 51
PRODUCER_AT = 52
PRODUCER_END = 68

MAX_SEQUENCE = 2**32
"""Sequences are counted modulo this."""
MAX_RECORD_COUNT = 1 << 20
MAX_RAW_BYTES = 64 << 20
"""Size limit of a body before compression; a batch over it is refused by encoder, server and reader alike."""
GAP = 1
"""Flag: a control batch for lost offsets; its body is the int64 offset after them."""

_PLACE = "QQQ"
_PRODUCER = "IQI"
_CHECKED = f"IIIHBB{_PRODUCER}IQQ"
PLACE = struct.Struct(f"<{_PLACE}")
PREFIX = struct.Struct(f"<4sI{_PLACE}")
CHECKED = struct.Struct(f"<{_CHECKED}")
PRODUCER = struct.Struct(f"<{_PRODUCER}")
HEADER = struct.Struct(f"<4sI{_PLACE}I{_CHECKED}")
_HEADER_WITHOUT_MAGIC = struct.Struct(f"<4xI{_PLACE}I{_CHECKED}")
_BODY_SIZE = struct.Struct("<I")  # The first of the fields of `CHECKED`.
INT64 = struct.Struct("<q")
GAP_FIELDS = (INT64.size, INT64.size, 0, 0, 0, GAP, 0, 0, 0, 0, 0, 0)
"""The fixed fields of a gap batch from byte 36 up to its body."""
MAX_CODEC = int(max(Codec))
_new_tuple = tuple.__new__


class BatchHeader(NamedTuple):
    """The fields of a batch header, in their order; a tuple because one is made for every append.

    Attributes:
        base_offset: Offset of the first record; 0 while the batch is not stamped.
        body_size: Stored size in bytes, possibly compressed, without the padding at the end.
        raw_size: Size of the body in bytes before compression.
        columns: Bit set of `shards.format.columns.Column`.
        sequence: The producer's number of the first record, modulo `MAX_SEQUENCE`.
    """

    prefix_crc: int
    base_offset: int
    lsn: int
    append_time_us: int
    body_crc: int
    body_size: int
    raw_size: int
    record_count: int
    columns: int
    codec: int
    flags: int
    producer_epoch: int
    producer_id: int
    sequence: int
    reserved: int
    min_timestamp_us: int
    max_timestamp_us: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch with header and padding."""
        return HEADER_SIZE + (self.body_size + 7 & -8)

    @property
    def next_offset(self) -> int:
        """Offset after the last record (of a gap batch: after the lost range)."""
        return self.base_offset + self.record_count

    @property
    def last_offset(self) -> int:
        """Offset of the last record (of a gap batch: the last lost offset)."""
        return self.next_offset - 1

    @property
    def is_gap(self) -> bool:
        """Whether the batch reports lost offsets and has no records."""
        return self.flags & GAP != 0

    @staticmethod
    def unpack(buffer: Buffer, at: int = 0) -> BatchHeader:
        """Decode the header at ``at``, stamped or not; only checks that its bytes exist.

        Raises:
            BatchError: The buffer ends inside the header (or inside the body of a gap batch).
        """
        try:
            header = BatchHeader._make(_HEADER_WITHOUT_MAGIC.unpack_from(buffer, at))
        except struct.error:
            raise _cut_off(buffer, at, HEADER_SIZE) from None
        return _GapHeader.of(header, buffer, at) if header.flags & GAP else header


class _GapHeader(BatchHeader):
    """Header of a gap batch: the end of its range is in the body, so it is stored here in addition."""

    gap_next_offset: int

    @property
    def next_offset(self) -> int:
        return self.gap_next_offset

    @classmethod
    def of(cls, header: BatchHeader, buffer: Buffer, at: int) -> _GapHeader:
        gap = cls._make(header)
        try:
            (gap.gap_next_offset,) = INT64.unpack_from(buffer, at + HEADER_SIZE)
        except struct.error:
            raise _cut_off(buffer, at, HEADER_SIZE + INT64.size) from None
        return gap


def stored_size(buffer: Buffer, at: int = 0) -> int:
    """Return the size of the whole batch according to the header at ``at``, of which nothing is checked."""
    (body_size,) = _BODY_SIZE.unpack_from(buffer, at + CHECKED_FROM)
    return int(HEADER_SIZE + (body_size + 7 & -8))


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, lsn: int, append_time_us: int) -> None:
    """Write the server's part, bytes 0 to 32, of the batch at ``at`` in place; nothing else is read or changed."""
    place = PLACE.pack(base_offset, lsn, append_time_us)
    PREFIX.pack_into(buffer, at, MAGIC, crc32c(place), base_offset, lsn, append_time_us)


def verify_body(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Check the producer's part of the batch at ``at``, as a server does for an append. The stamp is not checked.

    The columns are not decoded; only a reader does that.

    Raises:
        BatchError: It is cut off, its checksum is wrong, a field is impossible, or it is a gap batch.
    """
    try:
        fields = _HEADER_WITHOUT_MAGIC.unpack_from(buffer, at)
    except struct.error:
        raise _cut_off(buffer, at, HEADER_SIZE) from None
    _, _, _, _, body_crc, body_size, raw_size, count, columns, codec, flags, _, _, _, reserved, earliest, latest = (
        fields
    )
    end = at + HEADER_SIZE + (body_size + 7 & -8)
    if end > len(buffer):
        raise _cut_off(buffer, at, end - at)
    # Not assigned to a name: in the traceback of an error it would keep the caller's bytearray from being resized.
    if crc32c(memoryview(buffer)[at + CHECKED_FROM : end]) != body_crc:
        raise _wrong_checksum(buffer, at, end, body_crc)
    if (
        flags
        or reserved
        or not 0 < count <= MAX_RECORD_COUNT
        or not 0 < columns <= ALL_COLUMNS
        or not 4 * count <= raw_size <= MAX_RAW_BYTES
        or not earliest <= latest <= MAX_TIME_US
        or (codec > MAX_CODEC or body_size & 7 if codec else body_size != raw_size)
    ):
        _refuse_impossible(BatchHeader._make(fields), buffer, at)
    return _new_tuple(BatchHeader, fields)


def verify(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Check stamp and body of the batch at ``at``, as a reader does for stored or received bytes.

    Raises:
        BatchError: As `verify_body`, or the batch was never stamped or its stamp is damaged. Gap batches are valid.
    """
    if buffer[at : at + 4] != MAGIC:
        verify_magic(buffer, at)
    header = verify_content(buffer, at)
    prefix_crc = crc32c(memoryview(buffer)[at + 8 : at + PREFIX_SIZE])
    if prefix_crc != header.prefix_crc:
        raise _wrong(at, "prefix checksum", f"{header.prefix_crc:#010x}", f"{prefix_crc:#010x}")
    return header


def verify_content(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Check the producer's part like `verify_body`, but accept a gap batch: for readers that need no stamp."""
    if len(buffer) - at < HEADER_SIZE:
        raise _cut_off(buffer, at, HEADER_SIZE)
    return _verify_gap(buffer, at) if buffer[at + FLAGS_AT] else verify_body(buffer, at)


def verify_magic(buffer: Buffer, at: int = 0) -> None:
    """Check that a stamped batch may begin at ``at``.

    Raises:
        BatchError: Other bytes, or too few, are found.
    """
    if buffer[at : at + 4] != MAGIC:
        magic = bytes(buffer[at : at + 4])
        if len(buffer) - at < HEADER_SIZE:
            raise _cut_off(buffer, at, HEADER_SIZE)
        hint = "" if any(magic) else " (the batch was never stamped)"
        raise _wrong(at, "magic", str(MAGIC), str(magic) + hint)


def verify_stamp(buffer: Buffer, at: int = 0) -> None:
    """Check that a stamped batch begins at ``at``: its magic, and the checksum of its stamp.

    Raises:
        BatchError: No stamped batch begins there, or the buffer ends inside the header.
    """
    verify_magic(buffer, at)
    if len(buffer) - at < HEADER_SIZE:
        raise _cut_off(buffer, at, HEADER_SIZE)
    _, expected, *_ = PREFIX.unpack_from(buffer, at)
    found = crc32c(memoryview(buffer)[at + 8 : at + PREFIX_SIZE])
    if found != expected:
        raise _wrong(at, "prefix checksum", f"{expected:#010x}", f"{found:#010x}")


def _verify_gap(buffer: Buffer, at: int) -> BatchHeader:
    header = BatchHeader.unpack(buffer, at)
    end = at + header.size_bytes
    if end > len(buffer):
        raise _cut_off(buffer, at, end - at)
    if crc32c(memoryview(buffer)[at + CHECKED_FROM : end]) != header.body_crc:
        raise _wrong_checksum(buffer, at, end, header.body_crc)
    found = CHECKED.unpack_from(buffer, at + CHECKED_FROM)
    if found != GAP_FIELDS:
        raise _wrong(at, "fields of a gap batch", str(GAP_FIELDS), str(found))
    if header.next_offset <= header.base_offset:
        raise _wrong(at, "end of the gap", f"more than its first offset {header.base_offset}", str(header.next_offset))
    return header


def _refuse_impossible(header: BatchHeader, buffer: Buffer, at: int) -> None:
    """Raise for the first impossible field; return if there is none, or only valid padding."""
    smallest = 4 * header.record_count
    uncompressed_size = header.raw_size if header.codec == 0 else header.body_size
    end_of_body = at + HEADER_SIZE + header.body_size
    padding = bytes(buffer[end_of_body : at + header.size_bytes])
    for what, is_right, expected, found in (
        ("flags", header.flags == 0, "0, since producers set none", header.flags),
        ("reserved field", header.reserved == 0, "0", header.reserved),
        ("record_count", 0 < header.record_count <= MAX_RECORD_COUNT, f"1 to {MAX_RECORD_COUNT}", header.record_count),
        ("columns", 0 < header.columns <= ALL_COLUMNS, f"a bit set from 1 to {ALL_COLUMNS}", header.columns),
        ("raw_size", smallest <= header.raw_size <= MAX_RAW_BYTES, f"{smallest} to {MAX_RAW_BYTES}", header.raw_size),
        ("min_timestamp_us", header.min_timestamp_us <= header.max_timestamp_us, "<= max", header.min_timestamp_us),
        ("max_timestamp_us", header.max_timestamp_us <= MAX_TIME_US, f"<= {MAX_TIME_US}", header.max_timestamp_us),
        ("codec", header.codec <= MAX_CODEC, f"0 to {MAX_CODEC}", header.codec),
        ("body_size", header.body_size == uncompressed_size, f"raw_size {header.raw_size}", header.body_size),
        ("padding", not any(padding), "zero bytes", padding.hex()),
    ):
        if not is_right:
            raise _wrong(at, what, expected, str(found))


def _wrong_checksum(buffer: Buffer, at: int, end: int, body_crc: int) -> BatchError:
    found = crc32c(memoryview(buffer)[at + CHECKED_FROM : end])
    return _wrong(at, "body checksum", f"{body_crc:#010x}", f"{found:#010x}")


def _wrong(at: int, what: str, expected: str, found: str) -> BatchError:
    return BatchError(f"record batch at byte {at}: wrong {what}: expected {expected}, found {found}")


def _cut_off(buffer: Buffer, at: int, needed_bytes: int) -> BatchError:
    found = max(len(buffer) - at, 0)
    return BatchError(f"record batch at byte {at} is cut off: expected {needed_bytes} bytes, found {found}")
