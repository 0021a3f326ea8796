"""CRC-32C, the checksum of all formats and frames, and the buffer type that it takes."""

from __future__ import annotations

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview
"""Types that can be checked, decoded and stamped: contiguous bytes."""

__all__ = ["Buffer", "crc32c"]
