"""The append path, from a batch to the commit group: everything that is done once for each append.

A received APPEND frame has a head of 40 bytes in front of its batch, which is the size of a journal entry's header. So
the head is overwritten with that header, the batch is stamped in place, and a run of frames in a receive buffer becomes
a run of journal entries that is one buffer of a `pwritev`: the bytes are never copied. A batch from inside the process
is copied behind space for such a header.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from crc32c import crc32c

from journal.engine.state.producer_use import ProducerUse
from journal.engine.wal.entry import CHECKED_PART, ENTRY_HEADER_SIZE, NODE_EPOCH, NODE_GROUP, Kind
from journal.engine.wal.entry_payloads import LsnsReserved, OffsetsReserved
from journal.engine.wal.group import AckSink
from journal.engine.wal.group_commit import Committer
from journal.engine.wal.pending_ack import AppendResult
from journal.engine.write.append_loop import AppendLoop, make_append_loop
from journal.engine.write.producer_sequences import InProcess, ProducerSequences, Sender, Taken
from journal.protocol.frames import ACK, ACK_DUPLICATE, APPEND_HEAD
from shards.errors import (
    BatchError,
    DurabilityUnavailableError,
    LimitExceededError,
    OffsetConflictError,
    StorageError,
    afresh,
)
from shards.format.batch import BatchHeader, stamp, verify_body
from shards.idempotence.producer_state import ProducerState
from shards.model import AckLevel, Appended
from shards.segments.segment import Segment
from shards.segments.shard import Shard
from shards.views.inverted_index import Words

_ENTRY = struct.Struct("<II32s")
_CHECKED_PACK = CHECKED_PART.pack
_ACK_PACK = ACK.pack
_APPEND = int(Kind.APPEND)
# Plain numbers: comparing and packing an enum member takes longer than everything around it.
_MEMORY = int(AckLevel.MEMORY)
_DURABLE = int(AckLevel.DURABLE)

_NO_OFFSET = -1
_HEADER_ROOM = bytes(ENTRY_HEADER_SIZE)

OFFSETS_RESERVED_AT_ONCE = 1 << 20
LSNS_RESERVED_AT_ONCE = 1 << 24

assert APPEND_HEAD.size == ENTRY_HEADER_SIZE, "frames are turned into entries in place"


class Appender:
    """Decides appends: one object for all connections of an engine, and for its own process.

    A connection passes the frames of one receive buffer to `append_run`, the frames at which that stops to `append`;
    code in this process passes batches to `append_batch`. They do so without an ``await`` in between, and then call
    `finish`.

    Args:
        tail_grew: Called when a batch that has to be written to a file was published without a group.
        durable: Whether the journal is on a disk. If not, no batch goes through it, and every acknowledgement says
            `AckLevel.MEMORY`.
        make_loop: Makes the loop over plain batches, see `make_append_loop`.

    Attributes:
        append_time_us: Append time of the batches; the engine sets it once for each received chunk.
        run_end: How far the last call of `append_run` came, also if it has raised an error.
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
        check_producer: Callable[[int, str], None],
        epochs: dict[int, int],
        load_producers: Callable[[Shard], dict[int, ProducerState]],
        open_segment: Callable[[Shard], Segment],
        words: Callable[[Shard, memoryview], Words],
        fold_words: Callable[[list[tuple[Shard, int, Words]]], None],
        publishing: Callable[[Shard], None],
        tail_grew: Callable[[Shard], None],
        use: ProducerUse,
        durable: bool = True,
        make_loop: Callable[[dict[int, int], dict[int, int], int], AppendLoop] = make_append_loop,
    ) -> None:
        self._committer = committer
        self._durable = durable
        self._file_level = _DURABLE if durable else _MEMORY
        self._largest_group_bytes = committer.largest_group_bytes
        self._max_batch_bytes = max_batch_bytes
        self._open_segment = open_segment
        self._words = words
        self._fold_words = fold_words
        self._publishing = publishing
        self._tail_grew = tail_grew
        self._immediate_words: list[tuple[Shard, int, Words]] = []
        self._run_view: memoryview | None = None
        self._run_start = 0
        self.run_end = 0
        self._published_now: list[Shard] = []
        self._immediate: dict[AckSink, bytearray] = {}
        self._immediate_results: list[tuple[AppendResult, Appended]] = []
        self._chunk_number = 0
        self._loop = make_loop(epochs, use.owners, max_batch_bytes + ENTRY_HEADER_SIZE)
        self._sequences = ProducerSequences(
            newest_epoch=producer_epoch,
            check_name=check_producer,
            load=load_producers,
            use=use,
            durable_level=self._file_level,
        )
        self.append_time_us = 0
        self.lsns_reserved = lsns_reserved
        self._lsns_asked = lsns_reserved
        self.refuse_files: StorageError | None = None
        self.refuse_memory: StorageError | None = None

    def append_run(self, view: memoryview, start: int, end: int, handles: Sequence[Shard | None], sink: AckSink) -> int:
        """Append the plain batches among the frames in ``view[start:end]``, up to the first other frame.

        What a plain batch is, says `AppendLoop`. All other batches, and refusals, are left to `append`.

        Returns:
            Position of the first frame that was not appended.
        """
        if self.refuse_files is not None or not self._durable:
            return start
        if self.run_end != start or self._run_view is not view:
            self.flush_run()
            self._run_view, self._run_start, self.run_end = view, start, start
        committer = self._committer
        group = committer.group
        room_bytes = self._largest_group_bytes - group.size_bytes - self.run_end + self._run_start
        loop = self._loop
        loop.position, loop.next_lsn = start, committer.next_lsn
        try:
            loop.run(view, end, handles, sink.number, group, room_bytes, self.append_time_us)
        finally:
            committer.next_lsn = loop.next_lsn
            self.run_end = loop.position
            acks = loop.acks
            if acks:
                _acks_for(group.acks, sink).extend(acks)
        return self.run_end

    def append(self, view: memoryview, at: int, end: int, handles: Sequence[Shard | None], sink: AckSink) -> None:
        """Append the one APPEND frame that is ``view[at:end]``.

        ``sink`` gets the acknowledgement when the requested level is reached. The buffer must not be changed until the
        group that is collecting at `finish` is committed.

        Raises:
            StorageError: The batch was refused; no part of it is stored.
        """
        _, _, _, correlation, handle, ack_level, expected_offset = APPEND_HEAD.unpack_from(view, at)
        shard = handles[handle]
        assert shard is not None  # the caller has checked
        header = self._checked(view[at + ENTRY_HEADER_SIZE : end])
        taken = self._take(shard, view, at, end, header, ack_level, expected_offset, sink)
        flags = ACK_DUPLICATE if taken.is_duplicate else 0
        acks = self._committer.group.acks if taken.waits else self._immediate
        _acks_for(acks, sink).extend(_ACK_PACK(correlation, taken.level, flags, 0, taken.base_offset))

    def append_batch(
        self,
        shard: Shard,
        batch: bytes,
        result: AppendResult,
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
        is_sound: bool = False,
    ) -> None:
        """Take one encoded batch from inside the process.

        ``result`` gets its outcome when the level that was asked for is reached, at `finish` at the earliest.

        Args:
            is_sound: The batch was encoded in this process just now: it is not checked for damage.

        Raises:
            StorageError: The batch is refused, nothing of it was kept.
        """
        entry = memoryview(bytearray(_HEADER_ROOM) + batch)
        if is_sound:
            self._check_size(len(batch))
            header = BatchHeader.unpack(batch)
        else:
            header = self._checked(entry[ENTRY_HEADER_SIZE:])
        expected = _NO_OFFSET if expected_offset is None else expected_offset
        taken = self._take(shard, entry, 0, len(entry), header, ack, expected, InProcess)
        level = AckLevel.DURABLE if taken.level == _DURABLE else AckLevel.MEMORY
        results = self._committer.group.results if taken.waits else self._immediate_results
        results.append((result, Appended(taken.base_offset, level, taken.is_duplicate)))

    def _take(
        self,
        shard: Shard,
        view: memoryview,
        at: int,
        end: int,
        header: BatchHeader,
        ack_level: int,
        expected_offset: int,
        sender: Sender | type[InProcess],
    ) -> Taken:
        """Give a checked batch its place: it is in ``view[at:end]``, behind room for the header of an entry."""
        batch = view[at + ENTRY_HEADER_SIZE : end]
        if shard.damage:
            shard.check_usable()
        producer: ProducerState | None = None
        if header.producer_id:
            # A batch that is stored already is acknowledged again, whatever else it requests.
            producer = self._sequences.state(shard, header, sender)
            if header.sequence != producer.next_sequence:
                answered = self._sequences.answer(shard, producer, header)
                if answered is not None:
                    return answered
        in_memory = shard.in_memory_mode
        refused = self.refuse_memory if in_memory else self.refuse_files
        if refused is not None:
            raise afresh(refused)
        if expected_offset not in (_NO_OFFSET, shard.next_offset):
            raise OffsetConflictError(shard.name, expected_offset, shard.next_offset)
        if ack_level == _DURABLE and (in_memory or not self._durable):
            raise DurabilityUnavailableError(
                f"shard {shard.name!r} is in memory mode, which cannot acknowledge as durable; switch it to file mode "
                f"or ask for level memory"
                if self._durable
                else f"shard {shard.name!r} is in a store without a disk, which cannot acknowledge as durable; ask "
                f"for level memory"
            )
        words = self._words(shard, batch) if shard.indexed else None
        if words and not self._committer.has_room_for_words(len(words)):
            self.flush_run()
            self._committer.make_room_for_words(len(words))
        if shard.active() is None or shard.segments[-1].end >= shard.segment_limit_bytes:
            self.flush_run()
            self._open_segment(shard)
        if in_memory or not self._durable:
            waits = self._append_in_memory(shard, batch, header)
        else:
            waits = True
            self._append_to_file(shard, view, at, end, batch, header)
        base_offset = shard.next_offset - header.record_count
        if producer is not None:
            producer.accept(header.sequence, base_offset, header.record_count, shard.published_offset)
        if words:
            if waits:
                self._committer.group.words.append((shard, base_offset, words))
                self._committer.group.word_count += len(words)
            else:
                self._immediate_words.append((shard, base_offset, words))
        # Level memory may have been asked for in file mode: an acknowledgement before the fsync would name an offset
        # that a crash gives to another record.
        return Taken(base_offset, _MEMORY if in_memory else self._file_level, waits)

    def _append_to_file(
        self,
        shard: Shard,
        view: memoryview,
        at: int,
        end: int,
        batch: memoryview,
        header: BatchHeader,
    ) -> None:
        committer = self._committer
        # Room is made after a segment was opened, since that may have added a decision to the group.
        if not committer.room(self.run_end - self._run_start + end - at):
            self.flush_run()
            committer.make_room(end - at)
        if self.run_end != at or self._run_view is not view:
            self.flush_run()
            self._run_view, self._run_start = view, at
        lsn = committer.next_lsn
        self._stamp(shard, batch, header, lsn)
        checked = _CHECKED_PACK(header.body_crc, NODE_GROUP, _APPEND, 0, NODE_EPOCH, 0, lsn, shard.shard_id)
        _ENTRY.pack_into(view, at, end - at, crc32c(checked, end - at), checked)
        self.run_end = end
        committer.group.touch(shard)

    def _append_in_memory(self, shard: Shard, batch: memoryview, header: BatchHeader) -> bool:
        """Append a batch without the journal; True if its acknowledgement nevertheless waits for the group."""
        next_offset = shard.next_offset + header.record_count
        committer = self._committer
        if self._durable and (
            next_offset > shard.asked_offset - OFFSETS_RESERVED_AT_ONCE // 2
            or committer.next_lsn >= self._lsns_asked - LSNS_RESERVED_AT_ONCE // 2
        ):
            self._reserve(shard, next_offset)
        group, lsn = committer.group, committer.next_lsn
        # A memory-mode batch needs no disk, but must not overtake a file-mode batch of its shard that is not durable.
        waits = shard.pending_groups > 0 or (
            self._durable and (next_offset > shard.reserved_offset or lsn >= self.lsns_reserved)
        )
        if waits:
            if shard.group_number != group.number:
                self._publish_now()
                group.touch(shard)
        elif shard.chunk_number != self._chunk_number:
            shard.chunk_number = self._chunk_number
            self._published_now.append(shard)
        self._stamp(shard, batch, header, lsn)
        return waits

    def _stamp(self, shard: Shard, batch: memoryview, header: BatchHeader, lsn: int) -> None:
        """Set offset, lsn and time of a batch and copy it to the end of its segment."""
        next_offset = shard.next_offset + header.record_count
        stamp(batch, 0, shard.next_offset, lsn, self.append_time_us)
        self._committer.next_lsn = lsn + 1
        shard.segments[-1].append(batch, next_offset, lsn, self.append_time_us, header.max_timestamp_us)
        shard.next_offset = next_offset
        shard.last_lsn = lsn

    def flush_run(self) -> None:
        """Add the adjacent entries in the receive buffer to the group, as one buffer."""
        if self._run_view is not None:
            size = self.run_end - self._run_start
            if size:
                self._committer.add(self._run_view[self._run_start : self.run_end], size)
            self._run_view = None
            self._run_start = self.run_end = 0

    def finish(self) -> None:
        """End a run of `append` calls: publish and acknowledge batches that need no disk, and start the commit."""
        self.flush_run()
        self._publish_now()
        self._chunk_number += 1
        if self._immediate:
            immediate, self._immediate = self._immediate, {}
            for sink, acks in immediate.items():
                sink.acknowledge(acks)
        if self._immediate_results:
            results, self._immediate_results = self._immediate_results, []
            for result, appended in results:
                result.resolve(appended)
        self._committer.chunk_taken_at_s = 0.0
        self._committer.close_if_long()
        self._committer.kick()
        self._committer.look_for_rest()

    def _publish_now(self) -> None:
        if self._immediate_words:
            self._fold_words(self._immediate_words)
            self._immediate_words.clear()
        for shard in self._published_now:
            if not shard.pending_groups:
                self._publishing(shard)
                shard.publish(shard.published_now())
                if not shard.in_memory_mode:
                    self._tail_grew(shard)
        self._published_now.clear()
        self._chunk_number += 1

    def check_acceptable(self, shard: Shard, size_bytes: int) -> None:
        """Raise the error that `append` would raise now for a batch of this size, whatever its content."""
        shard.check_usable()
        self._check_size(size_bytes)
        refused = self.refuse_memory if shard.in_memory_mode else self.refuse_files
        if refused is not None:
            raise afresh(refused)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._max_batch_bytes:
            raise LimitExceededError(
                f"record batch of {size_bytes} bytes is over the limit of {self._max_batch_bytes} "
                f"(limits.max_batch_bytes); split it"
            )

    def _checked(self, batch: memoryview) -> BatchHeader:
        """The header of a batch. One that is damaged or too large is refused."""
        header = verify_body(batch)
        self._check_size(len(batch))
        if header.size_bytes != len(batch):
            raise BatchError(f"record batch of {header.size_bytes} bytes in an append that has {len(batch)} for it")
        return header

    def _reserve(self, shard: Shard, next_offset: int) -> None:
        """Reserve offsets and lsns ahead of use, so that a crash never assigns again what a reader may have seen."""
        self.flush_run()
        committer = self._committer
        if next_offset > shard.asked_offset - OFFSETS_RESERVED_AT_ONCE // 2:
            shard.asked_offset = next_offset + OFFSETS_RESERVED_AT_ONCE
            committer.decide(OffsetsReserved(shard.asked_offset), shard.shard_id)
        if committer.next_lsn >= self._lsns_asked - LSNS_RESERVED_AT_ONCE // 2:
            self._lsns_asked = committer.next_lsn + LSNS_RESERVED_AT_ONCE
            committer.decide(LsnsReserved(self._lsns_asked), 0)


def _acks_for(acks: dict[AckSink, bytearray], sink: AckSink) -> bytearray:
    packed = acks.get(sink)
    if packed is None:
        packed = acks[sink] = bytearray()
    return packed
