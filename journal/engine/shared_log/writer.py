"""Writes commit groups to the log of a store: a slot for each group, and then a copy in the journal of this server.

The slot decides: a group is durable when its slot is known to be in the log. The copy makes the data directory a
prefix of the log at every moment, so that a start reads from the store only what came later. The sync of the last copy
is not waited for: what a power loss takes of it is read from the log again (ADR 0066).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import attrs

from journal.engine.shared_log.slot_groups import encode_group
from journal.engine.wal.journal_writer import JournalWriter
from journal.logstore.counting import CountedLogStore, RequestCounts
from journal.logstore.driver import run
from journal.logstore.errors import LogStoreError, StoreDeposedError
from journal.logstore.keys import Position
from journal.logstore.objects import ID_BYTES
from journal.logstore.settling import settle_create
from journal.logstore.writing import SlotWrite, SlotWriter
from shards.errors import LogUnavailableError, NotOwnerError
from shards.segments.chunks import Readable

_ATTEMPTS: Final = 6
"""Number of attempts to create a slot, after which `LogUnavailableError` is raised. A later call continues them."""


@attrs.frozen(slots=True)
class ResumePoint:
    """Where to go on reading.

    Attributes:
        position: The next slot.
        next_lsn: The lsn of its first entry.
    """

    position: Position
    next_lsn: int


class SharedLogWriter:
    """Writes the groups of an owner. It runs in the disk thread.

    Args:
        store: The store, with counts of all that this server asks of it.
        slots: The slots of the epoch that this server owns.
        journal: The journal of this server, which has everything before the epoch.
        largest_group_bytes: Bound on the entries of one group.

    Attributes:
        epoch: The epoch that this server owns.
        largest_group_bytes: See above.
        slots_written: Slots written since the start.
        bytes_written: Bytes of these.
    """

    def __init__(
        self, store: CountedLogStore, slots: SlotWriter, journal: JournalWriter, largest_group_bytes: int
    ) -> None:
        self._store = store
        self._slots = slots
        self.epoch = slots.acknowledged.epoch
        self._journal = journal
        self._pending: SlotWrite | None = None
        self._is_settled = False
        self._deposed: StoreDeposedError | None = None
        begin = ResumePoint(slots.acknowledged, slots.acknowledged_lsn)
        # After the last group, and after the one before it: the event loop may not know of the last one yet.
        self._points = begin, begin
        self.largest_group_bytes = min(largest_group_bytes, journal.largest_group_bytes)
        self.slots_written = 0
        self.bytes_written = 0

    def write_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Make the entries durable: they are in the log of the store on return.

        After `LogUnavailableError` or `DiskFullError` it must be called with the same group again.

        Raises:
            NotOwnerError: Another server owns the store. The group is not in the log, and never will be.
            LogUnavailableError: The store does not answer, or refuses: it is not known whether the group is in the log.
            DiskFullError: It is in the log, but there is no space for the copy.
            OSError: It is in the log, but the copy could not be written.
        """
        if self._deposed is not None:
            raise NotOwnerError("") from self._deposed
        if self._pending is None:
            body = encode_group(entries, size_bytes, first_lsn, next_lsn)
            self._pending = self._slots.prepare(body, next_lsn, secrets.token_bytes(ID_BYTES))
            self._is_settled = False
        if not self._is_settled:
            self._settle(self._pending)
        self._journal.write_copy(entries, size_bytes, first_lsn, next_lsn)
        self._pending = None
        self._points = ResumePoint(self._slots.acknowledged, self._slots.acknowledged_lsn), self._points[0]

    @property
    def requests(self) -> RequestCounts:
        """Requests of this server to the log store since it joined."""
        return self._store.requests

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

    def _settle(self, write: SlotWrite) -> None:
        try:
            settlement = run(self._store, settle_create(write.key, write.data, _ATTEMPTS))
        except LogStoreError as error:
            raise LogUnavailableError(
                f"the log store does not take {write.key}: {error}. Appends are accepted again, without a restart, "
                "when it does; reads continue"
            ) from error
        self._slots.settle(write.position, settlement.is_ours)
        if self._slots.is_fenced:
            self._deposed = StoreDeposedError(write.position.epoch)
            raise NotOwnerError("") from self._deposed
        self._is_settled = True
        self.slots_written += 1
        self.bytes_written += len(write.data)
