"""The unacknowledged appends of one producer in one shard: what to send, what to send again, what has failed.

A pure state machine, no I/O and no clock. It makes appends exactly-once together with the server, whose rules are
(docs/protocol.md, "Exactly once"): a batch whose sequence follows the last accepted one is stored; one that was stored
before is acknowledged again; one further ahead is refused with sequence_gap and the sequence that is expected; one that
was lost with the server's memory while later ones are kept is refused with sequence_lost; the first batch of a producer
in a shard where the server knows nothing of it is accepted at any sequence.

What follows from them, and is kept here:

Invariant: entries are sent, and after any fault sent again, in the order in which they were added. A batch is given a
new sequence only when the server has told that it is not stored and what it expects in its place.

Invariant: while it is not known that the server holds this producer's state (a new connection, after a refusal), one
entry is in flight alone. Otherwise the server could refuse the first batch, accept the second "at any sequence", and
take the first for a repetition when it comes again: acknowledged and lost.
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

# Refusals of the same head for a gap, without progress, after which its error goes to the caller.
MAX_GAP_REFUSALS: Final = 4
_HALF: Final = MAX_SEQUENCE // 2


class Action(enum.Enum):
    """What the owner of a window has to do about a refusal."""

    NONE = enum.auto()
    """Nothing was decided by it; take again, since something may be ready to be sent."""
    BACK_OFF = enum.auto()
    """Nothing is sent until `ProducerWindow.resume`, which is to be called after a delay."""
    REOPEN = enum.auto()
    """The handle is of no use: nothing is sent until `resume`, which is to be called with a new handle at hand."""
    REGISTER = enum.auto()
    """The server does not know the producer: nothing is sent until `ProducerWindow.rebind`."""
    FAIL = enum.auto()
    """`Decision.failed` are over; take again."""
    FENCED = enum.auto()
    """`Decision.failed` are over, and so is the producer: a newer holder of its name has taken over."""


@attrs.define(slots=True, eq=False)
class Entry:
    """One append on its way.

    Attributes:
        batch: Encoded record batch; its producer fields are set when it is taken.
        record_count: Records in the batch.
        token: The owner's business.
        owner: Likewise.
        sequence: Sequence of the first record, given by the window.
        correlation: Of the attempt that counts; 0 when none is in flight.
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
    """Outcome of a refusal: what to do, and the entries to whose callers the error goes."""

    action: Action
    failed: tuple[Entry, ...] = ()


_NONE: Final = Decision(Action.NONE)

# The whole shard is out: what waits behind the refused append would be refused as well.
_SHARD_ERRORS: Final = (ShardNotFoundError, ShardDamagedError, StorageFailedError)
# The append may have been stored all the same, so its sequence must not be given to another one by our own decision.
_UNCERTAIN_ERRORS: Final = (InternalError, StorageFailedError, CorruptionError, UnlistedError, RemoteProtocolError)


