"""Byte layouts of the protocol: the frame header and every fixed body, each declared once.

Encoder, decoder, client and server all use these structs; `docs/protocol.md` shows them. MessagePack bodies are in
`journal.protocol.messages`; `journal.protocol.parser` splits a byte stream into frames. All numbers are little-endian.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

PROTOCOL_VERSION: Final = 2
"""It is raised with every change of a frame that the other side cannot read; `docs/protocol.md` has the rule."""

# Neither side needs to buffer more than this before the HELLO reply with the configured limits.
HELLO_MAX_FRAME_BYTES: Final = 64 * 1024

NO_OFFSET: Final = -1

# length (of the whole frame, header included), op, status, correlation
HEADER: Final = struct.Struct("<IHHI")
# header; handle, ack_level, expected_offset; 40 bytes, so that the batch after it begins at a multiple of 8
APPEND_HEAD: Final = struct.Struct("<IHHIIB3xq12x")
# header, 4 reserved bytes: the entries after it begin at a multiple of 8
APPENDED_HEAD: Final = struct.Struct("<IHHI4x")
# correlation, level, flags, base_offset
ACK: Final = struct.Struct("<IBBHq")
# header; handle, max_bytes, offset, max_wait_ms, reserved
FETCH: Final = struct.Struct("<IHHIIIqI4x")
# header; start_offset, next_offset; then whole batches
FETCH_REPLY: Final = struct.Struct("<IHHIqq")
# header; subscription, bytes
CREDIT: Final = struct.Struct("<IHHIII")
# header; subscription, shard_ref, first_offset, next_offset; then whole batches
PUSH: Final = struct.Struct("<IHHIIIqq")
# header; subscription, shard_ref, first_offset, next_offset
ACKNOWLEDGE: Final = struct.Struct("<IHHIIIqq")

ACK_DUPLICATE: Final = 0x01
MAX_CORRELATION: Final = 0xFFFFFFFF


class Op(enum.IntEnum):
    """Operation numbers. They never change their meaning; the number of a removed operation is never used again."""

    HELLO = 1
    PING = 2
    STATUS = 3
    SNAPSHOT = 4
    END_CLIENT = 5
    CREATE_SHARD = 10
    OPEN_SHARD = 11
    CLOSE_SHARD = 12
    LIST_SHARDS = 13
    DESCRIBE_SHARD = 14
    DELETE_SHARD = 15
    SET_MODE = 16
    CONFIGURE_SHARD = 17
    ROLL = 18
    TRIM = 19
    APPEND = 30
    APPENDED = 31
    FETCH = 32
    FIND_OFFSET = 33
    FETCH_INDEXED = 34
    SUBSCRIBE = 40
    UNSUBSCRIBE = 41
    CREDIT = 42
    PUSH = 43
    SHARD_EVENT = 44
    ACKNOWLEDGE = 45
    CURSOR_GET = 50
    CURSOR_LIST = 51
    CURSOR_COMMIT = 52
    CURSOR_DELETE = 53
    STATE_GET = 60
    STATE_PUT = 61
    STATE_DELETE = 62
    STATE_SCAN = 63
    COMMIT = 64
    PRODUCER_OPEN = 70


class FetchRequest(NamedTuple):
    """Body of a FETCH request."""

    handle: int
    max_bytes: int
    offset: int
    max_wait_ms: int


class FetchReply(NamedTuple):
    """Fixed part of a FETCH or FETCH_INDEXED reply, and the batches after it."""

    start_offset: int
    next_offset: int
    batches: memoryview


class Credit(NamedTuple):
    """Body of a CREDIT frame."""

    subscription: int
    size_bytes: int


class Push(NamedTuple):
    """Fixed part of a PUSH frame, and the batches after it."""

    subscription: int
    shard_ref: int
    first_offset: int
    next_offset: int
    batches: memoryview


class Acknowledge(NamedTuple):
    """Body of an ACKNOWLEDGE frame."""

    subscription: int
    shard_ref: int
    first_offset: int
    next_offset: int


def build(op: int, correlation: int, body: bytes = b"", *, status: int = 0) -> bytes:
    """Make a complete frame with a MessagePack (or empty) body."""
    return HEADER.pack(HEADER.size + len(body), op, status, correlation) + body


def build_append_head(correlation: int, handle: int, ack_level: int, expected_offset: int, batch_bytes: int) -> bytes:
    """Make the 40 bytes before a batch of ``batch_bytes`` bytes; the batch itself is sent unchanged."""
    return APPEND_HEAD.pack(
        APPEND_HEAD.size + batch_bytes, Op.APPEND, 0, correlation, handle, ack_level, expected_offset
    )


def build_append(
    correlation: int, handle: int, batch: bytes, *, ack_level: int = 0, expected_offset: int = NO_OFFSET
) -> bytes:
    """Make a complete APPEND frame."""
    return build_append_head(correlation, handle, ack_level, expected_offset, len(batch)) + batch


def build_fetch(correlation: int, handle: int, offset: int, max_bytes: int, max_wait_ms: int) -> bytes:
    """Make a FETCH request."""
    return FETCH.pack(FETCH.size, Op.FETCH, 0, correlation, handle, max_bytes, offset, max_wait_ms)


def build_fetch_reply_head(
    correlation: int, start_offset: int, next_offset: int, batches_bytes: int, *, op: int = Op.FETCH
) -> bytes:
    """Make the part of a FETCH reply (or FETCH_INDEXED reply, by ``op``) before its batches."""
    return FETCH_REPLY.pack(FETCH_REPLY.size + batches_bytes, op, 0, correlation, start_offset, next_offset)


def build_credit(subscription: int, size_bytes: int) -> bytes:
    """Make a CREDIT frame: the server may push ``size_bytes`` more."""
    return CREDIT.pack(CREDIT.size, Op.CREDIT, 0, 0, subscription, size_bytes)


def build_push_head(
    subscription: int, shard_ref: int, first_offset: int, next_offset: int, batches_bytes: int
) -> bytes:
    """Make the part of a PUSH frame before its batches."""
    return PUSH.pack(PUSH.size + batches_bytes, Op.PUSH, 0, 0, subscription, shard_ref, first_offset, next_offset)


def build_acknowledge(subscription: int, shard_ref: int, first_offset: int, next_offset: int) -> bytes:
    """Make the ACKNOWLEDGE frame of a group member."""
    return ACKNOWLEDGE.pack(ACKNOWLEDGE.size, Op.ACKNOWLEDGE, 0, 0, subscription, shard_ref, first_offset, next_offset)


# Functions that read bodies: `body` is the part after the 12-byte header, as returned by the parser. The structs above
# begin with the header, so the layouts of the bodies are derived from them here, once.
FETCH_BODY: Final = struct.Struct("<IIqI4x")
_FETCH_REPLY_BODY = struct.Struct("<qq")
_CREDIT_BODY = struct.Struct("<II")
_RANGE_BODY = struct.Struct("<IIqq")
APPENDED_ENTRIES_AT: Final = APPENDED_HEAD.size - HEADER.size

if (
    FETCH_BODY.size != FETCH.size - HEADER.size
    or _FETCH_REPLY_BODY.size != FETCH_REPLY.size - HEADER.size
    or _CREDIT_BODY.size != CREDIT.size - HEADER.size
    or _RANGE_BODY.size != PUSH.size - HEADER.size
    or _RANGE_BODY.size != ACKNOWLEDGE.size - HEADER.size
):
    raise ImportError("a body layout differs from its frame layout")


def read_acks(body: bytes | memoryview) -> Iterator[tuple[int, int, int, int, int]]:
    """Iterate (correlation, level, flags, reserved, base_offset) of an APPENDED body, at C speed.

    Raises:
        struct.error: The body is not 4 bytes and a number of complete entries.
    """
    if len(body) < APPENDED_ENTRIES_AT:
        raise struct.error(f"an APPENDED body has at least {APPENDED_ENTRIES_AT} bytes, this one {len(body)}")
    return ACK.iter_unpack(memoryview(body)[APPENDED_ENTRIES_AT:])


def read_fetch(body: bytes | memoryview) -> FetchRequest:
    """Read the body of a FETCH request."""
    return FetchRequest(*FETCH_BODY.unpack(body))


def read_fetch_reply(body: bytes | memoryview) -> FetchReply:
    """Read the body of a FETCH or FETCH_INDEXED reply; the batches are not copied."""
    start_offset, next_offset = _FETCH_REPLY_BODY.unpack_from(body)
    return FetchReply(start_offset, next_offset, memoryview(body)[_FETCH_REPLY_BODY.size :])


def read_credit(body: bytes | memoryview) -> Credit:
    """Read the body of a CREDIT frame."""
    return Credit(*_CREDIT_BODY.unpack(body))


def read_push(body: bytes | memoryview) -> Push:
    """Read the body of a PUSH frame; the batches are not copied."""
    subscription, shard_ref, first_offset, next_offset = _RANGE_BODY.unpack_from(body)
    return Push(subscription, shard_ref, first_offset, next_offset, memoryview(body)[_RANGE_BODY.size :])


def read_acknowledge(body: bytes | memoryview) -> Acknowledge:
    """Read the body of an ACKNOWLEDGE frame."""
    return Acknowledge(*_RANGE_BODY.unpack(body))
