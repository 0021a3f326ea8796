"""The bytes of the journal: entries, and the commit groups in which they become durable together.

An entry records one decision: a batch was appended, a shard created, a cursor set. A commit group is one write and one
fsync; its header contains the end of the group and the range of its lsns, so that recovery can tell a torn tail (the
last group, never acknowledged) from damage. Pure: bytes in, values out.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

import attrs
from crc32c import crc32c

ENTRY_HEADER = struct.Struct("<IIIHBBIIQQ")
ENTRY_HEADER_SIZE = ENTRY_HEADER.size
"""size u32 (header + payload, before padding to 8), header_crc u32 (over 8..40, seeded with size), payload_crc u32,
group u16, kind u8, flags u8, epoch u32, reserved u32, lsn u64, shard u64."""

CHECKED_PART = struct.Struct("<IHBBIIQQ")
"""The fields after header_crc, which it covers."""

_SIZE_AND_CRC = struct.Struct("<II")

GROUP_HEADER = struct.Struct("<4sIQQQQ")
GROUP_HEADER_SIZE = GROUP_HEADER.size
GROUP_MAGIC = b"JGRP"
"""magic, header_crc u32 (over 8..40, seeded with the journal file's salt), size u64 of the entries that follow,
first lsn u64, next lsn u64, continues_in u64 (0 except in a mark: number of the file that continues the journal)."""

NODE_GROUP = 0
"""The group number of a node that runs alone."""

NODE_EPOCH = 1
"""Leadership epoch of that group."""


class Kind(enum.IntEnum):
    """Kinds of entries. 0 is never written, so zeroed space is recognised."""

    APPEND = 1
    CREATE_SHARD = 2
    DELETE_SHARD = 3
    CONFIGURE_SHARD = 4
    ROLL = 5
    TRIM = 6
    RESERVE_OFFSETS = 7
    RESERVE_LSNS = 8
    COMMIT_CURSOR = 9
    DELETE_CURSOR = 10
    PUT_STATE = 11
    DELETE_STATE = 12
    OPEN_PRODUCER = 13
    USE_PRODUCER = 15
    DELETE_PRODUCER = 16
    CONVERT_FILES = 17


class Entry(NamedTuple):
    """One decoded entry. A tuple, since a start may read millions of them.

    Attributes:
        position: Byte position of its header in the journal file.
        payload: View of its payload, without padding.
        payload_crc: Expected checksum of the payload; for a batch it is the body_crc, which covers byte 36 on.
    """

    position: int
    kind: int
    lsn: int
    shard_id: int
    payload: memoryview
    payload_crc: int


def encode_entry(kind: Kind, lsn: int, shard_id: int, payload: bytes) -> bytes:
    """A complete entry, padded to 8; for every kind except APPEND, whose header is written into the received frame."""
    checked = CHECKED_PART.pack(crc32c(payload), NODE_GROUP, kind, 0, NODE_EPOCH, 0, lsn, shard_id)
    size = ENTRY_HEADER_SIZE + len(payload)
    return struct.pack("<II", size, crc32c(checked, size)) + checked + payload + bytes(-size % 8)


def encode_group_header(salt: int, size_bytes: int, first_lsn: int, next_lsn: int, continues_in: int = 0) -> bytes:
    """Header of a group whose entries have ``size_bytes`` in all."""
    checked = struct.pack("<QQQQ", size_bytes, first_lsn, next_lsn, continues_in)
    return struct.pack("<4sI", GROUP_MAGIC, crc32c(checked, salt)) + checked


@attrs.frozen(slots=True)
class GroupHeader:
    """Header of a commit group: ``size_bytes`` of entries with lsns in ``[first_lsn, next_lsn)`` follow.

    A group without entries is a *mark*. It is written after the sync of the group before it, and so proves that this
    group was durable. With ``continues_in`` it means that the journal continues in the file of that number.
    """

    size_bytes: int
    first_lsn: int
    next_lsn: int
    continues_in: int = 0


def decode_group_header(data: memoryview, at: int, salt: int) -> GroupHeader | None:
    """The group header at this position, or None if there is none with the salt of the file's present use."""
    if len(data) - at < GROUP_HEADER_SIZE:
        return None
    magic, checksum, size_bytes, first_lsn, next_lsn, continues_in = GROUP_HEADER.unpack_from(data, at)
    if magic != GROUP_MAGIC or crc32c(data[at + 8 : at + GROUP_HEADER_SIZE], salt) != checksum:
        return None
    return GroupHeader(size_bytes, first_lsn, next_lsn, continues_in)


@attrs.frozen(slots=True)
class BadEntryHeader:
    """A damaged entry header: its position, and what is wrong."""

    position: int
    problem: str


def decode_entry_size(data: memoryview, at: int, end: int) -> int | BadEntryHeader:
    """Size of the entry that begins here (header and payload, before padding), if its header is valid."""
    if end - at < ENTRY_HEADER_SIZE:
        return BadEntryHeader(at, f"{end - at} bytes are left for an entry header, which has {ENTRY_HEADER_SIZE}")
    size, header_crc = _SIZE_AND_CRC.unpack_from(data, at)
    found = crc32c(data[at + 8 : at + ENTRY_HEADER_SIZE], size)
    if found != header_crc:
        return BadEntryHeader(at, f"entry header checksum: expected {header_crc:#010x}, found {found:#010x}")
    if size < ENTRY_HEADER_SIZE or at + size > end:
        return BadEntryHeader(at, f"entry of {size} bytes, expected {ENTRY_HEADER_SIZE} to {end - at}")
    return int(size)


def decode_entries(data: memoryview, start: int, end: int) -> Iterator[Entry | BadEntryHeader]:
    """Decode the entries between two positions; stops after a damaged header."""
    at = start
    while at < end:
        size = decode_entry_size(data, at, end)
        if isinstance(size, BadEntryHeader):
            yield size
            return
        _, _, payload_crc, _group, kind, _flags, _epoch, _, lsn, shard_id = ENTRY_HEADER.unpack_from(data, at)
        yield Entry(at, kind, lsn, shard_id, data[at + ENTRY_HEADER_SIZE : at + size], payload_crc)
        at += (size + 7) & ~7
