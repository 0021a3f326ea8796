"""Group commit: everything decided while one group is being written forms the next group.

A group is one `pwritev` and one `fdatasync` for all shards together; on a log store it is one slot, and the next groups
may be sent before it is in the log (`send_window`). The committer does not interpret the entries; it
passes each durable group to its owner, which publishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Final, Protocol

import outcome
import trio

from journal.engine.wal.disk import DirectOutcome, DirectWrite, Disk
from journal.engine.wal.entry import encode_entry
from journal.engine.wal.entry_payloads import KINDS, Decision, encode_payload
from journal.engine.wal.group import Group
from journal.engine.wal.send_window import SendWindow
from journal.protocol.frames import ACK
from journal.telemetry.histogram import COUNT_BOUNDS, DURATION_BOUNDS_S, SIZE_BOUNDS_BYTES, Histogram
from shards.errors import DiskFullError, LimitExceededError, NotOwnerError, StorageFailedError, afresh
from shards.segments.chunks import Readable

MOST_DECISIONS = 2000
MOST_TOUCHED = 5000
MOST_WORDS = 10_000
"""Bound on a group: it is published in one step of the event loop, which takes some microseconds for each decision,
each shard and each word of an index."""


_LONG_S = 0.1
"""A group that is in flight for so long is waited for without the memory of those after it."""

_DIRECT_BYTES: Final = 4096
"""Larger groups are those of many appends under way. A commit that ends sooner would make the next groups smaller, and
many small ones take more of the event loop: MQTT publishes became a quarter slower."""


class GroupWriter(Protocol):
    """Makes groups durable, one after the other, in the disk thread.

    Attributes:
        largest_group_bytes: Bound on the entries of one group.
    """

    @property
    def largest_group_bytes(self) -> int: ...

    def write_group(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> None:
        """Make the entries durable.

        Raises:
            DiskFullError: Nothing is lost; write the same group again later.
            Exception: Nothing of the group may be acknowledged, now or later.
        """
        ...

    def place(self, entries: Sequence[Readable], size_bytes: int, first_lsn: int, next_lsn: int) -> DirectWrite | None:
        """Where the disk can make the entries durable itself; None if that takes `write_group`. On the event loop."""
        ...

    def placed(self, write: DirectWrite, result: DirectOutcome) -> None:
        """Note that the disk has written a group of `place`. On the event loop.

        Raises:
            Exception: The sync failed; nothing of the group may be acknowledged, now or later.
        """
        ...


def _failure_by(error: Exception) -> StorageFailedError:
    if isinstance(error, NotOwnerError):
        return error
    failure = StorageFailedError(
        f"the storage failed ({error}); nothing more is acknowledged. Restart the server once the disk is sound: what "
        f"was acknowledged is safe"
    )
    failure.__cause__ = error
    return failure


class Committer:
    """Collects a group while the one before it is being written.

    Args:
        writer: Writes the groups, in the disk thread.
        disk: Runs the writes.
        next_lsn: lsn of the next entry.
        journal_next_lsn: First lsn of the next group, after the journal's last one.
        publish: Called on the event loop with each durable group, in order.
        committed: Called on the loop when `committed_lsn` has moved.
        failed: Called once on the event loop when the disk failed.
        ahead: The groups that the writer sends ahead; None if it writes one after the other.

    Attributes:
        next_lsn: lsn that the next batch or entry gets.
        group: The group that is being collected.
        failure: Set, permanently, when a write failed.
        has_failed: Set at that moment.
        disk_full: Why the group in flight could not be written yet; it stays in flight until `retry` writes it.
        on_disk_full: Called when ``disk_full`` has changed.
        groups_committed: Groups made durable since the start.
        committed_lsn: Every entry up to this lsn is durable and published, and so is every memory-mode batch.
        journal_lsn: The newest lsn in the journal's groups; memory-mode batches may have later ones.
        chunk_taken_at_s: When the received chunk that is being processed arrived; 0 between chunks.
        acknowledge_s: Seconds from the arrival of each group's oldest entry to the acknowledgement of the group.
        group_bytes: Bytes of each group.
        group_appends: Number of appends acknowledged with each group.
    """

    def __init__(
        self,
        writer: GroupWriter,
        disk: Disk,
        next_lsn: int,
        journal_next_lsn: int,
        *,
        publish: Callable[[Group], None],
        committed: Callable[[], None],
        failed: Callable[[StorageFailedError], None],
        ahead: SendWindow | None = None,
    ) -> None:
        self._writer = writer
        self._disk = disk
        self._publish = publish
        self._committed = committed
        self._failed = failed
        self._ahead = ahead
        self._in_flight: Group | None = None
        self._in_flight_since_s = 0.0
        self._groups_started = 1
        self.next_lsn = next_lsn
        self._journal_next_lsn = journal_next_lsn
        self.committed_lsn = next_lsn - 1
        self.journal_lsn = journal_next_lsn - 1
        self.group = Group(0)
        self.groups_committed = 0
        self.failure: StorageFailedError | None = None
        self.has_failed = trio.Event()
        self.disk_full: DiskFullError | None = None
        self.on_disk_full: Callable[[], None] = lambda: None
        self._is_writing = False
        self._is_held = False
        self._is_closing = False
        self.largest_group_bytes = writer.largest_group_bytes
        self._waiting: list[Group] = []
        self.chunk_taken_at_s = 0.0
        self.acknowledge_s = Histogram(DURATION_BOUNDS_S)
        self.group_bytes = Histogram(SIZE_BOUNDS_BYTES)
        self.group_appends = Histogram(COUNT_BOUNDS)

    def decide(self, decision: Decision, shard_id: int, *, is_creation: bool = False) -> int:
        """Add a decision to the collecting group and return its lsn. The caller calls `kick` or waits."""
        lsn = self.next_lsn
        entry = encode_entry(KINDS[type(decision)], lsn, lsn if is_creation else shard_id, encode_payload(decision))
        self.add(entry, len(entry))
        self.next_lsn = lsn + 1
        self.group.decisions.append((lsn, lsn if is_creation else shard_id, decision))
        return lsn

    def add(self, entries: Readable, size_bytes: int) -> None:
        """Add the bytes of complete entries to the collecting group, or to a new one if it would get too large.

        Raises:
            LimitExceededError: They do not fit into a journal file.
        """
        self.make_room(size_bytes)
        group = self.group
        if not group.buffers:
            group.taken_at_s = self.chunk_taken_at_s or perf_counter()
        group.buffers.append(entries)
        group.size_bytes += size_bytes

    def room(self, size_bytes: int) -> bool:
        """Whether the collecting group has room for this many more bytes."""
        return self.group.size_bytes + size_bytes <= self.largest_group_bytes

    def make_room(self, size_bytes: int) -> None:
        """Begin a new group if the collecting one has no room for this many more bytes.

        Raises:
            LimitExceededError: They do not fit into any group.
        """
        if self.room(size_bytes):
            return
        if size_bytes > self.largest_group_bytes:
            raise LimitExceededError(
                f"{size_bytes} bytes do not fit into a journal file, which has room for {self.largest_group_bytes}; "
                f"send less at once or raise storage.journal_file_bytes"
            )
        self._close_group()

    def close_if_long(self) -> None:
        """Begin a new group if the collecting one has so many changes that publishing it would block the loop for long.

        REQUIRES: all entries that must be in one group with its present entries have been added.
        """
        if len(self.group.decisions) >= MOST_DECISIONS or len(self.group.touched) >= MOST_TOUCHED:
            self._close_group()

    def write_if_long(self) -> None:
        """Begin to write the collecting group if it is long (see `close_if_long`); otherwise leave it open.

        Use it for decisions of the engine itself, for which no client waits: fewer groups are fewer syncs, and fewer
        requests to a log store.
        """
        self.close_if_long()
        if self._waiting:
            self.kick()

    def has_room_for_words(self, count: int) -> bool:
        """Whether the collecting group has room for this many more words of indexes."""
        return not self.group.word_count or self.group.word_count + count <= MOST_WORDS

    def make_room_for_words(self, count: int) -> None:
        """Begin a new group if the collecting one has no room for this many more words."""
        if not self.has_room_for_words(count):
            self._close_group()

    def _close_group(self) -> None:
        group = self.group
        group.next_lsn = self.next_lsn
        group.published = [(shard, shard.published_now()) for shard in group.touched]
        self._waiting.append(group)
        self.group = Group(self._groups_started)
        self._groups_started += 1

    def kick(self) -> None:
        """Start writing if nothing is being written, and send ahead what is due; otherwise it costs nothing."""
        if self.failure is not None or (self._is_held and not self._is_closing):
            return
        if self._in_flight is None:
            while True:
                group = self._next_group()
                if group is None:
                    return
                if group.buffers:
                    break
                # Nothing to write: memory-mode batches that had to wait for an entry that is durable by now.
                if not self._settle(group):
                    return
            self._in_flight = group
            self._in_flight_since_s = perf_counter()
            self._write(group)
        if self._ahead is not None and self.disk_full is None:
            self._send_ahead(self._ahead)

    def _next_group(self) -> Group | None:
        """The oldest group that is not in flight; None if there is none, or if it is too early to send it."""
        if self._ahead is not None and self._ahead.sent:
            return self._ahead.sent.popleft()
        if not self._waiting:
            if self.group.is_empty:
                return None
            if self._ahead is not None and self._ahead.defers(self.group):
                return None
            self._close_group()
        return self._take_waiting()

    def _take_waiting(self) -> Group:
        group = self._waiting.pop(0)
        if group.buffers:
            # The lsn ranges of groups in the journal are contiguous, even if memory-mode batches took lsns in between.
            group.first_lsn = self._journal_next_lsn
            self._journal_next_lsn = group.next_lsn
            if self._ahead is not None:
                self._ahead.send(group)
        return group

    def _send_ahead(self, ahead: SendWindow) -> None:
        if self._in_flight is None:
            # It was written at once, by a disk in memory.
            return
        while ahead.has_room and (self._waiting or ahead.is_due(self.group)):
            if not self._waiting:
                self._close_group()
            ahead.sent.append(self._take_waiting())
        ahead.watch(self.group)

    def _write(self, group: Group) -> None:
        self._is_writing = True
        if group.size_bytes <= _DIRECT_BYTES and self._disk.may_write:
            write = self._writer.place(group.buffers, group.size_bytes, group.first_lsn, group.next_lsn)
            if write is not None and self._disk.write(write, partial(self._written_directly, group, write)):
                return
        self._submit(group)

    def _written_directly(self, group: Group, write: DirectWrite, result: DirectOutcome) -> None:
        if result.is_written:
            self._written(outcome.capture(self._writer.placed, write, result))
        elif group is self._in_flight:
            # The journal writes all of it again. If that fails too, it raises the error, which is handled as always.
            self._submit(group)

    def _submit(self, group: Group) -> None:
        self._disk.submit(
            lambda: self._writer.write_group(group.buffers, group.size_bytes, group.first_lsn, group.next_lsn),
            self._written,
        )

    def retry(self) -> None:
        """Write the group in flight again if there was no disk space for it before."""
        if self.disk_full is not None and self._in_flight is not None and not self._is_writing:
            self._write(self._in_flight)

    def hold(self) -> None:
        """Write no more groups until `release`: the store of the views cannot accept their changes as fast."""
        self._is_held = True

    def release(self) -> None:
        """Write groups again after `hold`."""
        if self._is_held:
            self._is_held = False
            self.kick()

    def _written(self, result: outcome.Outcome[None]) -> None:
        group = self._in_flight
        if group is None:
            # The engine was stopped in the meantime; the next start recovers the group or cuts it off.
            return
        self._is_writing = False
        error = result.error if isinstance(result, outcome.Error) else None
        if error is not None and isinstance(error, DiskFullError) and not self._is_closing:
            # Nothing of it is durable yet, so nothing is lost. Acknowledgements and later groups wait for it.
            self.disk_full = error
            self.on_disk_full()
            return
        self._in_flight = None
        if self.disk_full is not None:
            self.disk_full = None
            self.on_disk_full()
        if error is not None:
            self._fail(group, error)
        elif self._settle(group):
            self.kick()
            self.look_for_rest()

    def _settle(self, group: Group) -> bool:
        written = bool(group.buffers)
        group.buffers.clear()
        appends = sum(map(len, group.acks.values())) // ACK.size + len(group.results)
        try:
            self._publish(group)
        except Exception as error:  # noqa: BLE001 a view that cannot be folded stops the engine, as the disk does
            self._fail(group, error)
            return False
        self.committed_lsn = group.next_lsn - 1
        if written:
            self.journal_lsn = self.committed_lsn
            self.acknowledge_s.observe(perf_counter() - group.taken_at_s)
            self.group_bytes.observe(group.size_bytes)
            self.group_appends.observe(appends)
        group.committed = True
        self.groups_committed += 1
        group.finish()
        self._committed()
        return True

    def look_for_rest(self) -> None:
        """Count published memory-mode batches as committed if nothing with a lower lsn is pending.

        REQUIRES: every batch or entry with an lsn has been added to a group or published.
        """
        newest = self.next_lsn - 1
        if (
            self.committed_lsn < newest
            and self._in_flight is None
            and (self._ahead is None or not self._ahead.sent)
            and not self._waiting
            and self.group.is_empty
            and self.failure is None
        ):
            self.committed_lsn = newest
            self._committed()

    def fail(self, error: Exception) -> None:
        """Stop permanently because of an error outside the journal: in a log file or the views."""
        if self.failure is None:
            group, self._in_flight = self._in_flight or self.group, None
            self._fail(group, error)

    def _pending(self) -> list[Group]:
        """The groups that are neither published nor have failed, oldest first."""
        groups = [] if self._in_flight is None else [self._in_flight]
        if self._ahead is not None:
            groups += self._ahead.sent
        groups += self._waiting
        if not self.group.is_empty:
            groups.append(self.group)
        return groups

    def _fail(self, group: Group, error: BaseException) -> None:
        if not isinstance(error, Exception):
            raise error
        if self.failure is not None:
            return
        self.failure = failure = _failure_by(error)
        self.has_failed.set()
        sent = () if self._ahead is None else self._ahead.abandon()
        groups = [group, *sent, *self._waiting, self.group]
        self._failed(failure)
        for lost in groups:
            for sink in lost.acks:
                sink.fail(failure)
            for result, _ in lost.results:
                result.reject(failure)
            lost.finish()

    async def wait(self, group: Group) -> None:
        """Wait until a group is durable and published.

        Raises:
            StorageFailedError: It never will be.
        """
        self.kick()
        if self.failure is None:
            await group.done().wait()
        if self.failure is not None and not group.committed:
            raise afresh(self.failure)

    async def wait_for_all(self) -> None:
        """Wait until everything decided before this call is durable and published; at once if nothing is pending.

        Raises:
            StorageFailedError: It will never be.
        """
        if pending := self._pending():
            await self.wait(pending[-1])

    def free_memory(self) -> None:
        """Give back memory in which entries were received: clients cannot be heard without it.

        What is collected is written as soon as what is before it is done, although it may be early. If that takes long,
        since the disk is full or a log store does not answer, entries are copied that no other thread reads.
        """
        if self._ahead is not None:
            self._ahead.hurry()
            self.kick()
        if self._in_flight is None or perf_counter() - self._in_flight_since_s < _LONG_S:
            return
        groups = [self.group, *self._waiting]
        if self._ahead is not None:
            groups += self._ahead.at_rest()
        if not self._is_writing:
            groups.append(self._in_flight)
        for group in groups:
            group.copy_out()

    def defer_nothing(self) -> None:
        """The same from now on, for everything."""
        if self._ahead is not None:
            self._ahead.defer_nothing()
            self.kick()

    def begin_close(self) -> None:
        """From now on nothing waits for disk space or for the store: what cannot be written now counts as failed."""
        self._is_closing = True
        self.release()
        self.defer_nothing()
        if self.disk_full is not None and not self._is_writing:
            self.fail(self.disk_full)

    async def drain(self) -> None:
        """Wait until everything decided so far is durable and published, or until the engine has failed.

        No write is retried any more: a group without disk space now counts as failed.
        """
        self.begin_close()
        try:
            while self.failure is None and (pending := self._pending()):
                self.kick()
                await pending[0].done().wait()
        finally:
            self._is_closing = False
