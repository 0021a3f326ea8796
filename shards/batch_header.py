"""The 88-byte header of a record batch: its layout, stamp and checks. What the body holds is `shards.columns`.

The first 32 bytes belong to the server, which stamps them when it gives the batch its place; they are zero before. The
rest belongs to the producer and is never changed after it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from shards.checksum import Buffer, crc32c
from shards.columns import ALL_COLUMNS, MAX_TIME_US
from shards.compression import Codec
from shards.errors import BatchError

MAGIC = b"JRB1"
HEADER_SIZE = 88
PREFIX_SIZE = 32
BODY_CRC_AT = 32
CHECKED_FROM = 36
"""body_crc covers the batch from here to its end."""
PRODUCER_AT = 52
PRODUCER_END = 68

MAX_SEQUENCE = 2**32
"""Sequences are counted modulo this."""
MAX_RECORD_COUNT = 1 << 20
MAX_RAW_BYTES = 64 << 20
"""Size limit of a body before compression; a batch over it is refused by encoder, server and reader alike."""
GAP = 1
"""Flag: a control batch that stands for lost offsets; its body is the int64 offset after them."""

_PLACE = "QQQ"
_PRODUCER = "IQI"
_CHECKED = f"IIIHBB{_PRODUCER}IQQ"
PLACE = struct.Struct(f"<{_PLACE}")
PREFIX = struct.Struct(f"<4sI{_PLACE}")
CHECKED = struct.Struct(f"<{_CHECKED}")
PRODUCER = struct.Struct(f"<{_PRODUCER}")
HEADER = struct.Struct(f"<4sI{_PLACE}I{_CHECKED}")
_HEADER_WITHOUT_MAGIC = struct.Struct(f"<4xI{_PLACE}I{_CHECKED}")
INT64 = struct.Struct("<q")


class BatchHeader(NamedTuple):
    """The fields of a batch header, in the order in which they lie; a tuple because one is made for every append.

    Attributes:
        base_offset: Offset of the first record; 0 while the batch is not stamped.
        body_size: Stored size in bytes, maybe compressed, without the padding at the end.
        raw_size: Size of the body in bytes before compression.
        columns: Bit set of `shards.columns.Column`.
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
        """Whether the batch stands for lost offsets and holds no records."""
        return self.flags & GAP != 0

    @staticmethod
    def unpack(buffer: Buffer, at: int = 0) -> BatchHeader:
        """Read the header at ``at``, stamped or not, without checking more than that its bytes are there.

        Raises:
            BatchError: The buffer ends inside the header (or inside the body of a gap batch).
        """
        try:
            header = BatchHeader._make(_HEADER_WITHOUT_MAGIC.unpack_from(buffer, at))
        except struct.error:
            raise _cut_off(buffer, at, HEADER_SIZE) from None
        return _GapHeader.of(header, buffer, at) if header.flags & GAP else header


class _GapHeader(BatchHeader):
    """Header of a gap batch: the end of its range lies in the body, so it is carried along."""

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


def stamp(buffer: bytearray | memoryview, at: int, base_offset: int, lsn: int, append_time_us: int) -> None:
    """Write the server's part, bytes 0 to 32, of the batch at ``at`` in place; nothing else is looked at or changed."""
    place = PLACE.pack(base_offset, lsn, append_time_us)
    PREFIX.pack_into(buffer, at, MAGIC, crc32c(place), base_offset, lsn, append_time_us)


