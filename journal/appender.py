"""The append path, from a received frame to the commit group: what is done once for every append lies here.

A received APPEND frame has a head of 40 bytes in front of its batch, the size of a journal entry's header. So the head
is overwritten with that header, the batch is stamped in place, and a run of frames in a receive buffer becomes a run of
journal entries that one buffer of a `pwritev` covers: the bytes never change hands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from crc32c import crc32c

from journal.commit import AckSink, Committer
from journal.decisions import LsnsReserved, OffsetsReserved
from journal.entry import CHECKED_PART, ENTRY_HEADER_SIZE, NODE_EPOCH, NODE_GROUP, Kind
from journal.protocol.frames import ACK, ACK_DUPLICATE, APPEND_HEAD
from shards.batch import HEADER_SIZE, MAX_RAW_BYTES, MAX_RECORD_COUNT, BatchHeader, verify_body
from shards.batch_header import MAX_CODEC
from shards.columns import ALL_COLUMNS, MAX_TIME_US
from shards.errors import (
    BatchError,
    DurabilityUnavailableError,
    LimitExceededError,
    OffsetConflictError,
    SequenceGapError,
    StaleEpochError,
    StorageError,
)
from shards.model import AckLevel
from shards.producer_state import ProducerState
from shards.segment import Segment
from shards.shard import Shard
from shards.word_index import Words

# The producer's part of the batch header, from body_crc on.
_PRODUCED = struct.Struct("<IIIIHBBIQIIQQ")
# Entry header and batch prefix, which lie next to each other.
_STAMPED = struct.Struct("<IIIHBBIIQQ4sIQQQ")
_PREFIX = struct.Struct("<4sI24s")
_PLACE = struct.Struct("<QQQ")
_CHECKED_PACK = CHECKED_PART.pack
_ACK_PACK = ACK.pack
_APPEND = int(Kind.APPEND)
# Plain numbers: an enum member costs more to compare and to pack than everything around it.
_MEMORY = int(AckLevel.MEMORY)
_DURABLE = int(AckLevel.DURABLE)
_BATCH_MAGIC = b"JRB1"

OFFSETS_RESERVED_AT_ONCE = 1 << 20
LSNS_RESERVED_AT_ONCE = 1 << 24

assert APPEND_HEAD.size == ENTRY_HEADER_SIZE, "frames are turned into entries in place"


class Appender:
    """Decides appends: one object for all connections of an engine.

    A caller brings the frames of one receive buffer with `append`, one after the other without awaiting in between, and
    then calls `finish`.

    Attributes:
        append_time_us: Time that batches are stamped with; the engine sets it once per received chunk.
        refuse_files: Set while file-mode appends are refused (disk nearly full).
        refuse_memory: Set while memory-mode appends are refused (memory budget used up).
    """

    def __init__(
        self,
        committer: Committer,
        *,
        lsns_reserved: int,
        max_batch_bytes: int,
        producer_epoch: Callable[[int], int],
        load_producers: Callable[[Shard], dict[int, ProducerState]],
        open_segment: Callable[[Shard], Segment],
        words: Callable[[Shard, memoryview], Words],
        fold_words: Callable[[list[tuple[Shard, int, Words]]], None],
    ) -> None:
        self._committer = committer
        self._largest_group_bytes = committer.largest_group_bytes
        self._max_batch_bytes = max_batch_bytes
        self._producer_epoch = producer_epoch
        self._load_producers = load_producers
        self._open_segment = open_segment
        self._words = words
        self._fold_words = fold_words
        self._immediate_words: list[tuple[Shard, int, Words]] = []
        self._run_view: memoryview | None = None
        self._run_start = 0
        self._run_end = 0
        self._published_now: list[Shard] = []
        self._immediate: dict[AckSink, bytearray] = {}
        self._chunk_number = 0
        self._owners: dict[int, int] = {}
        self.append_time_us = 0
        self.lsns_reserved = lsns_reserved
        self._lsns_asked = lsns_reserved
        self.refuse_files: StorageError | None = None
        self.refuse_memory: StorageError | None = None

    def append(
        self,
        shard: Shard,
        view: memoryview,
        at: int,
        end: int,
        expected_offset: int,
        ack_level: int,
        correlation: int,
        sink: AckSink,
    ) -> None:
        """Take one batch that lies at ``view[at + 40 : end]``, with 40 bytes before it that may be overwritten.

        The acknowledgement goes to ``sink`` when the level that was asked for is reached. The buffer must stay
        untouched until the group that is being collected at `finish` is committed.

        Raises:
            StorageError: The batch is refused, nothing of it was kept.
        """
        batch_at = at + ENTRY_HEADER_SIZE
        size = end - batch_at
        if size < HEADER_SIZE:
            verify_body(view[batch_at:end])
        (
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
        ) = _PRODUCED.unpack_from(view, batch_at + 32)
        if (
            crc32c(view[batch_at + 36 : end]) != body_crc
            or (body_size + HEADER_SIZE + 7) & ~7 != size
            or body_size & 7
            or not 0 < count <= MAX_RECORD_COUNT
            or not count * 4 <= raw_size <= MAX_RAW_BYTES
            or flags
            or reserved
            or not 0 < columns <= ALL_COLUMNS
            or codec > MAX_CODEC
            or (not codec and body_size != raw_size)
            or not oldest_us <= newest_us <= MAX_TIME_US
            or size > self._max_batch_bytes
        ):
            self._look_closer(view[batch_at:end])
        if shard.damage:
            shard.check_usable()
        producer: ProducerState | None = None
        if producer_id:
            # What is stored already is acknowledged again, whatever else the batch asks for.
            producer = self._producer(shard, producer_id, epoch, sequence, sink)
            if sequence != producer.next_sequence and not producer.follows(sequence):
                self._repeat_or_gap(shard, producer, producer_id, sequence, correlation, sink)
                return
        in_memory = shard.in_memory_mode
        base_offset = shard.next_offset
        refused = self.refuse_memory if in_memory else self.refuse_files
        if refused is not None:
            raise refused
        if expected_offset != -1 and expected_offset != base_offset:
            raise OffsetConflictError(shard.name, expected_offset, base_offset)
        if in_memory and ack_level == _DURABLE:
            raise DurabilityUnavailableError(
                f"shard {shard.name!r} is in memory mode, which cannot acknowledge as durable; switch it to file mode "
                f"or ask for level memory"
            )
        words = self._words(shard, view[batch_at:end]) if shard.indexed else None

        committer = self._committer
        segments = shard.segments
        segment = segments[-1] if segments else None
        if segment is None or segment.sealed or segment.chunks.end >= shard.segment_limit_bytes:
            self.flush_run()
            segment = self._open_segment(shard)
        # Room is made after that: opening a segment may have put a decision into the group.
        group = committer.group
        if group.size_bytes + self._run_end - self._run_start + end - at > self._largest_group_bytes and not in_memory:
            self.flush_run()
            committer.make_room(end - at)
        group = committer.group
        lsn = committer.next_lsn
        next_offset = base_offset + count
        if in_memory:
            level = _MEMORY
            if (
                next_offset > shard.asked_offset - OFFSETS_RESERVED_AT_ONCE // 2
                or lsn >= self._lsns_asked - LSNS_RESERVED_AT_ONCE // 2
            ):
                self._reserve(shard, next_offset)
                group = committer.group
                lsn = committer.next_lsn
            # A memory batch needs no disk, but it must not overtake a file batch of its shard that is not durable yet.
            waits = shard.pending_groups > 0 or next_offset > shard.reserved_offset or lsn >= self.lsns_reserved
            if waits:
                if shard.group_number != group.number:
                    self._publish_now()
                    group.touch(shard)
            elif shard.chunk_number != self._chunk_number:
                shard.chunk_number = self._chunk_number
                self._published_now.append(shard)
            place = _PLACE.pack(base_offset, lsn, self.append_time_us)
            _PREFIX.pack_into(view, batch_at, _BATCH_MAGIC, crc32c(place), place)
        else:
            entry_bytes = size + ENTRY_HEADER_SIZE
            _STAMPED.pack_into(
                view,
                at,
                entry_bytes,
                crc32c(
                    _CHECKED_PACK(body_crc, NODE_GROUP, _APPEND, 0, NODE_EPOCH, 0, lsn, shard.shard_id), entry_bytes
                ),
                body_crc,
                NODE_GROUP,
                _APPEND,
                0,
                NODE_EPOCH,
                0,
                lsn,
                shard.shard_id,
                _BATCH_MAGIC,
                crc32c(_PLACE.pack(base_offset, lsn, self.append_time_us)),
                base_offset,
                lsn,
                self.append_time_us,
            )
            if self._run_end == at and self._run_view is view:
                self._run_end = end
            else:
                self.flush_run()
                self._run_view = view
                self._run_start = at
                self._run_end = end
            if shard.group_number != group.number:
                group.touch(shard)
            # Asked for level memory too: an acknowledgement before the fsync would name an offset that a crash
            # gives to another record.
            waits = True
            level = _DURABLE

        committer.next_lsn = lsn + 1
        # What Segment.append does, without its calls.
        chunks = segment.chunks
        if chunks.end >= segment.indexed_end:
            segment.add_to_index(lsn)
        fill = chunks.fill
        if fill + size > chunks.capacity:
            chunks.add_chunk(size)
            fill = 0
        chunks.chunks[-1][fill : fill + size] = view[batch_at:end]
        chunks.fill = fill + size
        chunks.end += size
        segment.next_offset = next_offset
        segment.last_lsn = lsn
        segment.newest_append_us = self.append_time_us
        segment.newest_us = max(segment.newest_us, newest_us)
        shard.next_offset = next_offset
        shard.last_lsn = lsn
        if producer is not None:
            producer.accept(sequence, base_offset, count)
        if words:
            (group.words if waits else self._immediate_words).append((shard, base_offset, words))
        acks = group.acks if waits else self._immediate
        packed = acks.get(sink)
        if packed is None:
            packed = acks[sink] = bytearray()
        packed += _ACK_PACK(correlation, level, 0, 0, base_offset)

    def flush_run(self) -> None:
        """Hand the entries that lie next to each other in the receive buffer to the group, as one buffer."""
        if self._run_view is not None:
            size = self._run_end - self._run_start
            self._committer.add(self._run_view[self._run_start : self._run_end], size)
            self._run_view = None
            self._run_start = self._run_end = 0

    def finish(self) -> None:
        """End a run of `append` calls: publish what needs no disk, acknowledge it, start the commit."""
        self.flush_run()
        self._publish_now()
        self._chunk_number += 1
        if self._immediate:
            immediate, self._immediate = self._immediate, {}
            for sink, acks in immediate.items():
                sink.acknowledge(acks)
        self._committer.kick()

    def _publish_now(self) -> None:
        if self._immediate_words:
            self._fold_words(self._immediate_words)
            self._immediate_words.clear()
        for shard in self._published_now:
            if not shard.pending_groups:
                shard.publish(shard.published_now())
        self._published_now.clear()
        self._chunk_number += 1

    def _look_closer(self, batch: memoryview) -> None:
        """Refuse a batch that the quick checks stopped at, saying why; return if it is right all the same."""
        verify_body(batch)
        if len(batch) > self._max_batch_bytes:
            raise LimitExceededError(
                f"record batch of {len(batch)} bytes is over the limit of {self._max_batch_bytes} "
                f"(limits.max_batch_bytes); split it"
            )
        header = BatchHeader.unpack(batch)
        if header.size_bytes != len(batch):
            raise BatchError(f"record batch of {header.size_bytes} bytes in a frame that has {len(batch)} for it")

    def _producer(self, shard: Shard, producer_id: int, epoch: int, sequence: int, sink: AckSink) -> ProducerState:
        """Sequence state of a producer that is not fenced; a newer epoch begins a new sequence."""
        newest = self._producer_epoch(producer_id)
        owner = self._owners.get(producer_id, 0)
        if owner > sink.number:
            # Bytes of an older connection that still lay in a buffer: their sequence may belong to another batch now.
            raise StaleEpochError(
                f"producer {producer_id} has been used over a newer connection; this one may no longer send for it"
            )
        if owner < sink.number:
            self._owners[producer_id] = sink.number
        if epoch != newest:
            raise StaleEpochError(
                f"producer {producer_id} has epoch {newest}, the batch was sent under epoch {epoch}: another has "
                f"opened the producer since; open it again to take it back"
            )
        producers = shard.producers
        if producers is None:
            producers = shard.producers = self._load_producers(shard)
        producer = producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            producer = producers[producer_id] = ProducerState(epoch, sequence)
        return producer

    def _repeat_or_gap(
        self, shard: Shard, producer: ProducerState, producer_id: int, sequence: int, correlation: int, sink: AckSink
    ) -> None:
        if not producer.is_repeat(sequence):
            raise SequenceGapError(
                f"producer {producer_id} sent sequence {sequence} to shard {shard.name!r}, which expects "
                f"{producer.next_sequence}: a batch before it was refused or is missing; send again from there",
                producer.next_sequence,
            )
        offset = producer.offset_of(sequence)
        level = AckLevel.MEMORY if shard.lies_in_memory(offset) else AckLevel.DURABLE
        # Its first sending may still be on its way to the disk: then this acknowledgement waits too. So it does when
        # it is no longer known which sending that was.
        is_published = offset < shard.published_offset if offset >= 0 else not shard.pending_groups
        acks = self._immediate if is_published else self._committer.group.acks
        acks.setdefault(sink, bytearray()).extend(_ACK_PACK(correlation, level, ACK_DUPLICATE, 0, offset))

    def _reserve(self, shard: Shard, next_offset: int) -> None:
        """Take offsets and lsns ahead of use, so that a crash never gives out again what a reader may have seen."""
        self.flush_run()
        committer = self._committer
        if next_offset > shard.asked_offset - OFFSETS_RESERVED_AT_ONCE // 2:
            shard.asked_offset = next_offset + OFFSETS_RESERVED_AT_ONCE
            committer.decide(OffsetsReserved(shard.asked_offset), shard.shard_id)
        if committer.next_lsn >= self._lsns_asked - LSNS_RESERVED_AT_ONCE // 2:
            self._lsns_asked = committer.next_lsn + LSNS_RESERVED_AT_ONCE
            committer.decide(LsnsReserved(self._lsns_asked), 0)
