"""What subscriptions and feeds have in common: what is pushed, in order, over any number of connections.

Credit bounds what the server may push: what lies here unread plus the credit it still has is never more than
``credit_bytes`` and one push. Taking the next delivery gives back what the one before it cost. Frames are sent through
a hook.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs
import trio

from journal.protocol import RemoteProtocolError, frames
from journal.protocol.errors import decode_error_parts
from journal.protocol.messages import ShardEvent, SubscribeReply, SubscribeRequest
from shards.errors import BatchError, ShardNotFoundError, StorageError, afresh
from shards.format.batch import iterate
from shards.position import Start
from shards.subscriptions.events import Progress


@attrs.frozen(slots=True, eq=False)
class Delivery:
    """Whole record batches of one shard.

    Attributes:
        first_offset: First offset that is meant; the first batch may begin below it, and its reader skips up to here.
        next_offset: Where the next delivery of this shard begins.
        batches: Batches back to back; may be kept.
    """

    shard: str
    first_offset: int
    next_offset: int
    batches: memoryview
    shard_ref: int = 0
    epoch: int = 0


class Receiver:
    """The client's end of a subscription of any kind.

    After a reconnect it goes on where it was: nothing is left out and nothing comes twice, except to the member of a
    group, where what it had not acknowledged comes again, to it or to another.

    When the server was restored from a backup meanwhile (`restored`), offsets of lost records belong to other records
    now: a position beyond the backup goes back to the first offset whose record may be another one.

    Args:
        number: Of the subscription.
        start: Where it begins; None for behind the newest committed lsn, which the server tells.
        shard: Name of its shard, or else
        topic_filter: Its filter.
        group: Name of its group, if it has one.
        until_lsn: The lsn behind which it ends, if it ends.
        credit_bytes: Bound on what is pushed and not yet read.

    Attributes:
        failed_shards: With a filter: shards that the server stopped delivering, and why. Others go on, and progress
            does not count these. They are asked for again over the next connection, from where they stopped.
        is_over: Nothing more will come, over no connection.
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
        # Shards that failed over the present connection.
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
        # Since a restore: records with a higher lsn than this are none that were received before it.
        self._common_lsn: int | None = None
        # Shards whose position is from before that restore.
        self._unconfirmed: set[str] = set()
        self._epoch = 0
        self._send: Callable[[bytes], None] | None = None
        self._error: StorageError | None = None
        self._event = trio.Event()
        self._is_established = False

    async def _next(self) -> Delivery | Progress | None:
        """Wait for what comes next, None at the end; asking for it says that the delivery before is done with."""
        await trio.lowlevel.checkpoint()
        self._give_back(self._taken_bytes)
        self._taken_bytes = 0
        while not self._queue:
            if self.is_over:
                return None
            if self._error is not None:
                raise afresh(self._error)
            await self._wait_for_news()
        item = self._queue.popleft()
        if isinstance(item, Delivery):
            self._queued_bytes -= len(item.batches)
            self._taken_bytes = len(item.batches)
        return item

    async def wait_established(self) -> None:
        """Wait until the server has accepted the subscription.

        Raises:
            StorageError: It refused.
        """
        await trio.lowlevel.checkpoint()
        while not self._is_established and self._error is None:
            await self._wait_for_news()
        if self._error is not None:
            raise afresh(self._error)

    async def _wait_for_news(self) -> None:
        if self._event.is_set():
            self._event = trio.Event()
        await self._event.wait()

    # What the client calls.

    def restored(self, common_lsn: int) -> None:
        """The server was restored from a backup; to be called before `request` on the new connection.

        Args:
            common_lsn: Up to here its history is the one that was received from.
        """
        self._common_lsn = common_lsn if self._common_lsn is None else min(self._common_lsn, common_lsn)
        self._unconfirmed.update(self._positions)

    def begin_anew(self) -> None:
        """Another server answers, of which nothing was received; to be called before `request` on the new connection.

        All that it has comes, from its beginning: what was asked for was a place in another history.
        """
        self._positions.clear()
        self._unconfirmed.clear()
        self._common_lsn = None
        self._resume = Start.earliest()

    def request(self, send: Callable[[bytes], None]) -> SubscribeRequest:
        """Begin on a new connection: what to ask of the server there."""
        self._send = send
        self._epoch += 1
        self._names.clear()
        self._failed_here.clear()
        # What is queued still holds its credit; it is given when that is read.
        self._owed_bytes = 0
        start = self._resume
        if self._shard is not None and self._group is None and self._shard in self._positions:
            start = Start.offset(self._positions[self._shard][1])
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
        )

    def established(self, reply: SubscribeReply) -> None:
        """The server accepted."""
        # Of one shard the event "added" tells the offset, but the connection may be lost before that comes.
        if self._resume is None or self._resume.kind == "latest":
            self._resume = Start.lsn(reply.lsn + 1)
        self._is_established = True
        self._event.set()

    def disconnected(self) -> None:
        """The connection is lost; what is queued stays readable, unless the group gives it to others."""
        self._send = None
        if self._group is not None:
            self._queue.clear()
            self._queued_bytes = 0

    def fail(self, error: StorageError) -> None:
        """No more will come; the reader gets ``error`` after what is queued."""
        if self._error is None:
            self._error = error
        self._event.set()

    def pushed(self, push: frames.Push) -> None:
        """Take in a PUSH; what was seen before the connection was lost is dropped."""
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
        """The position in a shard after a restore, as far as this push tells it.

        Raises:
            RemoteProtocolError: The push holds something else than record batches.
        """
        assert self._common_lsn is not None  # there was a restore
        try:
            for _, header in iterate(push.batches):
                if header.lsn > self._common_lsn:
                    self._unconfirmed.discard(name)
                    return min(position, header.base_offset)
        except BatchError as error:
            raise RemoteProtocolError(f"a push of shard {name!r} is malformed: {error}") from error
        return position

    def shard_event(self, event: ShardEvent) -> None:
        """Take in a SHARD_EVENT; unknown ones are ignored, since a newer server may send them."""
        if event.event == "added":
            self._added(event)
        elif event.event == "removed":
            self._names.pop(event.shard_ref, None)
            self._positions.pop(event.name, None)
            self._unconfirmed.discard(event.name)
            self.failed_shards.pop(event.name, None)
            self._failed_here.discard(event.name)
            if self._shard is not None:
                self.fail(ShardNotFoundError(f"shard {event.name!r} was deleted"))
        elif event.event == "error":
            error = decode_error_parts(event.status, event.code, event.message, event.details)
            if self._shard is not None or not event.name:
                self.fail(error)
            else:
                self.failed_shards[event.name] = error
                self._failed_here.add(event.name)
        elif event.event == "progress" and self._filter is not None:
            # What a failed shard did not deliver may lie at or below this lsn: the next connection has to begin where
            # the failure was. What other shards deliver again is dropped.
            if not self._failed_here:
                self._resume = Start.lsn(event.lsn + 1)
            self._reached(event.lsn)
        elif event.event == "end":
            self.is_over = True
            self._reached(event.lsn)
            self._event.set()

    def _reached(self, lsn: int) -> None:
        """Everything up to this lsn has come."""

    def _added(self, event: ShardEvent) -> None:
        self._names[event.shard_ref] = event.name
        self.failed_shards.pop(event.name, None)
        self._failed_here.discard(event.name)
        shard_id, position = self._positions.get(event.name, (event.shard_id, -1))
        if shard_id != event.shard_id:
            # Deleted and made anew while we were away: its offsets begin again.
            position = -1
            self._unconfirmed.discard(event.name)
        if self._shard is not None and self._group is None and self._common_lsn is not None:
            # The server was told of the restore, and found out how far back to begin.
            position = event.offset
            self._common_lsn = None
            self._unconfirmed.clear()
        if position < 0 <= event.offset:
            position = event.offset
        self._positions[event.name] = (event.shard_id, max(position, 0))

    def _give_back(self, size_bytes: int) -> None:
        self._owed_bytes += size_bytes
        if (
            self._send is not None
            and self._owed_bytes
            and (not self._queue or self._owed_bytes * 2 >= self._credit_bytes)
        ):
            self._send(frames.build_credit(self.number, self._owed_bytes))
            self._owed_bytes = 0
