"""The loop over the frames of a receive buffer that makes journal entries of them, in Python; and which form is used.

Nothing takes as much of a server's time. So it is one function body without calls where there need be none, and there
is the same in C (`shards/compiled/append_loop.c`), which is used where it was built. A change of one is a change of
both: a property compares them.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import Final, Protocol

from crc32c import crc32c

from journal.engine.wal.entry import CHECKED_PART, ENTRY_HEADER_SIZE, NODE_EPOCH, NODE_GROUP, Kind
from journal.engine.wal.group import Group
from journal.protocol.frames import ACK, Op
from shards.compiled import append_loop_type
from shards.format.batch import HEADER_SIZE, MAX_RAW_BYTES, MAX_RECORD_COUNT
from shards.format.batch_header import MAX_CODEC
from shards.format.columns import ALL_COLUMNS, MAX_TIME_US
from shards.idempotence.producer_state import ProducerState
from shards.model import AckLevel
from shards.segments.chunks import ChunkList
from shards.segments.log_segment import LogSegment
from shards.segments.shard import Shard

_log = logging.getLogger(__name__)

# A whole APPEND frame up to the body of its batch: length, op, correlation, handle, expected offset; then the producer
# fields of the batch header, from body_crc on.
_FRAME: Final = struct.Struct("<IH2xII4xq12x32xIIIIHBBIQIIQQ")
# Entry header and batch prefix, which are adjacent.
_STAMPED: Final = struct.Struct("<IIIHBBIIQQ4sIQQQ")
_PLACE_PACK: Final = struct.Struct("<QQQ").pack
_CHECKED_PACK: Final = CHECKED_PART.pack
_ACK_PACK: Final = ACK.pack
# Plain numbers: comparing and packing an enum member takes longer than everything around it.
_APPEND: Final = int(Kind.APPEND)
_DURABLE: Final = int(AckLevel.DURABLE)
_OP_APPEND: Final = int(Op.APPEND)
_BATCH_MAGIC: Final = b"JRB1"


class AppendLoop(Protocol):
    """Appends the plain batches of a run of frames; one object for each appender.

    A plain batch needs no special handling: it is complete and valid, for the open log segment of a shard without an
    index, from no producer or with the expected sequence. The loop ends at the first other frame.

    Attributes:
        position: Position of the first frame that was not appended. The caller sets it before a call; after an
            exception it says what was appended, like the others.
        next_lsn: lsn of the next batch; the caller sets it as well.
        acks: Packed acknowledgements of the frames that the last call has appended.
    """

    position: int
    next_lsn: int

    @property
    def acks(self) -> bytes | bytearray: ...

    def run(
        self,
        view: memoryview,
        end: int,
        handles: Sequence[Shard | None],
        sender: int,
        group: Group,
        room_bytes: int,
        time_us: int,
        /,
    ) -> None:
        """Append the plain batches among the frames in ``view[position:end]``, up to the first other frame.

        Args:
            handles: The shards, by the handle of a frame; None where the sender may not append.
            sender: Number of the connection.
            group: The commit group that is being collected.
            room_bytes: Room in this group.
            time_us: Append time of the batches.
        """
        ...


class PureAppendLoop:
    """The loop in Python.

    Args:
        epochs: Newest epoch by producer id.
        owners: Number of the connection that uses a producer, by producer id.
        max_frame_bytes: Larger frames are not for the loop.
    """

    def __init__(self, epochs: dict[int, int], owners: dict[int, int], max_frame_bytes: int) -> None:
        self._epochs = epochs
        self._owners = owners
        self._max_frame_bytes = max_frame_bytes
        self.position = 0
        self.next_lsn = 0
        self.acks = bytearray()

    def run(
        self,
        view: memoryview,
        end: int,
        handles: Sequence[Shard | None],
        sender: int,
        group: Group,
        room_bytes: int,
        time_us: int,
        /,
    ) -> None:
        start, lsn, room = self.position, self.next_lsn, room_bytes
        group_number = group.number
        epochs, owners, max_frame_bytes = self._epochs, self._owners, self._max_frame_bytes
        known = len(handles)
        acks = self.acks = bytearray()
        try:
            while end - start >= _FRAME.size:
                (
                    length,
                    op,
                    correlation,
                    handle,
                    expected,
                    body_crc,
                    body_size,
                    raw_size,
                    count,
                    columns,
                    codec,
                    flags,
                    epoch,
                    producer_id,
                    sequence,
                    reserved,
                    oldest_us,
                    newest_us,
                ) = _FRAME.unpack_from(view, start)
                stop = start + length
                if op != _OP_APPEND or stop > end or length > room or length > max_frame_bytes or handle >= known:
                    break
                shard = handles[handle]
                if (
                    shard is None
                    or shard.in_memory_mode
                    or shard.indexed
                    or shard.damage
                    or crc32c(view[start + 76 : stop]) != body_crc
                    or (body_size + HEADER_SIZE + ENTRY_HEADER_SIZE) != length
                    or body_size & 7
                    or not 0 < count <= MAX_RECORD_COUNT
                    or not count * 4 <= raw_size <= MAX_RAW_BYTES
                    or flags
                    or reserved
                    or not 0 < columns <= ALL_COLUMNS
                    or codec > MAX_CODEC
                    or (not codec and body_size != raw_size)
                    or not oldest_us <= newest_us <= MAX_TIME_US
                ):
                    break
                base_offset = shard.next_offset
                segments = shard.segments
                if not segments or (expected != -1 and expected != base_offset):
                    break
                segment = segments[-1]
                chunks = segment.chunks
                if segment.closed or chunks.end >= shard.segment_limit_bytes:
                    break
                if producer_id:
                    producer = shard.producers.get(producer_id) if shard.producers is not None else None
                    if (
                        producer is None
                        or producer.next_sequence != sequence
                        or producer.epoch != epoch
                        or epochs.get(producer_id) != epoch
                        or owners.get(producer_id) != sender
                    ):
                        break
                    producer.accept(sequence, base_offset, count, shard.published_offset)
                shard_id = shard.shard_id
                _STAMPED.pack_into(
                    view,
                    start,
                    length,
                    crc32c(_CHECKED_PACK(body_crc, NODE_GROUP, _APPEND, 0, NODE_EPOCH, 0, lsn, shard_id), length),
                    body_crc,
                    NODE_GROUP,
                    _APPEND,
                    0,
                    NODE_EPOCH,
                    0,
                    lsn,
                    shard_id,
                    _BATCH_MAGIC,
                    crc32c(_PLACE_PACK(base_offset, lsn, time_us)),
                    base_offset,
                    lsn,
                    time_us,
                )
                if shard.group_number != group_number:
                    group.touch(shard)
                # Inlined from Segment.append.
                position = chunks.end
                if position >= segment.indexed_end:
                    segment.add_to_index(lsn)
                size = length - ENTRY_HEADER_SIZE
                fill = chunks.fill
                if fill + size > chunks.capacity:
                    chunks.add_chunk(size)
                    fill = 0
                chunks.chunks[-1][fill : fill + size] = view[start + ENTRY_HEADER_SIZE : stop]
                chunks.fill = fill + size
                chunks.end = position + size
                shard.next_offset = segment.next_offset = base_offset + count
                shard.last_lsn = segment.last_lsn = lsn
                segment.newest_append_us = time_us
                segment.newest_us = max(segment.newest_us, newest_us)
                # Even if level memory was requested: an acknowledgement before the fsync would name an offset that is
                # assigned to another record after a crash.
                acks += _ACK_PACK(correlation, _DURABLE, 0, 0, base_offset)
                lsn += 1
                room -= length
                start = stop
        finally:
            self.position, self.next_lsn = start, lsn


def make_append_loop(epochs: dict[int, int], owners: dict[int, int], max_frame_bytes: int) -> AppendLoop:
    """The compiled loop if there is one, otherwise that in Python; for the arguments see `PureAppendLoop`."""
    if append_loop_type is not None:
        try:
            return append_loop_type(epochs, owners, max_frame_bytes, Shard, LogSegment, ChunkList, ProducerState)
        except TypeError as error:
            _log.warning("the compiled append loop is of another version, so that in Python is used: %s", error)
    return PureAppendLoop(epochs, owners, max_frame_bytes)
