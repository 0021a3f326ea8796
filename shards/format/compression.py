"""The codecs of a record batch's body. Decompression does not trust the sizes in the compressed bytes.

``zstd`` is exactly one Zstandard frame with its content size; ``lz4`` is one bare LZ4 block, whose size is in the batch
header. `shards.format.batch` decides which bytes are compressed.
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
"""One byte of an LZ4 block decompresses to at most this many bytes, so a larger size is wrong."""


class Codec(enum.IntEnum):
    """How a body is stored."""

    NONE = 0
    ZSTD = 1
    LZ4 = 2

    def __str__(self) -> str:
        """The name of the codec: `zstd`."""
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class _Contexts(threading.local):
    """Zstandard contexts are expensive to create and must not be shared by threads: one pair for each thread."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def compress(codec: int, raw: bytes) -> bytes:
    """Return ``raw`` compressed by ``codec`` (`Codec.NONE`: unchanged)."""
    if codec == Codec.ZSTD:
        return _contexts.compressor.compress(raw)
    if codec == Codec.LZ4:
        return bytes(lz4.block.compress(raw, store_size=False))
    return raw


def decompress(codec: int, stored: Buffer, raw_size: int, *, max_raw_bytes: int) -> bytes:
    """Return the ``raw_size`` decompressed bytes of ``stored``.

    Memory is allocated only after ``raw_size`` was compared with the limit and the size in the compressed bytes.

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
        # The library allocates the size that the frame states, so this is checked first.
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
