"""The unacknowledged appends of one producer in one shard: what to send, what to repeat, what has failed.

A pure state machine without I/O or clock. Together with the server it makes appends exactly-once. The server's rules
(docs/protocol.md, "Exactly once"): a batch whose sequence follows the last accepted one is stored; one that was stored
before is acknowledged again; one further ahead is refused with sequence_gap and the expected sequence; one that was
lost with the server's memory while later ones are kept is refused with sequence_lost; the first batch of a producer
that the server has no state of in the shard is accepted with any sequence.

The window keeps these invariants:

Invariant: entries are sent, and after any failure sent again, in the order in which they were added. A batch gets a new
sequence only when the server has reported that it is not stored and which sequence is expected.

Invariant: while it is not known that the server has the state of this producer (on a new connection, after a refusal),
only one entry is in flight. Otherwise the server could refuse the first batch, accept the second one "with any
sequence", and take the first one for a repetition when it is sent again: acknowledged and lost.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs

from journal.protocol.errors import (
    InternalError,
    RemoteProtocolError,
    UnknownHandleError,
    UnlistedError,
    is_retriable,
)
from journal.protocol.frames import NO_OFFSET
from shards.errors import (
    CorruptionError,
    SequenceGapError,
    SequenceLostError,
    ShardDamagedError,
    ShardNotFoundError,
    StaleEpochError,
    StorageError,
    StorageFailedError,
    UnknownProducerError,
)
from shards.format.batch import with_sequence
from shards.format.batch_header import MAX_SEQUENCE
from shards.model import ProducerIdentity

# Refusals of the same first entry because of a gap, without progress, after which the caller gets the error.
MAX_GAP_REFUSALS: Final = 4
_HALF: Final = MAX_SEQUENCE // 2


class Action(enum.Enum):
    """What the owner of a window has to do after a refusal."""

    NONE = enum.auto()
    """The refusal decided nothing; call `take` again, since an entry may be ready to be sent."""
    BACK_OFF = enum.auto()
    """Nothing is sent until `ProducerWindow.resume`, which is to be called after a delay."""
    REOPEN = enum.auto()
    """The handle is not valid any more: nothing is sent until `resume`, which is to be called with a new handle."""
    REGISTER = enum.auto()
    """The server does not know the producer: nothing is sent until `ProducerWindow.rebind`."""
    FAIL = enum.auto()
    """The entries `Decision.failed` have failed; call `take` again."""
    FENCED = enum.auto()
    """The entries `Decision.failed` have failed, and so has the producer: another client has taken over its name."""


@attrs.define(slots=True, eq=False)
class Entry:
    """One append in the window.

    Attributes:
        batch: Encoded record batch; its producer fields are set when it is taken.
        record_count: Number of records in the batch.
        token: A value of the owner; not used here.
        owner: Another value of the owner.
        sequence: Sequence of the first record, assigned by the window.
        correlation: Correlation id of the current attempt; 0 when none is in flight.
        is_in_doubt: A connection was lost while it was in flight: it may be stored already.
    """

    batch: bytes
    record_count: int
    token: Any = None
    ack_level: int = 0
    expected_offset: int = NO_OFFSET
    sequence: int = 0
    correlation: int = 0
    stamped_sequence: int = -1
    owner: Any = None
    gap_refusals: int = 0
    is_done: bool = False
    is_in_doubt: bool = False


@attrs.frozen(slots=True)
class Decision:
    """Result of a refusal: what to do, and the entries whose callers get the error."""

    action: Action
    failed: tuple[Entry, ...] = ()


_NONE: Final = Decision(Action.NONE)

# The whole shard is unavailable: the appends after the refused one would be refused as well.
_SHARD_ERRORS: Final = (ShardNotFoundError, ShardDamagedError, StorageFailedError)
# The append may nevertheless have been stored, so its sequence must not be assigned to another append.
_UNCERTAIN_ERRORS: Final = (InternalError, StorageFailedError, CorruptionError, UnlistedError, RemoteProtocolError)


class ProducerWindow:
    """Appends of one producer to one shard, from `add` until acknowledged or failed.

    The owner calls `take` for what may be sent now, and reports the answers. An acknowledgement is valid for any
    attempt; a refusal is valid only for the current attempt, and ignored for older ones.

    Attributes:
        queued: Entries that wait to be sent, for the first time or again; read-only for others.
        in_flight: Entries that were sent on this connection and have no result yet, or wait for that of an earlier one;
            read-only for others.
    """

    def __init__(self, identity: ProducerIdentity, first_sequence: int = 0) -> None:
        self.identity = identity
        self.next_sequence = first_sequence
        self.is_blocked = False
        self._is_alone = True
        self.queued: deque[Entry] = deque()
        self.in_flight: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self.queued) + len(self.in_flight)

    @property
    def may_launch(self) -> bool:
        """Whether a new entry may be sent at once, by `launch`."""
        return not self.queued and not self.is_blocked and not (self._is_alone and self.in_flight)

    def launch(self, entry: Entry, correlation: int) -> None:
        """Add an entry and take it in one step.

        REQUIRES: `may_launch`.
        """
        sequence = self.next_sequence
        self.next_sequence = (sequence + entry.record_count) % MAX_SEQUENCE
        entry.sequence = sequence
        entry.correlation = correlation
        if entry.stamped_sequence != sequence:
            self._stamp(entry)
        self.in_flight.append(entry)

    def add(self, entry: Entry) -> None:
        """Queue an append after all others and assign its sequence."""
        entry.sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + entry.record_count) % MAX_SEQUENCE
        self.queued.append(entry)

    def take(self, correlation: int) -> Entry | None:
        """Return the next entry to send, marked as in flight under ``correlation``; None if nothing may be sent now.

        Whether it is None does not depend on ``correlation``. The batch has the right producer fields.
        """
        if self.is_blocked or (self._is_alone and self.in_flight):
            return None
        queue = self.queued
        while queue and queue[0].is_done:
            queue.popleft()
        if not queue:
            return None
        entry = queue.popleft()
        entry.correlation = correlation
        if entry.stamped_sequence != entry.sequence:
            self._stamp(entry)
        self.in_flight.append(entry)
        return entry

    def _stamp(self, entry: Entry) -> None:
        identity = self.identity
        entry.batch = with_sequence(
            entry.batch,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            sequence=entry.sequence,
        )
        entry.stamped_sequence = entry.sequence

    def acknowledged(self, entry: Entry) -> bool:
        """Note that an attempt of ``entry`` was acknowledged. Returns False if the entry had a result before."""
        if entry.is_done:
            return False
        entry.is_done = True
        in_flight = self.in_flight
        while in_flight and in_flight[0].is_done:
            in_flight.popleft()
        if not in_flight:
            self._is_alone = False
        return True

    def refused(self, entry: Entry, correlation: int, error: StorageError) -> Decision:
        """Decide what to do about the refusal of the attempt with ``correlation``."""
        if entry.is_done or entry.correlation != correlation:
            return _NONE
        if isinstance(error, StaleEpochError):
            return Decision(Action.FENCED, self.fail_all())
        if isinstance(error, _SHARD_ERRORS):
            return Decision(Action.FAIL, self.fail_all(is_certain=not isinstance(error, _UNCERTAIN_ERRORS)))
        if isinstance(error, _UNCERTAIN_ERRORS) and not is_retriable(error):
            # If it was stored, so are the following; otherwise they are refused with a gap and the expected sequence.
            return Decision(Action.FAIL, self._drop(entry))
        self._go_back(entry)
        if isinstance(error, SequenceGapError | SequenceLostError):
            return self._out_of_sequence(entry, error)
        if isinstance(error, UnknownHandleError):
            self.is_blocked = True
            return Decision(Action.REOPEN)
        if isinstance(error, UnknownProducerError):
            self.is_blocked = True
            return Decision(Action.REGISTER)
        if is_retriable(error):
            self.is_blocked = True
            return Decision(Action.BACK_OFF)
        return Decision(Action.FAIL, self._fail_head())

    def connection_lost(self) -> None:
        """Mark everything in flight to be sent again, in order, on the next connection."""
        if self.in_flight:
            for entry in self.in_flight:
                entry.is_in_doubt = True
            self._go_back(self.in_flight[0])
        self._is_alone = True
        self.is_blocked = False

    def resume(self) -> None:
        """Lift the block of `Action.BACK_OFF` or `Action.REOPEN`; no effect if there is none."""
        self.is_blocked = False

    def rebind(self, identity: ProducerIdentity) -> tuple[Entry, ...]:
        """Continue as another producer, after the server reported that it does not know the old one.

        Returns:
            Entries that may have been stored before the server removed the producer. They have failed: sent as those of
            another producer they could be stored twice.
        """
        if self.in_flight:
            self._go_back(self.in_flight[0])
        self._is_alone = True
        self.is_blocked = False
        self.identity = identity
        failed = self._fail_in_doubt()
        for entry in self.queued:
            entry.stamped_sequence = -1
            entry.gap_refusals = 0
        self._renumber(0)
        return failed

    def fail_all(self, *, is_certain: bool = False) -> tuple[Entry, ...]:
        """Empty the window and return its entries. With ``is_certain`` none is stored: sequences are reused."""
        failed = tuple(entry for entry in (*self.in_flight, *self.queued) if not entry.is_done)
        self.in_flight.clear()
        self.queued.clear()
        for entry in failed:
            entry.is_done = True
        if failed and is_certain:
            self.next_sequence = failed[0].sequence
        self._is_alone = True
        return failed

    def withdraw(self, is_withdrawn: Callable[[Entry], bool]) -> tuple[Entry, ...]:
        """Remove entries that are not to be sent again, whatever their result is; returns them.

        Later entries keep their sequences: if the server does not have the removed entries, it refuses the next one
        because of a gap and reports the expected sequence; then that entry and all later ones are renumbered.

        REQUIRES: Nothing is in flight, and no earlier attempt can reach the server any more.
        """
        assert not self.in_flight
        withdrawn = tuple(entry for entry in self.queued if not entry.is_done and is_withdrawn(entry))
        for entry in withdrawn:
            entry.is_done = True
        self.queued = deque(entry for entry in self.queued if not entry.is_done)
        return withdrawn

    def _out_of_sequence(self, entry: Entry, error: SequenceGapError | SequenceLostError) -> Decision:
        if self.in_flight:
            # An earlier append is in doubt: when its result is known, this one is sent again, alone.
            return _NONE
        return self._after_gap(entry, error) if isinstance(error, SequenceGapError) else self._after_loss(entry, error)

    def _after_gap(self, entry: Entry, error: SequenceGapError) -> Decision:
        entry.gap_refusals += 1
        expected = error.expected_sequence
        if expected is None or entry.gap_refusals >= MAX_GAP_REFUSALS:
            return Decision(Action.FAIL, self._fail_head())
        if (entry.sequence - expected) % MAX_SEQUENCE >= _HALF:
            return Decision(Action.FAIL, self._fail_head())
        # All earlier entries have results, yet the server expects a lower sequence: it lost what it had acknowledged
        # without durability, or an append with an unknown result was not stored. This one gets the free sequence.
        self._renumber(expected)
        return _NONE

    def _after_loss(self, entry: Entry, error: SequenceLostError) -> Decision:
        expected = error.expected_sequence
        if expected is None or (entry.sequence - expected) % MAX_SEQUENCE >= _HALF:
            # Later ones are stored under their sequences, so no other can take this one's sequence.
            self.queued.popleft()
            entry.is_done = True
            return Decision(Action.FAIL, (entry,))
        # The server has no state of this producer any more: what may be stored already must not be sent as new.
        failed = self._fail_in_doubt()
        self._renumber(expected)
        return Decision(Action.FAIL, failed) if failed else _NONE

    def _fail_in_doubt(self) -> tuple[Entry, ...]:
        failed = tuple(each for each in self.queued if each.is_in_doubt and not each.is_done)
        for each in failed:
            each.is_done = True
        return failed

    def _go_back(self, entry: Entry) -> None:
        """Take ``entry`` and all later ones out of flight; from now on only one is sent at a time."""
        while self.in_flight:
            last = self.in_flight.pop()
            last.correlation = 0
            if not last.is_done:
                self.queued.appendleft(last)
            if last is entry:
                break
        self._is_alone = True

    def _fail_head(self) -> tuple[Entry, ...]:
        """Remove the first queued entry, which is certainly not stored; the following ones are renumbered."""
        entry = self.queued.popleft()
        entry.is_done = True
        self._renumber(entry.sequence)
        return (entry,)

    def _drop(self, entry: Entry) -> tuple[Entry, ...]:
        entry.is_done = True
        self._settle()
        self._is_alone = True
        return (entry,)

    def _settle(self) -> None:
        in_flight = self.in_flight
        while in_flight and in_flight[0].is_done:
            in_flight.popleft()

    def _renumber(self, sequence: int) -> None:
        for entry in self.queued:
            if not entry.is_done:
                entry.sequence = sequence
                sequence = (sequence + entry.record_count) % MAX_SEQUENCE
        self.next_sequence = sequence