class ProducerWindow:
    """Appends of one producer to one shard, from `add` until acknowledged or failed.

    The owner calls `take` for what may be sent now, and reports what comes back. An acknowledgement counts for
    whichever attempt it was; a refusal counts only for the attempt in flight, older ones are ignored.

    Attributes:
        queued: Entries that wait to be sent, for the first time or again. Only to be looked at.
        in_flight: Entries sent on this connection and not resolved (or waiting for an earlier one to be). Likewise.
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
        """Queue an append behind all others and give it its sequence."""
        entry.sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + entry.record_count) % MAX_SEQUENCE
        self.queued.append(entry)

    def take(self, correlation: int) -> Entry | None:
        """Return the next entry to send, marked as in flight under ``correlation``; None if nothing may be sent now.

        Whether it is None does not depend on ``correlation``. The batch carries the right producer fields.
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
        """Note that an attempt of ``entry`` was acknowledged. Returns False if it was resolved before."""
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
        """Decide about the refusal of the attempt that went out under ``correlation``."""
        if entry.is_done or entry.correlation != correlation:
            return _NONE
        if isinstance(error, StaleEpochError):
            return Decision(Action.FENCED, self.fail_all())
        if isinstance(error, _SHARD_ERRORS):
            return Decision(Action.FAIL, self.fail_all(is_certain=not isinstance(error, _UNCERTAIN_ERRORS)))
        if isinstance(error, _UNCERTAIN_ERRORS) and not is_retriable(error):
            # What follows it is stored if it was stored, and else comes back with a gap that names what is expected.
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
        """Everything in flight is to be sent again, in order, on the next connection."""
        if self.in_flight:
            for entry in self.in_flight:
                entry.is_in_doubt = True
            self._go_back(self.in_flight[0])
        self._is_alone = True
        self.is_blocked = False

    def resume(self) -> None:
        """Lift the block of `Action.BACK_OFF` or `Action.REOPEN`; harmless when there is none."""
        self.is_blocked = False

    def rebind(self, identity: ProducerIdentity) -> tuple[Entry, ...]:
        """Go on as another producer, after the server said that it does not know the old one at all.

        Returns:
            Entries that may have been stored before the server forgot the producer. They are over: sent as those of
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
        """Empty the window; returns what was in it. Sequences are given out again only if nothing of it is stored."""
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
        """Give up entries that are not to be sent again, whatever became of them; returns those.

        What follows keeps its sequences: if the server does not have what was given up, it refuses the next entry for a
        gap and names the sequence that it expects, and that entry and all behind it move up.

        REQUIRES: Nothing is in flight, and no attempt of before can reach the server any more.
        """
        assert not self.in_flight
        withdrawn = tuple(entry for entry in self.queued if not entry.is_done and is_withdrawn(entry))
        for entry in withdrawn:
            entry.is_done = True
        self.queued = deque(entry for entry in self.queued if not entry.is_done)
        return withdrawn

    def _out_of_sequence(self, entry: Entry, error: SequenceGapError | SequenceLostError) -> Decision:
        if self.in_flight:
            # An earlier append is in doubt: once it is settled, this one goes out again, alone.
            return _NONE
        return self._after_gap(entry, error) if isinstance(error, SequenceGapError) else self._after_loss(entry, error)

    def _after_gap(self, entry: Entry, error: SequenceGapError) -> Decision:
        entry.gap_refusals += 1
        expected = error.expected_sequence
        if expected is None or entry.gap_refusals >= MAX_GAP_REFUSALS:
            return Decision(Action.FAIL, self._fail_head())
        if (entry.sequence - expected) % MAX_SEQUENCE >= _HALF:
            return Decision(Action.FAIL, self._fail_head())
        # All before this one is settled, yet the server expects less: it lost what it had acknowledged without
        # durability, or an append of unknown outcome was not stored. This one takes the place that is free.
        self._renumber(expected)
        return _NONE

    def _after_loss(self, entry: Entry, error: SequenceLostError) -> Decision:
        expected = error.expected_sequence
        if expected is None or (entry.sequence - expected) % MAX_SEQUENCE >= _HALF:
            # Later ones are stored under their sequences, so no other takes this one's place.
            self.queued.popleft()
            entry.is_done = True
            return Decision(Action.FAIL, (entry,))
        # The server has forgotten this producer: what may be stored already must not be sent as new.
        failed = self._fail_in_doubt()
        self._renumber(expected)
        return Decision(Action.FAIL, failed) if failed else _NONE

    def _fail_in_doubt(self) -> tuple[Entry, ...]:
        failed = tuple(each for each in self.queued if each.is_in_doubt and not each.is_done)
        for each in failed:
            each.is_done = True
        return failed

    def _go_back(self, entry: Entry) -> None:
        """Take ``entry`` and all behind it out of flight; from here on one goes out alone."""
        while self.in_flight:
            last = self.in_flight.pop()
            last.correlation = 0
            if not last.is_done:
                self.queued.appendleft(last)
            if last is entry:
                break
        self._is_alone = True

    def _fail_head(self) -> tuple[Entry, ...]:
        """Give up the first queued entry, which is certainly not stored; the following take over its sequence."""
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
