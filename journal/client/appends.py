"""The appends of one client: queued, sent, repeated, acknowledged. No sockets, encoding or reconnecting here.

`journal.client.producer_window`, one for each shard, decides what is sent again with which sequence. This module has
the parts around it: the queue before each window, their order, and the bound on unacknowledged bytes. The producer is
registered by `journal.client.producer_registration`, shards are opened by `journal.client.shard_handles`.
Everything runs on the event loop without an ``await``, called by the connection's reader and writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator

import attrs
import trio

from journal.client.append_future import NOT_JOINED, AppendFuture
from journal.client.batching import ENCODING_FAULTS, AppendQueue, BatchEncoder
from journal.client.connection import Connection
from journal.client.producer_registration import ProducerRegistration
from journal.client.producer_window import Action, Entry, ProducerWindow
from journal.client.shard_appends import ShardAppends
from journal.client.shard_handles import ShardHandles
from journal.protocol import Op
from journal.protocol.errors import ConnectionLostError
from journal.protocol.frames import APPEND_HEAD
from shards.back_off import BackOff
from shards.errors import OverloadedError, ShardNotFoundError, StorageError, UnknownProducerError, afresh
from shards.model import Appended, ProducerIdentity

# A plain number and bound names: looking up an enum member or attribute takes longer than the packing.
_APPEND = int(Op.APPEND)
_HEAD_BYTES = APPEND_HEAD.size
# Sending more than that without the writer takes longer, by a copy, than the task switch that it saves.
_DIRECT_BYTES = 64 << 10
_pack_head = APPEND_HEAD.pack


@attrs.frozen(slots=True)
class AppendLimits:
    """Bounds of a client's appends.

    Attributes:
        window_bytes: Bound on unacknowledged payload bytes.
        max_batch_bytes: A joined batch is sent when it has this many payload bytes...
        max_batch_records: ...or this many records, even while another batch is in flight.
        max_in_flight: Bound on the batches that are sent and not answered, over all shards, in addition to those that a
            caller waits for. While it is reached, further appends of each shard are joined into the next batch: larger
            batches are more efficient for both sides than many small ones.
    """

    window_bytes: int = 32 << 20
    max_batch_bytes: int = 128 << 10
    max_batch_records: int = 8192
    max_in_flight: int = 1024


class Appends:
    """All unacknowledged appends of a client, over any number of shards and across connections.

    Args:
        producer_name: Registered before the first append is sent; opening the same name elsewhere fences this client.
        after: Calls a function after a number of seconds, unless the client is closed first.
        encoder: Encodes batches.
        backoff: Delays before the next attempt after a temporary refusal.
        limits: Of what is under way, and of batches.
    """

    def __init__(
        self,
        producer_name: str,
        *,
        after: Callable[[float, Callable[[], None]], None],
        encoder: BatchEncoder,
        backoff: BackOff,
        limits: AppendLimits,
    ) -> None:
        self.identity: ProducerIdentity | None = None
        self.unacknowledged_bytes = 0
        self._encoder = encoder
        self._window_bytes = limits.window_bytes
        self._max_batch_bytes = limits.max_batch_bytes
        self._max_batch_records = limits.max_batch_records
        self._max_in_flight = limits.max_in_flight
        self._registration = ProducerRegistration(
            producer_name, after=after, backoff=backoff, on_registered=self._registered, on_refused=self.stop
        )
        self._handles = ShardHandles(
            after=after, backoff=backoff, on_ready=self._make_ready, on_refused=self._fail_shard
        )
        self._shards: dict[str, ShardAppends] = {}
        self._ready: deque[ShardAppends] = deque()
        # Shards with an append whose caller waits.
        self._urgent: deque[ShardAppends] = deque()
        self._in_flight: dict[int, Entry] = {}
        self._most_in_flight = 0
        self._connection: Connection | None = None
        self._room: trio.Event | None = None
        self._stopped: StorageError | None = None

    # Called by users of the client.

    async def append(self, name: str, pending: AppendFuture) -> Appended:
        """Queue an append when there is room for it, and wait for its result."""
        if not self._has_room(pending.size_bytes):
            await self.wait_for_room(pending.size_bytes)
        # Holding back an append whose caller waits would only delay the next one.
        self._max_in_flight += 1
        try:
            self.append_nowait(name, pending, is_awaited=True)
            return await pending.wait()
        finally:
            self._max_in_flight -= 1

    def append_nowait(
        self, name: str, pending: AppendFuture, *, is_awaited: bool = False, is_last: bool = False
    ) -> None:
        """Queue an append to the shard ``name``.

        Args:
            name: Name of the shard.
            pending: The append.
            is_awaited: The caller will wait for it, so no further append of the same task follows at once.
            is_last: No further append of the same task follows at once, for another reason.

        Raises:
            OverloadedError: The window is full: `wait_for_room`, or wait for an earlier append.
            StorageError: The client is stopped, fenced or closed.
        """
        if self._stopped is not None:
            raise afresh(self._stopped)
        size_bytes = pending.size_bytes
        # Inlined from `_has_room`.
        if self.unacknowledged_bytes and self.unacknowledged_bytes + size_bytes > self._window_bytes:
            raise OverloadedError(
                f"{self.unacknowledged_bytes} bytes of appends wait for the server and the window is "
                f"{self._window_bytes} bytes: wait for room, or raise window_bytes"
            )
        self.unacknowledged_bytes += size_bytes
        shard = self._shards.get(name)
        if shard is None:
            shard = self._shards[name] = ShardAppends(name, AppendQueue(self._max_batch_bytes, self._max_batch_records))
        is_full = shard.queue.add(pending)
        if is_awaited:
            shard.is_urgent = True
        if shard.is_ready or self._connection is None:
            return
        window = shard.window
        if window is not None and window.in_flight and not is_full and pending.join_key != NOT_JOINED:
            # It waits for the batch in flight and is joined with others; the answer to that batch makes the shard
            # ready.
            return
        self._mark_ready(shard)
        if (is_awaited or is_last) and self._is_alone():
            self._connection.send_pending_nowait()
        else:
            self._connection.wake()

    def _is_alone(self) -> bool:
        """Whether only one append is in flight, as at the last call: then there is nothing to join it with."""
        if self._in_flight or len(self._ready) + len(self._urgent) > 1:
            return False
        peak, self._most_in_flight = self._most_in_flight, 0
        return peak <= 1

    async def wait_for_room(self, size_bytes: int = 1) -> None:
        """Wait until the window has room for ``size_bytes`` more, or is empty; another task may fill it first."""
        await trio.lowlevel.checkpoint()
        while not self._has_room(size_bytes) and self._stopped is None:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    def refusal(self, name: str) -> StorageError | None:
        """The error with which the server refuses appends to a shard at present; None if no such error is known."""
        if self.identity is None:
            return self._registration.refusal
        shard = self._shards.get(name)
        return shard.refusal if shard is not None and shard.attempts else None

    def state(self, name: str) -> str:
        """What unacknowledged appends to a shard wait for, as a text for operators, while there is a connection."""
        shard = self._shards.get(name)
        if shard is not None and self.identity is None and shard.has_work:
            return f"the producer is not registered yet: {self._registration.refusal or 'the server has not answered'}"
        return "nothing was appended" if shard is None else shard.state

    async def wait_until_idle(self) -> None:
        """Wait until every append is acknowledged or has failed."""
        await trio.lowlevel.checkpoint()
        while self.unacknowledged_bytes:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()

    # Called by the connection and the client.

    def connected(self, connection: Connection, server_batch_bytes: int) -> None:
        """Note a new session: everything unacknowledged is sent again on it."""
        self._connection = self._handles.connection = connection
        self._encoder.max_batch_bytes = server_batch_bytes
        for shard in self._shards.values():
            if shard.has_work:
                self._mark_ready(shard)
        connection.wake()

    def disconnected(self) -> None:
        """Note the end of the session: handles are lost, and results of appends in flight are not known."""
        self._connection = None
        self._handles.disconnected()
        self._in_flight.clear()
        self._ready.clear()
        self._urgent.clear()
        self._registration.disconnected()
        for shard in self._shards.values():
            shard.connection_lost()

    def make_room_with(self, make_room: Callable[[Connection], bool]) -> None:
        """Set what closes handles that are not in use; see `ShardHandles.make_room`."""
        self._handles.make_room = make_room

    def wait_for_handle(self, go_on: Callable[[], None], *, again: bool) -> None:
        """Have a function called when a handle was closed for a read; see `ShardHandles.wait_for_one`."""
        self._handles.wait_for_one(go_on, again=again)

    def wait_no_more(self, go_on: Callable[[], None]) -> None:
        """See `ShardHandles.wait_no_more`."""
        self._handles.wait_no_more(go_on)

    @property
    def is_short_of_handles(self) -> bool:
        """Whether a shard or a read waits for a handle."""
        return self._handles.is_short

    def share_handles_soon(self) -> None:
        """A read has a handle and is about to send its request; see `ShardHandles.share_soon`."""
        self._handles.share_soon()

    def handles_by_use(self) -> tuple[dict[int, ShardAppends], set[int]]:
        """The shards by their handles that have nothing under way, the oldest first, and the handles of the others."""
        unused, used = {}, set()
        for shard in self._shards.values():
            if shard.handle is None:
                continue
            is_busy = (shard.has_work and not shard.is_waiting) or shard.is_ready
            if is_busy or (shard.window is not None and shard.window.in_flight):
                used.add(shard.handle)
            else:
                unused[shard.handle] = shard
        return unused, used

    def unanswered_batches(self) -> list[list[AppendFuture]]:
        """The appends of each batch that may have been sent and is not answered."""
        return [batch for shard in self._shards.values() for batch in shard.batches()]

    def withdraw(self, appends: Collection[object]) -> None:
        """Never send these appends again, nor those that share a batch with one of them.

        They fail with `ConnectionLostError`: it is not known whether those that were sent are stored.

        REQUIRES: There is no connection, and the server carries out no more requests of an earlier one.
        """
        for shard in self._shards.values():
            withdrawn = shard.withdraw(appends)
            for pending in withdrawn:
                pending.reject(
                    ConnectionLostError(
                        f"the connection was lost and the append to {shard.name!r} was withdrawn: it is not known "
                        f"whether it is stored"
                    )
                )
            self._free(sum([pending.size_bytes for pending in withdrawn]))

    def stop(self, error: StorageError) -> None:
        """Fail all waiting appends and all later ones."""
        if self._stopped is None:
            self._stopped = error
            self._in_flight.clear()
            self._ready.clear()
            self._urgent.clear()
            for shard in self._shards.values():
                self._fail_shard(shard, error)
            self._wake_waiters(force=True)

    def fill(self, parts: list[bytes], limit_bytes: int) -> None:
        """Add APPEND frames, shard by shard in turn, up to about ``limit_bytes``."""
        connection = self._connection
        if connection is None or not (self._ready or self._urgent):
            return
        if self.identity is None:
            self._registration.request(connection)
            return
        ready, urgent = self._ready, self._urgent
        in_flight = self._in_flight
        max_in_flight = self._max_in_flight
        is_short = self._handles.is_short
        size_bytes = 0
        # The rest is examined again after sending, or when an answer arrives.
        while size_bytes < limit_bytes:
            if urgent:
                shard = urgent.popleft()
            elif ready and len(in_flight) < max_in_flight:
                shard = ready.popleft()
            else:
                break
            shard.is_ready = False
            if shard.handle is None:
                self._handles.open(connection, shard)
                continue
            if is_short and shard.window is not None and shard.window.in_flight:
                # The answer to what is in flight makes it ready again, or lets others have its handle.
                continue
            size_bytes += self._fill_from(connection, shard, parts, limit_bytes - size_bytes)
        self._most_in_flight = max(self._most_in_flight, len(in_flight))

    def appended(self, acks: Iterator[tuple[int, int, int, int, int]]) -> None:
        """Set the results of the appends that one APPENDED frame acknowledges."""
        take = self._in_flight.pop
        resolve_all = AppendFuture.resolve_all
        handles = self._handles
        freed = 0
        done: list[Callable[[], None]] = []
        for correlation, level, flags, _, base_offset in acks:
            entry = take(correlation, None)
            if entry is None:
                continue
            shard: ShardAppends = entry.owner
            window = shard.window
            if window is None or not window.acknowledged(entry):
                continue
            shard.attempts = 0
            freed += resolve_all(entry.token, base_offset, level, flags, done)
            if not shard.is_ready and (shard.queue.waiting or window.queued):
                if handles.is_short:
                    if not window.in_flight:
                        handles.give_way(shard)
                else:
                    self._mark_ready(shard)
        if handles.is_short:
            handles.share()
        self._free(freed)
        self._wake_writer()
        for call in done:
            call()

    def append_refused(self, correlation: int, error: StorageError) -> None:
        """Handle the refusal of one append as its window decides."""
        entry = self._in_flight.pop(correlation, None)
        if entry is None:
            return
        shard: ShardAppends = entry.owner
        window = shard.window
        if window is None:
            return
        decision = window.refused(entry, correlation, error)
        if decision.action is Action.FENCED:
            self.stop(error)
        elif decision.action is Action.BACK_OFF:
            self._handles.pause(shard, error)
        elif decision.action is Action.REOPEN:
            shard.handle = None
            self._handles.pause(shard, error)
        elif decision.action is Action.REGISTER:
            self.identity = None
        elif decision.action is Action.FAIL and isinstance(error, ShardNotFoundError):
            shard.handle = None
        self._reject(decision.failed, error)
        self._make_ready(shard)
        self._wake_writer()

    def _wake_writer(self) -> None:
        """Have the writer continue after an answer: shards may be ready now, and waiting appends may have room."""
        if not (self._ready or self._urgent) or self._connection is None:
            return
        if self.unacknowledged_bytes <= _DIRECT_BYTES:
            self._connection.send_pending_nowait()
        else:
            self._connection.wake()

    def _has_room(self, size_bytes: int) -> bool:
        # An append that is larger than the whole window is sent alone, rather than never.
        return not self.unacknowledged_bytes or self.unacknowledged_bytes + size_bytes <= self._window_bytes

    def _mark_ready(self, shard: ShardAppends) -> None:
        if not shard.is_ready:
            shard.is_ready = True
            (self._urgent if shard.is_urgent else self._ready).append(shard)

    def _make_ready(self, shard: ShardAppends) -> None:
        if self._connection is not None and not shard.is_waiting and shard.has_work:
            self._mark_ready(shard)
            self._connection.wake()

    def _fill_from(self, connection: Connection, shard: ShardAppends, parts: list[bytes], limit_bytes: int) -> int:
        window = shard.window
        if window is None:
            window = shard.window = ProducerWindow(self.identity)  # type: ignore[arg-type]
        shard.is_urgent = False
        size_bytes = 0
        handle = shard.handle
        queue = shard.queue
        in_flight = self._in_flight
        while size_bytes < limit_bytes:
            if window.queued:
                entry = window.take(connection.next_correlation())
                if entry is None:
                    if window.queued:
                        return size_bytes
                    continue
            else:
                if not window.may_launch:
                    return size_bytes
                group = queue.take(is_busy=bool(window.in_flight))
                if not group:
                    return size_bytes
                try:
                    entry = self._encoder.entry(group, window.identity, window.next_sequence)
                except ENCODING_FAULTS:
                    self._encode_apart(group, shard, window)
                    continue
                entry.owner = shard
                window.launch(entry, connection.next_correlation())
            batch = entry.batch
            correlation = entry.correlation
            in_flight[correlation] = entry
            length = len(batch) + _HEAD_BYTES
            parts.append(_pack_head(length, _APPEND, 0, correlation, handle, entry.ack_level, entry.expected_offset))
            parts.append(batch)
            size_bytes += length
            if not queue.waiting and not window.queued:
                return size_bytes
        self._mark_ready(shard)
        return size_bytes

    def _encode_apart(self, group: list[AppendFuture], shard: ShardAppends, window: ProducerWindow) -> None:
        """Queue each append of a group in a batch of its own, except those that cannot be encoded."""
        for made in self._encoder.encode(group, window.identity, window.next_sequence):
            if isinstance(made, Entry):
                made.owner = shard
                window.add(made)
            else:
                pending, error = made
                pending.reject(error)
                self._free(pending.size_bytes)

    def _registered(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        for shard in self._shards.values():
            if shard.window is not None:
                forgotten = UnknownProducerError(
                    f"the server does not know producer {self._registration.producer_name!r} any more, so it is not "
                    f"known whether an append to {shard.name!r} that was unanswered on a lost connection is stored; "
                    f"read and append again"
                )
                self._reject(shard.window.rebind(identity), forgotten)
                self._make_ready(shard)
        if self._connection is not None:
            self._connection.wake()

    def _fail_shard(self, shard: ShardAppends, error: StorageError) -> None:
        entries: tuple[Entry, ...] = ()
        if shard.window is not None:
            entries = shard.window.fail_all(is_certain=isinstance(error, ShardNotFoundError))
        queued = shard.queue.clear()
        self._reject(entries, error)
        for pending in queued:
            pending.reject(error)
        self._free(sum([pending.size_bytes for pending in queued]))

    def _reject(self, entries: tuple[Entry, ...], error: StorageError) -> None:
        freed = 0
        for entry in entries:
            for pending in entry.token:
                pending.reject(error)
                freed += pending.size_bytes
        self._free(freed)

    def _free(self, size_bytes: int) -> None:
        self.unacknowledged_bytes -= size_bytes
        if self._room is not None:
            self._wake_waiters()

    def _wake_waiters(self, *, force: bool = False) -> None:
        # Waking only at half of the window saves a wake-up for every single acknowledgement.
        if self._room is not None and (force or self.unacknowledged_bytes <= self._window_bytes // 2):
            self._room.set()
            self._room = None
