"""What a shard remembers of a producer so that each of its batches is stored once.

Sequence numbers count records per (producer, shard), modulo 2^32. Where a producer is alone in a shard its sequence
and the offsets run in parallel, so a whole history is one run; only where producers interleave are there more, and
the oldest runs are forgotten first.
"""

from __future__ import annotations

import struct

import attrs

from shards.errors import CorruptionError, FormatVersionError

SEQUENCE_MODULUS = 1 << 32
HALF = SEQUENCE_MODULUS // 2
REMEMBERED_RUNS = 64

_HEAD = struct.Struct("<BBHII")
"""version, 1 if memory_lost, number of runs, epoch, next sequence; then the runs."""

_RUN = struct.Struct("<QIxxxxQ")
VERSION = 1


@attrs.define(slots=True)
class ProducerState:
    """Sequence state of one producer in one shard.

    Attributes:
        epoch: Newest epoch seen.
        next_sequence: Sequence its next batch has to begin with.
        memory_lost: Records of it were lost with the memory, so its next sequence may lie ahead of the one expected.
        runs: (first offset, first sequence, record count), oldest first: where its records lie.
    """

    epoch: int
    next_sequence: int
    runs: list[tuple[int, int, int]] = attrs.Factory(list)
    memory_lost: bool = False

    def follows(self, sequence: int) -> bool:
        """Whether a batch that begins with this sequence is the producer's next one."""
        return sequence == self.next_sequence or (self.memory_lost and not self.is_repeat(sequence))

    def accept(self, sequence: int, offset: int, count: int) -> None:
        """Note a stored batch."""
        self.memory_lost = False
        runs = self.runs
        if runs:
            first_offset, first_sequence, length = runs[-1]
            if first_offset + length == offset and sequence == self.next_sequence and length + count < HALF:
                runs[-1] = (first_offset, first_sequence, length + count)
                self.next_sequence = (sequence + count) % SEQUENCE_MODULUS
                return
            if len(runs) >= REMEMBERED_RUNS:
                del runs[0]
        runs.append((offset, sequence, count))
        self.next_sequence = (sequence + count) % SEQUENCE_MODULUS

    @property
    def last_offset(self) -> int:
        """Offset of the newest record known of it, -1 if none is."""
        if not self.runs:
            return -1
        first_offset, _, length = self.runs[-1]
        return first_offset + length - 1

    def is_repeat(self, sequence: int) -> bool:
        """Whether a batch that begins with this sequence was stored before (sequences wrap round)."""
        return 0 < (self.next_sequence - sequence) % SEQUENCE_MODULUS < HALF

    def offset_of(self, sequence: int) -> int:
        """Offset at which the record of this sequence lies, or -1 when that is no longer remembered."""
        for first_offset, first_sequence, length in reversed(self.runs):
            ahead = (sequence - first_sequence) % SEQUENCE_MODULUS
            if ahead < length:
                return first_offset + ahead
        return -1

    def before(self, offset: int) -> ProducerState:
        """The state without the records at or above an offset: what may be stored while those are not safe yet."""
        if not self.runs or self.runs[-1][0] + self.runs[-1][2] <= offset:
            return self
        kept = [(first, sequence, min(count, offset - first)) for first, sequence, count in self.runs if first < offset]
        if not kept:
            return ProducerState(self.epoch, self.runs[0][1], [], self.memory_lost)
        _, sequence, count = kept[-1]
        next_sequence = (sequence + count) % SEQUENCE_MODULUS
        # If the first run that is left out begins beyond the one before it, records in between were lost, and it may
        # come again.
        _, whole_sequence, whole_count = self.runs[len(kept) - 1]
        following = (whole_sequence + whole_count) % SEQUENCE_MODULUS
        jumped = len(kept) < len(self.runs) and self.runs[len(kept)][1] != following
        return ProducerState(self.epoch, next_sequence, kept, self.memory_lost or jumped)

    def encode(self) -> bytes:
        """Stored form."""
        head = _HEAD.pack(VERSION, self.memory_lost, len(self.runs), self.epoch, self.next_sequence)
        return head + b"".join(_RUN.pack(offset, sequence, length) for offset, sequence, length in self.runs)

    @classmethod
    def decode(cls, stored: bytes) -> ProducerState:
        """Read the stored form back.

        Raises:
            CorruptionError: It is cut short.
            FormatVersionError: A newer program wrote it.
        """
        if stored[:1] != bytes((VERSION,)):
            raise FormatVersionError(
                f"a producer's state has format {stored[:1].hex() or 'none'}, this program reads format {VERSION}; "
                f"use the program version that wrote it"
            )
        count = _HEAD.unpack_from(stored)[2] if len(stored) >= _HEAD.size else 0
        wanted = _HEAD.size + count * _RUN.size
        if len(stored) != wanted:
            raise CorruptionError("a producer's state", 0, f"{len(stored)} bytes, expected {wanted}")
        _, memory_lost, _, epoch, next_sequence = _HEAD.unpack_from(stored)
        runs = [_RUN.unpack_from(stored, _HEAD.size + at * _RUN.size) for at in range(count)]
        return cls(
            epoch, next_sequence, [(offset, sequence, length) for offset, sequence, length in runs], bool(memory_lost)
        )
