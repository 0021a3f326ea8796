"""The state of a producer in a shard, which ensures that each of its batches is stored once.

Sequence numbers count records per (producer, shard), modulo 2^32. If a producer is the only one in a shard, its
sequence and the offsets rise together, so its whole history is one run; only interleaved producers have more runs, of
which the oldest are forgotten first. For the forgotten ones the state keeps the point from which on they were stored
without a gap.
"""

from __future__ import annotations

import enum
import struct

import attrs

from shards.errors import CorruptionError, FormatVersionError

SEQUENCE_MODULUS = 1 << 32
HALF = SEQUENCE_MODULUS // 2
REMEMBERED_RUNS = 64

_HEAD = struct.Struct("<BBHII")
"""version, flags, number of runs, epoch, next sequence; then the forgotten part if there is one, then the runs."""

_FORGOTTEN = struct.Struct("<QIxxxx")
_RUN = struct.Struct("<QIxxxxQ")
VERSION = 2
_MEMORY_LOST = 1
_HAS_FORGOTTEN = 2
_EVERYTHING = 1 << 63


class Relation(enum.Enum):
    """The relation of a sequence to the state of its producer."""

    NEXT = enum.auto()
    """It is the expected one."""
    AHEAD = enum.auto()
    """Earlier sequences are missing."""
    KNOWN = enum.auto()
    """Its record was stored, and its offset is known."""
    FORGOTTEN = enum.auto()
    """Its record was stored, but its offset is not known any more."""
    MISSING = enum.auto()
    """Later ones were stored, and this one is not known: it was lost with the memory, or never sent."""