def verify_body(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Check the producer's part of the batch at ``at``: what a server asks of an append. The stamp is not looked at.

    The columns themselves are not opened; only a reader does that.

    Raises:
        BatchError: It is cut off, its checksum is wrong, a field is impossible, or it is a gap batch.
    """
    header = _verify_checked(buffer, at)
    if header.flags:
        raise BatchError(f"record batch at byte {at} has flags {header.flags:#x}, expected 0: producers set none")
    return header


def verify(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Check stamp and body of the batch at ``at``: what a reader asks of stored or received bytes.

    Raises:
        BatchError: As `verify_body`, or the batch was never stamped or its stamp is damaged. Gap batches are welcome.
    """
    verify_magic(buffer, at)
    header = _verify_checked(buffer, at)
    prefix_crc = crc32c(memoryview(buffer)[at + 8 : at + PREFIX_SIZE])
    if prefix_crc != header.prefix_crc:
        raise _wrong(at, "prefix checksum", f"{prefix_crc:#010x}", f"{header.prefix_crc:#010x}")
    return _GapHeader.of(header, buffer, at) if header.flags else header


def verify_magic(buffer: Buffer, at: int = 0) -> None:
    """Check that a stamped batch may begin at ``at``.

    Raises:
        BatchError: Other bytes, or too few, are there.
    """
    magic = bytes(buffer[at : at + len(MAGIC)])
    if magic != MAGIC:
        if len(buffer) - at < HEADER_SIZE:
            raise _cut_off(buffer, at, HEADER_SIZE)
        hint = " (the batch was never stamped)" if not any(magic) else ""
        raise _wrong(at, "magic", str(MAGIC), str(magic) + hint)


def _verify_checked(buffer: Buffer, at: int) -> BatchHeader:
    try:
        header = BatchHeader._make(_HEADER_WITHOUT_MAGIC.unpack_from(buffer, at))
    except struct.error:
        raise _cut_off(buffer, at, HEADER_SIZE) from None
    end = at + HEADER_SIZE + (header.body_size + 7 & -8)
    if end > len(buffer):
        raise _cut_off(buffer, at, end - at)
    # The view is not bound to a name: an error's traceback would keep the caller's bytearray from being resized.
    body_crc = crc32c(memoryview(buffer)[at + CHECKED_FROM : end])
    if body_crc != header.body_crc:
        raise _wrong(at, "body checksum", f"{body_crc:#010x}", f"{header.body_crc:#010x}")
    (_, _, _, _, _, body_size, raw_size, count, columns, codec, flags, _, _, _, reserved, earliest, latest) = header
    if flags:
        _verify_gap(header, buffer, at)
    elif (
        reserved
        or not 0 < count <= MAX_RECORD_COUNT
        or not 0 < columns <= ALL_COLUMNS
        or not 4 * count <= raw_size <= MAX_RAW_BYTES
        or not earliest <= latest <= MAX_TIME_US
        or (raw_size != body_size if codec == 0 else codec > 2)
    ):
        raise _impossible(header, at)
    if body_size & 7 and any(buffer[at + HEADER_SIZE + body_size : end]):
        raise _wrong(at, "padding", "zero bytes", bytes(buffer[at + HEADER_SIZE + body_size : end]).hex())
    return header


def _verify_gap(header: BatchHeader, buffer: Buffer, at: int) -> None:
    if header.flags != GAP:
        raise _wrong(at, "flags", f"0 or {GAP}", f"{header.flags:#x}")
    expected = header._replace(
        **{"body_size": INT64.size, "raw_size": INT64.size, "record_count": 0, "columns": 0, "codec": 0},
        **{"producer_epoch": 0, "producer_id": 0, "sequence": 0, "reserved": 0},
        **{"min_timestamp_us": 0, "max_timestamp_us": 0},
    )
    if header != expected:
        raise _wrong(at, "gap header", str(tuple(expected)), str(tuple(header)))
    next_offset = _GapHeader.of(header, buffer, at).next_offset
    if next_offset <= header.base_offset:
        raise _wrong(at, "end of the gap", f"more than its first offset {header.base_offset}", str(next_offset))


def _impossible(header: BatchHeader, at: int) -> BatchError:
    if header.reserved:
        return _wrong(at, "reserved", "0", str(header.reserved))
    if not 0 < header.record_count <= MAX_RECORD_COUNT:
        return _wrong(at, "record_count", f"1 to {MAX_RECORD_COUNT}", str(header.record_count))
    if not 0 < header.columns <= ALL_COLUMNS:
        return _wrong(at, "columns", f"a bit set from 1 to {ALL_COLUMNS:#x}", f"{header.columns:#x}")
    if header.codec > max(Codec):
        return _wrong(at, "codec", f"0 to {max(Codec)}", str(header.codec))
    if not 4 * header.record_count <= header.raw_size <= MAX_RAW_BYTES:
        return _wrong(at, "raw_size", f"{4 * header.record_count} to {MAX_RAW_BYTES}", str(header.raw_size))
    if not header.min_timestamp_us <= header.max_timestamp_us <= MAX_TIME_US:
        return _wrong(
            at, "timestamps", f"min <= max <= {MAX_TIME_US}", f"{header.min_timestamp_us}, {header.max_timestamp_us}"
        )
    return _wrong(at, "body_size of an uncompressed body", f"raw_size {header.raw_size}", str(header.body_size))


def _wrong(at: int, what: str, expected: str, found: str) -> BatchError:
    return BatchError(f"record batch at byte {at}: wrong {what}: expected {expected}, found {found}")


def _cut_off(buffer: Buffer, at: int, needed_bytes: int) -> BatchError:
    found = max(len(buffer) - at, 0)
    return BatchError(f"record batch at byte {at} is cut off: expected {needed_bytes} bytes, found {found}")
