"""The codecs of a record batch's body. Decompression believes nothing that the compressed bytes say of themselves.

``zstd`` is exactly one Zstandard frame that states its content size; ``lz4`` is one bare LZ4 block, whose size the
batch header gives. Which bytes are compressed is the matter of `shards.format.batch`.
"""

from __future__ import annotations

import enum
import threading

import lz4.block
import zstandard

from shards.errors import BatchError
from shards.format.checksum import Buffer

ZSTD_LEVEL = 1
LZ4_MAX_RATIO = 255
"""One byte of an LZ4 block never stands for more bytes than this, so a larger claim is a lie."""


class Codec(enum.IntEnum):
    """How a body is stored."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    def __str__(self) -> str:
        """The name, for people: `zstd`."""
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class _Contexts(threading.local):
    """Zstandard contexts are costly to make and must not be shared by threads: one pair a thread."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(codec: int, raw: bytes) -> bytes:
    """Return ``raw`` compressed by ``codec`` (`Codec.NONE`: as it is)."""
    if codec == Codec.ZSTD:
        return _contexts.compressor.compress(raw)
    if codec == Codec.LZ4:
        return bytes(lz4.block.compress(raw, store_size=False))
    return raw


def decompress(codec: int, stored: Buffer, raw_size: int, *, max_raw_bytes: int) -> bytes:
    """Return the ``raw_size`` bytes that ``stored`` stands for.

    Memory is taken only after ``raw_size`` has passed the limit and agrees with what the compressed bytes claim.

    Raises:
        BatchError: The codec is unknown, the size is over ``max_raw_bytes`` or wrong, or the bytes are damaged.
    """
    if raw_size > max_raw_bytes:
        raise BatchError(f"body is {raw_size} bytes before compression, the reader's limit is {max_raw_bytes}")
    if not codec:
        raw = bytes(stored)
    elif codec == Codec.ZSTD:
        raw = _decompress_zstd(stored, raw_size)
    elif codec == Codec.LZ4:
        raw = _decompress_lz4(stored, raw_size)
    else:
        raise BatchError(f"unknown codec {codec}, expected one of {', '.join(f'{c.value} ({c.name})' for c in Codec)}")
    if len(raw) != raw_size:
        raise BatchError(f"body has {len(raw)} bytes when decompressed, the header says {raw_size}")
    return raw


def _decompress_zstd(stored: Buffer, raw_size: int) -> bytes:
    try:
        # The library takes memory for the size the frame claims, so the claim is looked at first.
        claimed = zstandard.frame_content_size(stored)
        if claimed != raw_size:
            found = "no content size" if claimed < 0 else f"content size {claimed}"
            raise BatchError(f"zstd frame has {found}, the header says {raw_size}")
        return _contexts.decompressor.decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BatchError(f"body is not one whole zstd frame: {error}") from error


def _decompress_lz4(stored: Buffer, raw_size: int) -> bytes:
    if raw_size > len(stored) * LZ4_MAX_RATIO:
        raise BatchError(f"lz4 block of {len(stored)} bytes cannot hold the {raw_size} bytes that the header says")
    try:
        return bytes(lz4.block.decompress(stored, uncompressed_size=raw_size))
    except lz4.block.LZ4BlockError as error:
        raise BatchError(f"body is not an lz4 block: {error}") from error
