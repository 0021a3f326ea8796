"""Writes commit groups to the log of a store: a slot for each group, and then a copy in the journal of this server.

The slot decides: a group is durable when its slot, and all before it, are known to be in the log. The copy makes the
data directory a prefix of the log at every moment, so that a start reads from the store only what came later. The sync
of the last copy is not waited for: what a power loss takes of it is read from the log again (ADR 0066).

With a window of several slots, those of later groups are sent in threads of their own meanwhile (ADR 0067). Each group
is still finished in its turn: it is settled, copied and reported only after all before it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import attrs

from journal.engine.shared_log.isolation import Isolation
from journal.engine.shared_log.slot_groups import encode_group
from journal.engine.wal.disk import DirectOutcome, DirectWrite
from journal.engine.wal.journal_writer import JournalWriter
from journal.logstore.counting import CountedLogStore, RequestCounts
from journal.logstore.driver import run
from journal.logstore.errors import LogStoreError, StoreDeposedError
from journal.logstore.health import Trouble
from journal.logstore.keys import Position
from journal.logstore.objects import ID_BYTES
from journal.logstore.settling import Settlement, settle_create
from journal.logstore.writing import SlotWrite, SlotWriter
from shards.errors import LogUnavailableError, NotOwnerError, StorageFailedError
from shards.segments.chunks import Readable

_ATTEMPTS: Final = 6
"""Number of attempts to create a slot, after which `LogUnavailableError` is raised. A later call continues them."""

_LONGEST_S: Final = 5.0
"""The same: after so long no more attempts begin. One may take ten seconds to fail."""


@attrs.frozen(slots=True)
class ResumePoint:
    """Where to go on reading.

    Attributes:
        position: The next slot.
        next_lsn: The lsn of its first entry.
    """

    position: Position
    next_lsn: int


@attrs.define(slots=True, eq=False)
class _Writing:
    """A group that is being written.

    Attributes:
        write: Its slot; None as long as that is not encoded.
        sending: What comes of the create in another thread; None if this thread is to do it.
        is_settled: Whether it is known to be in the log, as everything before it is.
    """

    entries: Sequence[Readable]
    size_bytes: int
    first_lsn: int
    next_lsn: int
    write: SlotWrite | None = None
    sending: Future[Settlement] | None = None
    is_settled: bool = False


class SharedLogWriter:
    """Writes the groups of an owner. Methods run in the disk thread if they do not say otherwise.

    Args:
        store: The store, with counts of all that this server asks of it.
        slots: The slots of the epoch that this server owns.
        journal: The journal of this server, which has everything before the epoch.
        largest_group_bytes: Bound on the entries of one group.
        written: Called in the disk thread when the journal has everything before a position.
        interval_s: Time between the beginnings of two groups that are not full, at least, in seconds.
        trouble: Says that the log store has not answered as it should for some seconds.
        isolation: Says that it is not known whether this server still is the owner; None if that is always known.

    Attributes:
        epoch: The epoch that this server owns.
        window: How many groups may be under way at a time.
        interval_s: See above.
        largest_group_bytes: See above.
        slots_written: Slots written since the start.
        bytes_written: Bytes of these.
    """

    def __init__(
        self,
        store: CountedLogStore,
        slots: SlotWriter,
        journal: JournalWriter,
        largest_group_bytes: int,
        written: Callable[[ResumePoint], None],
        interval_s: float = 0.0,
        trouble: Callable[[], Trouble | None] = lambda: None,
        isolation: Isolation | None = None,
    ) -> None:
        self._store = store
        self._trouble = trouble
        self._isolation = isolation
        self._slots = slots
        self.epoch = slots.acknowledged.epoch
        self.window = slots.window
        self.interval_s = interval_s
        self._journal = journal
        self._written = written
        # Oldest first. Both are appended to by the event loop and emptied by other threads: each single operation of a
        # deque is atomic.
        self._under_way: deque[_Writing] = deque()
        self._not_encoded: deque[_Writing] = deque()
        # Guards the slots, and the order of encoding. Held while a group is encoded, never during a request.
        self._encoding = threading.Lock()
        self._threads = ThreadPoolExecutor(self.window, "log-slots")
        self._is_abandoned = False
        self._deposed: StoreDeposedError | None = None
        begin = ResumePoint(slots.acknowledged, slots.acknowledged_lsn)
        # After the last group, and after the one before it: the event loop may not know of the last one yet.
        self._points = begin, begin
        self.largest_group_bytes = min(largest_group_bytes, journal.largest_group_bytes)
        self.slots_written = 0
        self.bytes_written = 0

    def begin_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Send the slot of a group, while groups before it are under way. On the event loop.

        `write_group` has to be called with the same group later, in its turn.

        REQUIRES: fewer than `window` groups are under way.
        """
        assert len(self._under_way) < self.window
        writing = self._note(entries, size_bytes, first_lsn, next_lsn)
        writing.sending = self._threads.submit(self._send, writing)

    def write_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Make the entries durable: they are in the log of the store on return.

        After `LogUnavailableError` or `DiskFullError` it must be called with the same group again.

        REQUIRES: it is the oldest one under way, or none is.

        Raises:
            NotOwnerError: Another server owns the store. The group is not in the log, and never will be.
            LogUnavailableError: The store does not answer, or refuses: it is not known whether the group is in the log.
            DiskFullError: It is in the log, but there is no space for the copy.
            OSError: It is in the log, but the copy could not be written.
        """
        if self._deposed is not None:
            raise NotOwnerError("") from self._deposed
        if not self._under_way:
            self._note(entries, size_bytes, first_lsn, next_lsn)
        writing = self._under_way[0]
        assert writing.first_lsn == first_lsn
        if not writing.is_settled:
            self._settle(writing)
        self._journal.write_copy(entries, size_bytes, first_lsn, next_lsn)
        self._under_way.popleft()
        self._points = ResumePoint(self._slots.acknowledged, self._slots.acknowledged_lsn), self._points[0]
        self._written(self._points[0])

    def place(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """The disk alone makes no group durable here; see `GroupWriter`."""

    def placed(self, write: DirectWrite, result: DirectOutcome) -> None:
        """Never called, as `place` returns no place."""

    @property
    def reads_entries(self) -> bool:
        """Whether a group that was begun is not encoded yet. On the event loop."""
        return bool(self._not_encoded)

    def abandon(self) -> None:
        """Nothing more will be reported: read no entries any more, whose memory may be used again. On the event loop.

        What was sent may still come into the log, as after a crash.
        """
        with self._encoding:
            self._is_abandoned = True

    def close(self) -> None:
        """Wait until no request is under way any more. On the event loop, at the end."""
        self.abandon()
        self._threads.shutdown(cancel_futures=True)

    @property
    def requests(self) -> RequestCounts:
        """Requests of this server to the log store since it joined."""
        return self._store.requests

    @property
    def trouble(self) -> Trouble | None:
        """Says that the log store has not answered as it should for some seconds; None if nothing is wrong."""
        return self._trouble()

    @property
    def isolation(self) -> LogUnavailableError | None:
        """The error for appends in memory mode, if it is not known whether this server still is the owner."""
        return None if self._isolation is None else self._isolation.error

    @property
    def next_lsn(self) -> int:
        """The lsn after the last group that was written. For any thread."""
        return self._points[0].next_lsn

    def resume(self, next_lsn: int) -> ResumePoint:
        """Where a later start goes on reading if this server keeps everything before an lsn. For any thread.

        Args:
            next_lsn: The lsn after the last group that was reported as written.
        """
        last, before = self._points
        return last if last.next_lsn <= next_lsn else before

    def _note(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> _Writing:
        writing = _Writing(entries, size_bytes, first_lsn, next_lsn)
        self._not_encoded.append(writing)
        self._under_way.append(writing)
        return writing

    def _send(self, writing: _Writing) -> Settlement:
        """Create the slot of a group. In any thread but the event loop's."""
        with self._encoding:
            # Threads do not start in order, but slots are given to groups in order.
            while writing.write is None:
                self._encode(self._not_encoded[0])
                self._not_encoded.popleft()
            write = writing.write
        began = time.monotonic()
        return run(
            self._store,
            settle_create(write.key, write.data, _ATTEMPTS),
            gives_up=lambda: self._is_abandoned or time.monotonic() - began > _LONGEST_S,
        )

    def _encode(self, writing: _Writing) -> None:
        if self._is_abandoned:
            raise StorageFailedError("the engine has failed: nothing more is written")
        body = encode_group(writing.entries, writing.size_bytes, writing.first_lsn, writing.next_lsn)
        writing.write = self._slots.prepare(body, writing.next_lsn, secrets.token_bytes(ID_BYTES))

    def _settle(self, writing: _Writing) -> None:
        sending, writing.sending = writing.sending, None
        try:
            if sending is None:
                self._send_failed_again()
                settlement = self._send(writing)
            else:
                settlement = sending.result()
        except LogStoreError as error:
            raise _unavailable(writing, error) from error
        write = writing.write
        assert write is not None
        with self._encoding:
            self._slots.settle(write.position, settlement.is_ours)
            # Of those after it nothing is sent that was not sent yet.
            self._is_abandoned |= self._slots.is_fenced
        if self._slots.is_fenced:
            self._deposed = StoreDeposedError(write.position.epoch)
            raise NotOwnerError("") from self._deposed
        writing.is_settled = True
        self.slots_written += 1
        self.bytes_written += len(write.data)

    def _send_failed_again(self) -> None:
        """The oldest group is tried again: so are those after it whose attempts have ended without an outcome."""
        for later in tuple(self._under_way):
            if later.sending is not None and later.sending.done() and later.sending.exception() is not None:
                later.sending = self._threads.submit(self._send, later)


def _unavailable(writing: _Writing, error: LogStoreError) -> LogUnavailableError:
    """The error for appends, by what the last attempt came to."""
    last = error.__cause__ if isinstance(error.__cause__, LogStoreError) else error
    key = "the slot" if writing.write is None else writing.write.key
    reason = str(last).removeprefix(f"create of {key}: ")
    way_out = f"; {last.way_out}" if last.way_out else ""
    return LogUnavailableError(
        f"the log store does not take {key}: {reason}{way_out}. Appends are accepted again, without a restart, when it "
        "does; reads continue"
    )
