"""The client of the journal service: one connection, re-established when it is lost, and a method for each operation.

Appends are carried out exactly once across reconnects (`journal.client.appends`), subscriptions continue at their
position (`journal.client.subscription`), reads are repeated. Other requests are not repeated: if the connection is lost
during one, it raises `ConnectionLostError`, and its result is not known.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio

from journal.client.append_future import AppendFuture
from journal.client.appends import Appends
from journal.client.batching import pending_of, pending_of_batch
from journal.client.connection import Connection
from journal.client.open_handles import OpenHandles
from journal.client.operations import Operations
from journal.client.receiver import Receiver
from journal.client.reconnection import Reconnection, ServerRestored, lost_history
from journal.client.subscription import FailedShards, Feed, Subscription
from journal.protocol import Op, RemoteProtocolError, decode_reply, encode, frames
from journal.protocol.errors import (
    ConnectionLostError,
    ServerRestoredError,
    ShuttingDownError,
    UnknownHandleError,
    is_retriable,
)
from journal.protocol.messages import (
    EndClientRequest,
    HelloReply,
    OpenShardReply,
    OpenShardRequest,
    ShardEvent,
    UnsubscribeRequest,
)
from shards.back_off import BackOff
from shards.errors import InvalidRequestError, LimitExceededError, StorageError, afresh
from shards.format.record import Record
from shards.history import HistoryGap
from shards.model import AckLevel, Appended, ShardConfig, ShardInfo
from shards.position import Start

_LATEST: Final = Start.latest()

_log = logging.getLogger(__name__)


class Client(Operations):
    """See `open_client`. All methods may be called from any number of tasks; appends of one shard keep their order.

    Attributes:
        name: The name that it sends to the server.
        failed_shards: Shards that the server has stopped delivering to subscriptions by filter.
    """

    def __init__(
        self,
        name: str,
        appends: Appends,
        *,
        after: Callable[[float, Callable[[], None]], None],
        backoff: BackOff,
        join_appends: bool,
        ends_at_restore: bool,
        on_restored: Callable[[ServerRestored], None] | None,
        only_reads: bool = False,
    ) -> None:
        self.name = name
        self._only_reads = only_reads
        if only_reads:
            appends.stop(_not_by_reader("append"))
        self._appends = appends
        self._after = after
        self._backoff = backoff
        self._join_appends = join_appends
        self._ends_at_restore = ends_at_restore
        self._on_restored = on_restored
        self._connection: Connection | None = None
        self._hello: HelloReply | None = None
        self._changed = trio.Event()
        self._refused: StorageError | None = None
        self._lost: StorageError | None = None
        self._handles = OpenHandles(appends)
        self._subscriptions: dict[int, Receiver] = {}
        self._subscription_number = 0
        self.failed_shards = FailedShards()
        self._checks: list[Callable[[Reconnection], Awaitable[None]]] = []

    @property
    def server(self) -> HelloReply | None:
        """The latest HELLO reply of the server, None before the first."""
        return self._hello

    @property
    def restores(self) -> tuple[HistoryGap, ...]:
        """Restores of the server's data from backups, as of the latest HELLO reply, oldest first."""
        return () if self._hello is None else tuple(self._hello.restores)

    async def wait_ended(self) -> StorageError:
        """Wait until no further connection will be made; returns the reason."""
        while self._refused is None:
            await self._changed.wait()
        return self._refused

    @property
    def unacknowledged_bytes(self) -> int:
        """Payload bytes of unacknowledged appends, as the window counts them."""
        return self._appends.unacknowledged_bytes

    async def append(
        self,
        shard: str,
        records: Sequence[bytes] | Sequence[Record],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
    ) -> Appended:
        """Append records (or plain values) and wait for the acknowledgement; waits for room in the window first.

        The records get consecutive offsets from ``base_offset``. If the wait is cancelled or times out, the append is
        still carried out.

        Raises:
            ShardNotFoundError: The shard does not exist; an append never creates one.
            OffsetConflictError: ``expected_offset`` is not the shard's next offset.
            StaleEpochError: Another client has taken over the producer's name.
            StorageError: See docs/protocol.md.
        """
        return await self._appends.append(shard, pending_of(records, ack, expected_offset, self._join_appends))

    async def append_batch(
        self, shard: str, batch: bytes, *, ack: AckLevel = AckLevel.DEFAULT, expected_offset: int | None = None
    ) -> Appended:
        """Append an encoded batch, in which only the producer fields are changed; see `append`."""
        pending = pending_of_batch(batch, ack_level=ack, expected_offset=expected_offset)
        return await self._appends.append(shard, pending)

    def append_nowait(
        self,
        shard: str,
        records: Sequence[bytes] | Sequence[Record],
        *,
        ack: AckLevel = AckLevel.DEFAULT,
        expected_offset: int | None = None,
        is_last: bool = False,
    ) -> AppendFuture:
        """Start an append and return at once, for deep pipelines.

        Args:
            shard, records, ack, expected_offset: See `append`.
            is_last: No other append of the caller follows in this step of the event loop. If none is under way, it is
                sent at once then, rather than in the next step.

        Raises:
            OverloadedError: The window is full: `wait_for_room`, or wait for an earlier append.
        """
        pending = pending_of(records, ack, expected_offset, self._join_appends)
        self._appends.append_nowait(shard, pending, is_last=is_last)
        return pending

    def append_batch_nowait(
        self, shard: str, batch: bytes, *, ack: AckLevel = AckLevel.DEFAULT, expected_offset: int | None = None
    ) -> AppendFuture:
        """Start an append of an encoded batch; see `append_nowait`."""
        pending = pending_of_batch(batch, ack_level=ack, expected_offset=expected_offset)
        self._appends.append_nowait(shard, pending)
        return pending

    def append_refusal(self, shard: str) -> StorageError | None:
        """Why appends to a shard wait: the connection is lost, or the server refuses them at present.

        They are sent again automatically. None if neither is known; the server may still be slow.
        """
        return self._lost if self._connection is None else self._appends.refusal(shard)

    def append_state(self, shard: str) -> str:
        """What unacknowledged appends to a shard wait for, as a text for operators."""
        if self._connection is not None:
            return self._appends.state(shard)
        return f"there is no connection to the server: {self._lost or 'none was opened yet'}"

    async def wait_for_room(self, size_bytes: int = 1) -> None:
        """Wait until the window has room for ``size_bytes`` more."""
        await self._appends.wait_for_room(size_bytes)

    async def flush(self) -> None:
        """Wait until every append is acknowledged or has failed; errors are raised only to the append's own waiter."""
        await self._appends.wait_until_idle()

    @contextmanager
    def before_resending(self, check: Callable[[Reconnection], Awaitable[None]]) -> Iterator[None]:
        """Run a check on each new connection before it is used, for the length of the block.

        All operations wait until the check returns. The check reads the store, and withdraws appends through its
        argument. The server has ended this client's earlier connections by then, so no other client may have its name.
        If the check raises an error of the store, the connection ends, and the next one is checked.
        """
        self._checks.append(check)
        try:
            yield
        finally:
            self._checks.remove(check)

    @asynccontextmanager
    async def subscribe(
        self,
        *,
        shard: str | None = None,
        topic_filter: str | None = None,
        start: Start = _LATEST,
        group: str | None = None,
        credit_bytes: int = 1 << 20,
    ) -> AsyncIterator[Subscription]:
        """Subscribe to one shard or to all that match a filter, for the length of the block.

        Args:
            shard: Name of a shard; or
            topic_filter: Filter with ``+`` and ``#``; shards that are created later are included from their beginning.
            start: Where to begin. ``offset`` only with ``shard``.
            group: Share the records with the other members of this group.
            credit_bytes: Bound on the bytes that are pushed and not read yet.
        """
        if (shard is None) == (topic_filter is None):
            raise InvalidRequestError("subscribe to a shard or to a topic filter: give exactly one of them")
        if self._only_reads and group is not None:
            raise _not_by_reader("join a group")
        self._subscription_number += 1
        subscription = Subscription(
            self._subscription_number,
            start,
            shard=shard,
            topic_filter=topic_filter,
            group=group,
            credit_bytes=credit_bytes,
        )
        async with self._receiving(subscription):
            yield subscription

    @asynccontextmanager
    async def follow(
        self,
        topic_filter: str,
        after_lsn: int | None = None,
        *,
        until_lsn: int | None = None,
        credit_bytes: int = 1 << 20,
    ) -> AsyncIterator[Feed]:
        """Follow all shards that match a filter from an lsn on, for the length of the block.

        Args:
            topic_filter: Filter or shard name; shards that are created later are included.
            after_lsn: Only records with a higher lsn; None: from now on.
            until_lsn: End after this lsn.
            credit_bytes: Bound on the bytes that are pushed and not read yet.
        """
        self._subscription_number += 1
        feed = Feed(self._subscription_number, topic_filter, after_lsn, until_lsn, credit_bytes)
        async with self._receiving(feed):
            yield feed

    @asynccontextmanager
    async def _receiving(self, receiver: Receiver) -> AsyncIterator[None]:
        """Receive pushes for the length of the block, over any number of connections."""
        if self._refused is not None:
            raise afresh(self._refused)
        self._subscriptions[receiver.number] = receiver
        try:
            if self._connection is not None:
                self._begin(self._connection, receiver, 0)
            await receiver.wait_established()
            yield
        finally:
            del self._subscriptions[receiver.number]
            self.failed_shards.ended(receiver.number)
            if self._connection is not None:
                request = encode(UnsubscribeRequest(receiver.number))
                self._connection.call_nowait(Op.UNSUBSCRIBE, request, _ignore)

    async def open_shard(self, name: str, *, create: ShardConfig | None = None) -> ShardInfo:
        """Describe a shard; with ``create``, create it first if it does not exist."""
        _, reply = await self._open(name, create)
        return reply.info

    async def wait_connected(self) -> Connection:
        """Wait for a session.

        Raises:
            StorageError: No further connection will be made.
        """
        while True:
            if self._refused is not None:
                raise afresh(self._refused)
            if self._connection is not None:
                return self._connection
            await self._changed.wait()

    # Called by the session keeper and the connection.

    async def prepare_session(self, connection: Connection, hello: HelloReply) -> None:
        before, self._hello = self._hello, hello
        if before is not None and (event := lost_history(before, hello)) is not None:
            self._restored(event)
        if self._checks:
            # Requests of an earlier connection that were not processed yet must not be carried out after the check.
            await connection.call(Op.END_CLIENT, EndClientRequest(self.name))
            for check in list(self._checks):
                await check(Reconnection(connection, self._appends))

    def session_began(self, connection: Connection) -> None:
        assert self._hello is not None
        self._connection = connection
        self._handles.connected(connection)
        self.failed_shards.connected()
        self._appends.connected(connection, self._hello.max_batch_bytes)
        for subscription in list(self._subscriptions.values()):
            if not subscription.is_over:
                self._begin(connection, subscription, 0)
        self._notify()

    def _restored(self, event: ServerRestored) -> None:
        if self._ends_at_restore:
            raise ServerRestoredError(f"{event}: open the store again")
        _log.warning("%s: subscriptions go back to the first records that may differ now", event)
        for subscription in self._subscriptions.values():
            if event.former_node_id is None:
                subscription.restored(event.common_lsn)
            else:
                subscription.restart()
        if self._on_restored is not None:
            self._on_restored(event)

    def session_ended(self, reason: StorageError) -> None:
        self._connection = None
        self._lost = reason
        self._handles.disconnected()
        self._appends.disconnected()
        for subscription in self._subscriptions.values():
            subscription.disconnected()

    def session_refused(self, error: StorageError) -> None:
        if self._refused is None:
            self._refused = error
            self._appends.stop(error)
            for subscription in self._subscriptions.values():
                subscription.fail(error)
            self._notify()

    def appended(self, acks: Iterator[tuple[int, int, int, int, int]]) -> None:
        self._appends.appended(acks)

    def append_refused(self, correlation: int, error: StorageError) -> None:
        self._appends.append_refused(correlation, error)

    def fill(self, parts: list[bytes], limit_bytes: int) -> None:
        self._appends.fill(parts, limit_bytes)

    def pushed(self, push: frames.Push) -> None:
        subscription = self._subscriptions.get(push.subscription)
        if subscription is not None:
            subscription.pushed(push)

    def shard_event(self, event: ShardEvent) -> None:
        subscription = self._subscriptions.get(event.subscription)
        if subscription is None:
            return
        subscription.shard_event(event)
        if error := subscription.failed_shards.get(event.name):
            self.failed_shards.failed(event.name, error, event.subscription)
        elif self.failed_shards.count:
            self.failed_shards.delivered(event.name, event.subscription)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _begin(self, connection: Connection, subscription: Receiver, attempt: int) -> None:
        """Subscribe on this connection; a temporary refusal is retried after a delay."""

        def done(error: StorageError | None, body: bytes | memoryview) -> None:
            if error is None:
                try:
                    subscription.established(decode_reply(Op.SUBSCRIBE, body))
                except RemoteProtocolError as fault:
                    subscription.fail(fault)
            elif isinstance(error, ConnectionLostError):
                return
            elif is_retriable(error):
                self._after(self._backoff.delay_s(attempt), again)
            elif subscription.refused(error):
                self._begin(connection, subscription, attempt)

        def again() -> None:
            if self._connection is connection and subscription.number in self._subscriptions:
                self._begin(connection, subscription, attempt + 1)

        request = subscription.request(connection.send_nowait)
        connection.call_nowait(Op.SUBSCRIBE, encode(request), done)

    async def _call(self, op: Op, message: object, *, repeat: bool = False) -> Any:
        return decode_reply(op, await self._exchange(op, lambda _: encode(message), repeat=repeat))

    async def _exchange(self, op: Op, make_body: Callable[[Connection], bytes], *, repeat: bool) -> bytes | memoryview:
        """Send a request when there is a session; with ``repeat``, send it again on the next one if it is lost."""
        attempt = 0
        while True:
            connection = await self.wait_connected()
            try:
                return await connection.exchange(op, make_body(connection))
            except (ConnectionLostError, ShuttingDownError):
                if not repeat:
                    raise
            await trio.sleep(self._backoff.delay_s(attempt))
            attempt += 1

    async def _with_handle(self, name: str, op: Op, make_body: Callable[[int], bytes]) -> bytes | memoryview:
        """Repeatable request on an open shard; opens it on this connection if needed, and again if it was closed."""
        attempt = 0
        while True:
            connection, handle = await self._handle(name)
            try:
                return await connection.exchange(op, make_body(handle))
            except UnknownHandleError:
                # A shard that does not exist any more is an error when it is opened again.
                self._handles.forget(name, handle)
                await trio.sleep(self._backoff.delay_s(attempt) if attempt else 0)
                attempt += 1
            except (ConnectionLostError, ShuttingDownError):
                await trio.sleep(self._backoff.delay_s(0))

    async def _handle(self, name: str) -> tuple[Connection, int]:
        connection = await self.wait_connected()
        handle = self._handles.of(name)
        if handle is None:
            connection, reply = await self._open(name, None)
            handle = reply.handle
        return connection, handle

    async def _open(self, name: str, create: ShardConfig | None) -> tuple[Connection, OpenShardReply]:
        attempt = 0
        if self._handles.are_short:
            await self._handles.wait_for_one(again=False)
        while True:
            connection = await self.wait_connected()
            try:
                with self._handles.asking_for(name):
                    reply: OpenShardReply = await connection.call(Op.OPEN_SHARD, OpenShardRequest(name, create))
            except (ConnectionLostError, ShuttingDownError):
                await trio.sleep(self._backoff.delay_s(0))
            except LimitExceededError:
                has_room = self._handles.close_unused(connection)
                # It may also be about the number of shards, for one that is to be created.
                if create is not None and (attempt or not has_room):
                    raise
                if not has_room:
                    await self._handles.wait_for_one(again=attempt > 0)
                attempt += 1
            else:
                self._handles.keep(connection, name, reply.handle)
                return connection, reply


def _not_by_reader(act: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"this client only reads what followers serve, since its address has read=follower: {act} with a client of an "
        "address without it"
    )


def _ignore(error: StorageError | None, body: bytes | memoryview) -> None:
    """Ignore a reply for which no caller waits."""
