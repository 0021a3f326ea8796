"""What clients put into records: a short name that is unique, and bytes that follow from it, so that damage shows."""

from __future__ import annotations

import zlib

_FILL = bytes(range(33, 123)) * 64


def encode(name: str) -> bytes:
    """The value that stands for a name."""
    seed = zlib.crc32(name.encode())
    return name.encode() + b"|" + _FILL[seed % 90 : seed % 90 + seed % 700]


def decode(value: bytes) -> str:
    """The name that a value stands for; something that no client ever names if the value is not whole."""
    name = value.partition(b"|")[0].decode(errors="replace")
    return name if encode(name) == value else f"damaged value {value[:40]!r} of {len(value)} bytes"
