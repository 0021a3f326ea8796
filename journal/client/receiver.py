"""The common part of subscriptions and feeds: pushed items, in order, over any number of connections.

Credit bounds what the server may push: the unread bytes here and the server's remaining credit are together never more
than ``credit_bytes`` and one push. Taking the next delivery returns the credit of the one before. Frames are sent
through a callback.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import trio

from journal.protocol import RemoteProtocolError, frames
from journal.protocol.errors import decode_error_parts
from journal.protocol.messages import ShardEvent, SubscribeReply, SubscribeRequest
from shards.errors import BatchError, OffsetOutOfRangeError, ShardNotFoundError, StorageError, afresh
from shards.format.batch import gap_batch, iterate
from shards.position import Start
from shards.subscriptions.events import Batches, Progress


@attrs.define(slots=True, eq=False)
class Delivery(Batches):
    """Whole record batches of one shard, and the connection that they came over."""

    epoch: int = 0


class Receiver:
    """The client's side of a subscription of any kind.

    After a reconnect it continues at its position: nothing is skipped and nothing is delivered twice, except to members
    of a group, where unacknowledged records are delivered again, to the same or another member.

    If the server was restored from a backup in the meantime (`restored`), offsets of lost records belong to other
    records
    now: a position after the backup goes back to the first offset whose record may have changed.

    If its one shard was deleted in the meantime, it ends, also if there is another one with the same name.

    Args:
        number: Number of the subscription.
        start: Where it begins; None for after the newest committed lsn, which the server reports.
        shard: Name of its shard; or
        topic_filter: Its filter.
        group: Name of its group, if it has one.
        until_lsn: The lsn after which it ends, if it ends.
        credit_bytes: Bound on the bytes that are pushed and not read yet.

    Attributes:
        failed_shards: With a filter: shards that the server has stopped delivering, and why. Others continue, and
            progress does not include these. They are subscribed again on the next connection, from where they stopped.
        is_over: Nothing more will be delivered, on any connection.
    """

    def __init__(
        self,
        number: int,
        start: Start | None,
        *,
        shard: str | None,
        topic_filter: str | None,
        group: str | None,
        until_lsn: int | None,
        credit_bytes: int,
    ) -> None:
        self.number = number
        self.failed_shards: dict[str, StorageError] = {}
        # Shards that failed on the present connection.
        self._failed_here: set[str] = set()
        self.is_over = False
        self._shard = shard
        self._filter = topic_filter
        self._group = group
        self._until_lsn = until_lsn
        self._credit_bytes = credit_bytes
        self._resume = start
        self._queue: deque[Delivery | Progress] = deque()
        self._queued_bytes = 0
        self._taken_bytes = 0
        self._owed_bytes = 0
        self._names: dict[int, str] = {}
        self._positions: dict[str, tuple[int, int]] = {}
        # Of one shard, after a refusal: the records below it were trimmed while there was no connection.
        self._trimmed_offset = 0
        # After a restore: records with a higher lsn were not received before it.
        self._common_lsn: int | None = None
        # Shards whose position is from before that restore.
        self._unconfirmed: set[str] = set()
        # A shard was created or deleted at this lsn. A follower that is behind it would show an older state.
        self._seen_lsn = 0
        self._epoch = 0
        self._send: Callable[[bytes], None] | None = None
        self._error: StorageError | None = None
        self._event = trio.Event()
        self._is_established = False

    async def _next(self) -> Delivery | Progress | None:
        """Wait for the next item, None at the end; calling it also releases the credit of the delivery before."""
        self._give_back(self._taken_bytes)
        self._taken_bytes = 0
        if self._queue or self.is_over or self._error is not None:
            await trio.lowlevel.checkpoint()
        while not self._queue:
            if self.is_over:
                return None
            if self._error is not None:
                raise afresh(self._error)
            await self._wait_for_item()
        item = self._queue.popleft()
        if isinstance(item, Delivery):
            self._queued_bytes -= len(item.batches)
            self._taken_bytes = len(item.batches)
        return item

    async def wait_established(self) -> None:
        """Wait until the server has accepted the subscription.

        Raises:
            StorageError: The server refused.
        """
        await trio.lowlevel.checkpoint()
        while not self._is_established and self._error is None:
            await self._wait_for_item()
        if self._error is not None:
            raise afresh(self._error)

    async def _wait_for_item(self) -> None:
        if self._event.is_set():
            self._event = trio.Event()
        await self._event.wait()

    # Called by the client.

    def restored(self, common_lsn: int) -> None:
        """Note that the server was restored from a backup; call it before `request` on the new connection.

        Args:
            common_lsn: Up to here its history is the same as before.
        """
        self._common_lsn = common_lsn if self._common_lsn is None else min(self._common_lsn, common_lsn)
        self._unconfirmed.update(self._positions)

    def restart(self) -> None:
        """Note that another server answers; call it before `request` on the new connection.

        All of its records are delivered, from the beginning: the old position belonged to another history.
        """
        self._positions.clear()
        self._unconfirmed.clear()
        self._common_lsn = None
        self._seen_lsn = 0
        self._resume = Start.earliest()

    def request(self, send: Callable[[bytes], None]) -> SubscribeRequest:
        """Begin on a new connection; returns the request to send."""
        self._send = send
        self._epoch += 1
        self._names.clear()
        self._failed_here.clear()
        # Queued items still hold their credit; it is returned when they are read.
        self._owed_bytes = 0
        start = self._resume
        if self._shard is not None and self._group is None and self._shard in self._positions:
            start = Start.offset(max(self._positions[self._shard][1], self._trimmed_offset))
        return SubscribeRequest(
            self.number,
            self._shard,
            self._filter,
            "committed" if start is None else start.kind,
            0 if start is None else start.value,
            max(0, self._credit_bytes - self._queued_bytes - self._taken_bytes),
            self._group,
            self._until_lsn,
            self._common_lsn if start is not None and start.kind == "offset" else None,
            self._seen_lsn,
        )

    def established(self, reply: SubscribeReply) -> None:
        """Note that the server has accepted."""
        # For one shard the event "added" has the offset, but the connection may be lost before it arrives.
        if self._resume is None or self._resume.kind == "latest":
            self._resume = Start.lsn(reply.lsn + 1)
        self._is_established = True
        self._event.set()

    def refused(self, error: StorageError) -> bool:
        """Note that the server has refused it, which ends it.

        If the records at its position were trimmed while there was no connection, it goes on behind them, and they are
        delivered as a gap, as those are that are trimmed while there is a connection.

        Returns:
            Whether to send `request` again on this connection.
        """
        has_position = self._shard in self._positions and self._group is None
        if has_position and isinstance(error, OffsetOutOfRangeError):
            if error.offset < error.start_offset:
                self._trimmed_offset = error.start_offset
                return True
            # No shard gets shorter: this is another one with the same name.
            error = _deleted(error.shard)
        self.fail(error)
        return False

    def disconnected(self) -> None:
        """Note that the connection was lost; queued items stay readable, except for the member of a group."""
        self._send = None
        if self._group is not None:
            self._queue.clear()
            self._queued_bytes = 0

    def fail(self, error: StorageError) -> None:
        """End with an error: the reader gets ``error`` after the queued items."""
        if self._error is None:
            self._error = error
        self._event.set()

    def pushed(self, push: frames.Push) -> None:
        """Queue a PUSH; records that were delivered before the connection was lost are dropped."""
        name = self._names.get(push.shard_ref)
        size_bytes = len(push.batches)
        if name is None:
            self._give_back(size_bytes)
            return
        first_offset = push.first_offset
        if self._group is None:
            shard_id, position = self._positions.get(name, (0, 0))
            if name in self._unconfirmed:
                position = self._confirmed(name, position, push)
            if push.next_offset <= position:
                self._give_back(size_bytes)
                return
            first_offset = max(first_offset, position)
            self._positions[name] = (shard_id, push.next_offset)
        self._queue.append(Delivery(name, first_offset, push.next_offset, push.batches, push.shard_ref, self._epoch))
        self._queued_bytes += size_bytes
        self._event.set()

    def _confirmed(self, name: str, position: int, push: frames.Push) -> int:
        """The position in a shard after a restore, as far as this push determines it.

        Raises:
            RemoteProtocolError: The push has something else than record batches.
        """
        assert self._common_lsn is not None  # set by the restore
        try:
            for _, header in iterate(push.batches):
                if header.lsn > self._common_lsn:
                    self._unconfirmed.discard(name)
                    return min(position, header.base_offset)
        except BatchError as error:
            raise RemoteProtocolError(f"a push of shard {name!r} is malformed: {error}") from error
        return position

    def shard_event(self, event: ShardEvent) -> None:
        """Process a SHARD_EVENT; unknown events are ignored, since a newer server may send them."""
        if event.event == "added":
            self._added(event)
        elif event.event == "removed":
            self._seen_lsn = max(self._seen_lsn, event.lsn)
            self._names.pop(event.shard_ref, None)
            self._positions.pop(event.name, None)
            self._unconfirmed.discard(event.name)
            self.failed_shards.pop(event.name, None)
            self._failed_here.discard(event.name)
            if self._shard is not None:
                self.fail(_deleted(event.name))
        elif event.event == "error":
            error = decode_error_parts(event.status, event.code, event.message, event.details)
            if self._shard is not None or not event.name:
                self.fail(error)
            else:
                self.failed_shards[event.name] = error
                self._failed_here.add(event.name)
        elif event.event == "progress" and self._filter is not None:
            # Undelivered records of a failed shard may be at or below this lsn: the next connection has to begin where
            # the failure was. Records that other shards deliver again are dropped.
            if not self._failed_here:
                self._resume = Start.lsn(event.lsn + 1)
            self._reached(event.lsn)
        elif event.event == "end":
            self.is_over = True
            self._reached(event.lsn)
            self._event.set()

    def _reached(self, lsn: int) -> None:
        """Note that everything up to this lsn was delivered."""

    def _added(self, event: ShardEvent) -> None:
        self._seen_lsn = max(self._seen_lsn, event.shard_id)
        self.failed_shards.pop(event.name, None)
        self._failed_here.discard(event.name)
        shard_id, position = self._positions.get(event.name, (event.shard_id, -1))
        is_of_one_shard = self._shard is not None and self._group is None
        if shard_id != event.shard_id:
            # Deleted and created again while there was no connection: its offsets begin again.
            if is_of_one_shard:
                self.fail(_deleted(event.name))
                return
            position = -1
            self._unconfirmed.discard(event.name)
        self._names[event.shard_ref] = event.name
        if is_of_one_shard and 0 <= position < event.offset:
            self._queue_gap(event, position)
            position = event.offset
        self._trimmed_offset = 0
        if is_of_one_shard and self._common_lsn is not None:
            # The server was informed of the restore, and determined how far back to begin.
            position = event.offset
            self._common_lsn = None
            self._unconfirmed.clear()
        if position < 0 <= event.offset:
            position = event.offset
        self._positions[event.name] = (event.shard_id, max(position, 0))

    def _queue_gap(self, event: ShardEvent, position: int) -> None:
        """Queue a gap for the records that were trimmed while there was no connection."""
        gap = gap_batch(position, event.offset, 0, 0)
        self._queue.append(Delivery(event.name, position, event.offset, gap, event.shard_ref, self._epoch))
        self._queued_bytes += len(gap)
        # The server has not pushed it: no credit is given back for it.
        self._owed_bytes -= len(gap)
        self._event.set()

    def _give_back(self, size_bytes: int) -> None:
        self._owed_bytes += size_bytes
        # While the server has half of it, it does not wait, and returning less would be a frame for each delivery. To
        # the members of a group the server hands records out by their credit, so each member returns it at once.
        is_due = self._owed_bytes * 2 >= self._credit_bytes or (self._group is not None and not self._queue)
        if self._send is not None and self._owed_bytes > 0 and is_due:
            self._send(frames.build_credit(self.number, self._owed_bytes))
            self._owed_bytes = 0


def _deleted(shard: str) -> ShardNotFoundError:
    return ShardNotFoundError(f"shard {shard!r} was deleted")
