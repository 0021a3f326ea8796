"""The append path, from a received frame to the commit group: what is done once for every append lies here.

A received APPEND frame has a head of 40 bytes in front of its batch, the size of a journal entry's header. So the head
is overwritten with that header, the batch is stamped in place, and a run of frames in a receive buffer becomes a run of
journal entries that one buffer of a `pwritev` covers: the bytes never change hands.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from journal.commit import AckSink, Committer
from journal.decisions import LsnsReserved, OffsetsReserved
from journal.entry import CHECKED_PART, ENTRY_HEADER_SIZE, NODE_EPOCH, NODE_GROUP, Kind
from journal.protocol.frames import ACK, ACK_DUPLICATE, APPEND_HEAD_SIZE
from shards.batch import HEADER_SIZE, verify_body
from shards.errors import (
    DurabilityUnavailableError,
    InvalidRequestError,
    LimitExceededError,
    OffsetConflictError,
    OverloadedError,
    SequenceGapError,
    ShardDamagedError,
)
from shards.model import AckLevel
from shards.producer_state import SEQUENCE_MODULUS, ProducerState
from shards.shard import Shard

# The producer's part of the batch header, from body_crc on.
_PRODUCED = struct.Struct("<IIIIHBBIQI4xQQ")
# Entry header and batch prefix, which lie next to each other.
_STAMPED = struct.Struct("<IIIHBBIIQQ4sIQQQ")
_PLACE = struct.Struct("<QQQ")
_BATCH_MAGIC = b"JRB1"
_KNOWN_COLUMNS = 0x7F
_HIGHEST_CODEC = 2

OFFSETS_RESERVED_AT_ONCE = 1 << 20
LSNS_RESERVED_AT_ONCE = 1 << 24

assert APPEND_HEAD_SIZE == ENTRY_HEADER_SIZE, "frames are turned into entries in place"