@attrs.define(slots=True)
class ProducerState:
    """Sequence state of one producer in one shard.

    Attributes:
        epoch: Newest epoch seen.
        next_sequence: Expected sequence of its next batch.
        memory_lost: Records of it were lost with the memory, so its next sequence may be higher than the expected one.
        runs: (first offset, first sequence, record count) of its records, oldest first.
        forgotten: (offset, sequence) of the oldest record from which on all sequences up to the first run were stored;
            None if only the runs are known.
        saved_sequence: `next_sequence` in the stored form, -1 if that form is not valid any more: equal means unchanged
            since then.
    """

    epoch: int
    next_sequence: int
    runs: list[tuple[int, int, int]] = attrs.Factory(list)
    memory_lost: bool = False
    forgotten: tuple[int, int] | None = None
    saved_sequence: int = attrs.field(default=-1, eq=False)

    def accept(self, sequence: int, offset: int, count: int, published_offset: int = _EVERYTHING) -> None:
        """Add a stored batch; runs from ``published_offset`` on, which a crash may still undo, are not forgotten."""
        self.memory_lost = False
        runs = self.runs
        if runs:
            first_offset, first_sequence, length = runs[-1]
            if first_offset + length == offset and sequence == self.next_sequence and length + count < HALF:
                runs[-1] = (first_offset, first_sequence, length + count)
                self.next_sequence = (sequence + count) % SEQUENCE_MODULUS
                return
            if len(runs) >= REMEMBERED_RUNS:
                self.forget_runs(len(runs) - REMEMBERED_RUNS + 1, published_offset)
        runs.append((offset, sequence, count))
        self.next_sequence = (sequence + count) % SEQUENCE_MODULUS

    def forget_runs(self, most: int, before_offset: int) -> None:
        """Forget up to ``most`` of the oldest runs before an offset."""
        runs = self.runs
        done = 0
        while done < most and runs[done][0] + runs[done][2] <= before_offset:
            offset, sequence, count = runs[done]
            done += 1
            if done < len(runs) and runs[done][1] != (sequence + count) % SEQUENCE_MODULUS:
                # Records between them were lost, so nothing is known about older ones.
                self.forgotten = None
            elif self.forgotten is None or (runs[-1][1] - self.forgotten[1]) % SEQUENCE_MODULUS >= HALF:
                self.forgotten = (offset, sequence)
        del runs[:done]

    def store_again_from(self, sequence: int) -> None:
        """Forget the records from a known sequence on, because all of them are lost: it is the expected one again."""
        runs = self.runs
        while runs:
            offset, first, count = runs.pop()
            ahead = (sequence - first) % SEQUENCE_MODULUS
            if ahead < count:
                if ahead:
                    runs.append((offset, first, ahead))
                break
        self.next_sequence = sequence
        self.memory_lost = True
        self.saved_sequence = -1

    @property
    def last_offset(self) -> int:
        """Offset of its newest known record, -1 if there is none."""
        if not self.runs:
            return -1
        first_offset, _, length = self.runs[-1]
        return first_offset + length - 1

    def is_repeat(self, sequence: int) -> bool:
        """Whether a batch that begins with this sequence was stored before (sequences wrap around)."""
        return 0 < (self.next_sequence - sequence) % SEQUENCE_MODULUS < HALF

    def offset_of(self, sequence: int) -> int:
        """Offset of the record with this sequence, or -1 if it is not known any more."""
        for first_offset, first_sequence, length in reversed(self.runs):
            ahead = (sequence - first_sequence) % SEQUENCE_MODULUS
            if ahead < length:
                return first_offset + ahead
        return -1

    def relation(self, sequence: int) -> Relation:
        """The relation of a sequence to this state."""
        if sequence == self.next_sequence:
            return Relation.NEXT
        if not self.is_repeat(sequence):
            return Relation.AHEAD
        if self.offset_of(sequence) >= 0:
            return Relation.KNOWN
        if self.forgotten is not None:
            _, first_sequence = self.forgotten
            following = self.runs[0][1] if self.runs else self.next_sequence
            if (sequence - first_sequence) % SEQUENCE_MODULUS < (following - first_sequence) % SEQUENCE_MODULUS:
                return Relation.FORGOTTEN
        return Relation.MISSING

    def forgotten_range(self) -> tuple[int, int]:
        """Range of offsets of the forgotten records, including offsets of other producers in between.

        REQUIRES: `forgotten` is not None.
        """
        assert self.forgotten is not None  # the caller has checked it
        first_offset = self.forgotten[0]
        return first_offset, self.runs[0][0] if self.runs else _EVERYTHING

    def ranges_from(self, sequence: int) -> list[tuple[int, int]]:
        """(first offset, offset after the last) of the known records from a known sequence on."""
        found: list[tuple[int, int]] = []
        for first_offset, first_sequence, length in reversed(self.runs):
            ahead = (sequence - first_sequence) % SEQUENCE_MODULUS
            if ahead < length:
                found.append((first_offset + ahead, first_offset + length))
                break
            found.append((first_offset, first_offset + length))
        return found

    def before(self, offset: int) -> ProducerState:
        """The state without the records at or above an offset, to be saved while those are not durable.

        It has no more runs than may be saved. All forgotten records must be below the offset: later ones are replayed
        from the journal.
        """
        if not self.runs or self.runs[-1][0] + self.runs[-1][2] <= offset:
            if len(self.runs) <= REMEMBERED_RUNS:
                return self
            whole = attrs.evolve(self, runs=list(self.runs))
            whole.forget_runs(len(whole.runs) - REMEMBERED_RUNS, offset)
            return whole
        kept = [(first, sequence, min(count, offset - first)) for first, sequence, count in self.runs if first < offset]
        forgotten = self.forgotten if self.forgotten is not None and self.forgotten[0] < offset else None
        if not kept:
            first_sequence = self.runs[0][1] if forgotten is self.forgotten else self.forgotten[1]  # type: ignore[index]
            return ProducerState(self.epoch, first_sequence, [], self.memory_lost, forgotten)
        _, sequence, count = kept[-1]
        next_sequence = (sequence + count) % SEQUENCE_MODULUS
        # If there is a gap between the last kept run and the first removed one, records in between were lost, and may
        # be sent again.
        _, whole_sequence, whole_count = self.runs[len(kept) - 1]
        following = (whole_sequence + whole_count) % SEQUENCE_MODULUS
        jumped = len(kept) < len(self.runs) and self.runs[len(kept)][1] != following
        cut = ProducerState(self.epoch, next_sequence, kept, self.memory_lost or jumped, forgotten)
        if len(kept) > REMEMBERED_RUNS:
            cut.forget_runs(len(kept) - REMEMBERED_RUNS, offset)
        return cut

    def encode(self) -> bytes:
        """Stored form.

        REQUIRES: there are at most `REMEMBERED_RUNS` runs; `before` ensures that.
        """
        flags = (_MEMORY_LOST if self.memory_lost else 0) | (0 if self.forgotten is None else _HAS_FORGOTTEN)
        head = _HEAD.pack(VERSION, flags, len(self.runs), self.epoch, self.next_sequence)
        if self.forgotten is not None:
            head += _FORGOTTEN.pack(*self.forgotten)
        return head + b"".join(_RUN.pack(offset, sequence, length) for offset, sequence, length in self.runs)

    @classmethod
    def decode(cls, stored: bytes) -> ProducerState:
        """Decode the stored form.

        Raises:
            CorruptionError: It is truncated.
            FormatVersionError: A newer program wrote it.
        """
        version = stored[0] if stored else 0
        if version not in (1, VERSION):
            raise FormatVersionError(
                f"a producer's state has format {stored[:1].hex() or 'none'}, this program reads formats 1 and "
                f"{VERSION}; use the program version that wrote it"
            )
        _, flags, count, epoch, next_sequence = _HEAD.unpack_from(stored) if len(stored) >= _HEAD.size else (0,) * 5
        has_forgotten = version > 1 and flags & _HAS_FORGOTTEN
        runs_at = _HEAD.size + (_FORGOTTEN.size if has_forgotten else 0)
        wanted = runs_at + count * _RUN.size
        if len(stored) != wanted:
            raise CorruptionError("a producer's state", 0, f"{len(stored)} bytes, expected {wanted}")
        runs = [_RUN.unpack_from(stored, runs_at + at * _RUN.size) for at in range(count)]
        forgotten = None
        if has_forgotten:
            offset, sequence = _FORGOTTEN.unpack_from(stored, _HEAD.size)
            forgotten = (offset, sequence)
        elif version == 1 and count == REMEMBERED_RUNS:
            # Version 1 did not record losses among forgotten runs; it took all of them for stored.
            forgotten = (0, (next_sequence - HALF + 1) % SEQUENCE_MODULUS)
        return cls(epoch, next_sequence, runs, bool(flags & _MEMORY_LOST), forgotten, next_sequence)
