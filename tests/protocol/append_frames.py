"""APPEND and APPENDED frames from the side that the product does not have: it makes the first and reads the second.

The server takes APPEND frames apart in place (`journal.engine.write.appender`) and packs the entries of APPENDED as it
goes, so neither has a function that does it for one frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from journal.protocol.frames import ACK, ACK_DUPLICATE, APPEND_HEAD, APPENDED_HEAD, HEADER, Op, read_acks

_APPEND_BODY = struct.Struct("<IB3xq12x")
assert _APPEND_BODY.size == APPEND_HEAD.size - HEADER.size


class Ack(NamedTuple):
    """One entry of an APPENDED frame."""

    correlation: int
    level: int
    flags: int
    reserved: int
    base_offset: int

    @property
    def is_duplicate(self) -> bool:
        """Whether the producer had sent this batch before, so that it was not stored again."""
        return bool(self.flags & ACK_DUPLICATE)


class AppendHead(NamedTuple):
    """Fixed part of an APPEND request; ``expected_offset`` is -1 when the append is unconditional."""

    handle: int
    ack_level: int
    expected_offset: int


def read_append(body: bytes | memoryview) -> tuple[AppendHead, memoryview]:
    """Split the body of an APPEND into its fixed part and the batch."""
    return AppendHead(*_APPEND_BODY.unpack_from(body)), memoryview(body)[_APPEND_BODY.size :]


def build_appended(acks: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Make an APPENDED frame of (correlation, level, flags, base_offset) entries."""
    entries = b"".join([ACK.pack(correlation, level, flags, 0, base) for correlation, level, flags, base in acks])
    return APPENDED_HEAD.pack(APPENDED_HEAD.size + len(entries), Op.APPENDED, 0, 0) + entries


def acks_of(body: bytes | memoryview) -> Iterator[Ack]:
    """The entries of the body of an APPENDED frame."""
    return (Ack(*entry) for entry in read_acks(body))
