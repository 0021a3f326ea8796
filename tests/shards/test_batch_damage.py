"""No bytes make the reader of a batch do anything but return records or raise `BatchError`."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from shards.errors import BatchError
from shards.format import batch
from shards.format.batch import (
    HEADER_SIZE,
    MAX_RAW_BYTES,
    MAX_RECORD_COUNT,
    Codec,
    decode,
    encode_values,
    gap_batch,
    iterate,
    read_records,
    verify,
    verify_body,
)
from shards.format.checksum import crc32c
from shards.format.compression import decompress
from shards.format.record import Record
from tests.shards.batches import codecs, encode_stamped, record_lists, stamped

pytestmark = pytest.mark.usefixtures("form_of_record_decoder")
CHECKED = struct.Struct("<IIIHBBIQIIQQ")
VALUE = 8


def crafted(
    body: bytes,
    *,
    count: int = 1,
    columns: int = VALUE,
    codec: int = 0,
    raw_size: int | None = None,
    flags: int = 0,
    reserved: int = 0,
    times_us: tuple[int, int] = (5, 5),
) -> bytes:
    """Return a stamped batch with right checksums and whatever fields and body are given."""
    raw_size = len(body) if raw_size is None else raw_size
    fields = CHECKED.pack(len(body), raw_size, count, columns, codec, flags, 0, 0, 0, reserved, *times_us)
    checked = fields + body + bytes(-len(body) & 7)
    return stamped(bytes(32) + crc32c(checked).to_bytes(4, "little") + checked)


def attempt(read: Callable[[bytes], object], buffer: bytes) -> object:
    """Return what the reader returns, or None if it refuses; any other exception fails the test."""
    try:
        return read(buffer)
    except BatchError:
        return None


READERS: list[Callable[[bytes], object]] = [
    decode,
    verify,
    verify_body,
    batch.values,
    batch.keys,
    batch.topics,
    batch.tags,
    batch.timestamps,
    read_records,
    lambda buffer: list(iterate(buffer)),
]


@given(st.binary(max_size=300))
def test_garbage_is_refused(garbage: bytes) -> None:
    for read in READERS:
        attempt(read, garbage)
        attempt(read, b"JRB1" + garbage)


@given(record_lists, codecs, st.data())
def test_a_flipped_bit_never_changes_what_is_read(records: list[Record], codec: Codec, data: st.DataObject) -> None:
    encoded = encode_stamped(records, 10, codec=codec)
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    damaged = bytearray(encoded)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BatchError):
        decode(bytes(damaged))
    with pytest.raises(BatchError):
        decode(encoded[: bit // 8])


@given(
    record_lists,
    codecs,
    st.data(),
)
def test_damage_under_a_right_checksum_gives_records_or_the_one_error(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    damaged = bytearray(encode_stamped(records, 10, codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(36, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    size = HEADER_SIZE + (int.from_bytes(damaged[36:40], "little") + 7 & -8)
    damaged[32:36] = crc32c(damaged[36:size]).to_bytes(4, "little")
    for read in READERS:
        attempt(read, bytes(damaged))


@given(
    st.binary(max_size=120).map(lambda body: body + bytes(-len(body) & 7)),
    st.integers(0, 20),
    st.integers(0, 255),
    st.integers(0, 4),
)
def test_any_body_under_any_columns_gives_records_or_the_one_error(
    body: bytes, count: int, columns: int, codec: int
) -> None:
    for raw_size in (len(body), 64):
        for read in READERS:
            attempt(read, crafted(body, count=count, columns=columns, codec=codec, raw_size=raw_size))


def offsets(*numbers: int) -> bytes:
    packed = struct.pack(f"<{len(numbers)}i", *numbers)
    return packed + bytes(-len(packed) & 7)


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        (crafted(offsets(0, 0), count=0), "record_count: expected 1 to"),
        (crafted(offsets(0, 0), count=MAX_RECORD_COUNT + 1), "record_count: expected 1 to"),
        (crafted(offsets(0, 0), columns=0), "columns: expected"),
        (crafted(offsets(0, 0), columns=128), "columns: expected"),
        (crafted(offsets(0, 0), codec=3), "codec: expected 0 to 2, found 3"),
        (crafted(offsets(0, 0), flags=2), "gap batch: expected"),
        (crafted(offsets(0, 0), reserved=1), "reserved field: expected 0, found 1"),
        (crafted(offsets(0, 0), raw_size=16), "body_size: expected raw_size 16, found 8"),
        (crafted(offsets(0, 0), codec=1, raw_size=MAX_RAW_BYTES + 1), "raw_size: expected"),
        (crafted(offsets(0, 0), count=9), "raw_size: expected 36 to"),
        (crafted(offsets(0, 0), times_us=(6, 5)), "min_timestamp_us"),
        (crafted(offsets(0, 0), times_us=(6, 2**63)), "max_timestamp_us"),
        (crafted(offsets(0, 0), times_us=(5, 6)), "timestamps are from 5 to 5"),
        (crafted(offsets(0, 9)), "cut off: expected 9 bytes, found 0"),
        (crafted(offsets(0, -1)), "expected number 1 to be at least 0, found -1"),
        (crafted(offsets(1, 1)), "expected the first to be 0, found 1"),
        (crafted(offsets(0, 8, 4) + bytes(8), count=2), "expected number 2 to be at least 8, found 4"),
        (crafted(offsets(0, 0) + bytes(8)), "body is 16 bytes, its columns take 8"),
        (crafted(offsets(0, 1) + b"\xff" + bytes(7), columns=2), "expected UTF-8"),
        (crafted(offsets(0, 1, 2) + "é".encode() + bytes(6), columns=2, count=2), "expected UTF-8"),
        (crafted(struct.pack("<q", -1), columns=64), "expected times from 0, found -1"),
        (crafted(struct.pack("<qq", 5, 7), columns=1, count=2, times_us=(5, 6)), "the header says 5 to 6"),
        (crafted(b"not zstd", codec=1, raw_size=16), "zstd frame"),
        (crafted(b"\xff" * 8, codec=2, raw_size=16), "lz4"),
        (crafted(b"\0" * 8, codec=2, raw_size=4096), "cannot hold the 4096 bytes"),
        (gap_batch(1, 2, 3, 4)[:-8] + bytes(8), "body checksum"),
    ],
)
def test_the_message_says_what_was_expected_and_what_was_found(encoded: bytes, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        decode(encoded)


def test_padding_must_be_zero() -> None:
    encoded = bytearray(encode_stamped([Record(value=bytes(999) + b"!")], codec=Codec.LZ4))
    assert int.from_bytes(encoded[36:40], "little") % 8
    encoded[-1] = 1
    encoded[32:36] = crc32c(encoded[36:]).to_bytes(4, "little")
    with pytest.raises(BatchError, match="padding: expected zero bytes, found"):
        verify_body(encoded)


def zstd_bomb(size: int, *, write_content_size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=write_content_size).compress(bytes(size))


@pytest.mark.parametrize(
    ("codec", "body", "raw_size"),
    [
        (Codec.ZSTD, zstd_bomb(32 << 20), 4096),
        (Codec.ZSTD, zstd_bomb(32 << 20, write_content_size=False), 4096),
        (Codec.ZSTD, zstd_bomb(4096) + zstd_bomb(32 << 20), 4096),
        (Codec.ZSTD, zstd_bomb(32 << 20), 32 << 20),
        (Codec.LZ4, lz4.block.compress(bytes(32 << 20), store_size=False), 4096),
        (Codec.LZ4, lz4.block.compress(bytes(32 << 20), store_size=False), 32 << 20),
        (Codec.LZ4, bytes(16), 60 << 20),
    ],
)
def test_a_bomb_is_refused_before_it_takes_memory(codec: Codec, body: bytes, raw_size: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BatchError):
            decode(crafted(body, codec=codec, raw_size=raw_size), max_raw_bytes=1 << 20)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@given(st.binary(max_size=100), st.integers(0, 10_000), codecs)
def test_decompression_is_total(stored: bytes, raw_size: int, codec: Codec) -> None:
    for body in (stored, zstandard.FRAME_HEADER + stored, zstd_bomb(100)[:-2] + stored):
        attempt(lambda body: decompress(codec, body, raw_size, max_raw_bytes=8192), body)


def test_a_buffer_can_be_resized_while_its_error_is_handled() -> None:
    damaged = bytearray(stamped(encode_values([b"abc"], timestamp_us=1)))
    damaged[-1] ^= 1
    with pytest.raises(BatchError):
        decode(damaged)
    try:
        verify_body(damaged)
    except BatchError:
        damaged += b"more"
    assert damaged.endswith(b"more")
