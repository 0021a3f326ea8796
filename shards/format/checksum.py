"""CRC-32C, the one checksum of every format and frame here, and the buffer type it takes."""

from __future__ import annotations

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview
"""What can be checked, decoded and stamped: contiguous bytes."""

__all__ = ["Buffer", "crc32c"]
