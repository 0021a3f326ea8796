"""The operations of the native protocol: one small function for each, in a table.

A function that can answer at once returns None; one that has to wait (for the disk, for new records) is a coroutine,
which runs concurrently with the connection's other requests. What the next frame may refer to is done before it, when
the function is called, since the client need not wait for the reply. Operations that read records are in
`read_operations`, those on cursors, state and producers in `state_operations`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import attrs
import trio

from journal.access.rights import Operation, Use, UseRefusedError, subscription_use
from journal.engine import Engine, SubscriptionTarget
from journal.engine.segments.snapshots import Snapshot
from journal.protocol import messages
from journal.protocol.errors import ShuttingDownError, UnknownOperationError
from journal.protocol.frames import PROTOCOL_VERSION, Op, build, read_acknowledge, read_credit
from journal.protocol.message_codec import decode_request, encode
from journal.protocol.messages import other_version
from journal.server.connection import BrokenFrameError, Connection, RequestHandler
from journal.server.cursor_quotas import CursorQuotas
from journal.server.login import AUDITED, Login
from journal.server.open_connections import OpenConnections
from journal.server.pushing import PushState
from journal.server.read_operations import ReadOperations
from journal.server.shard_operations import ShardOperations
from journal.server.state_operations import StateOperations
from journal.server.statistics import ServerStatistics
from shards.errors import FormatVersionError, InvalidRequestError, LimitExceededError, NotOwnerError
from shards.model import Mode, ShardConfig, ShardInfo
from shards.position import Start


def _told(snapshot: Snapshot) -> messages.SnapshotReply:
    # The client that copies it may have another working directory than the server.
    return messages.SnapshotReply(os.path.abspath(snapshot.path), snapshot.lsn)


def server_version() -> str:
    """The version of the program; empty if it is not installed."""
    try:
        return version("journal-engine")
    except PackageNotFoundError:
        return ""


def server_name() -> str:
    """The name and version that the server sends to clients."""
    return f"journal-engine {server_version()}".rstrip()


_NUMBERS_FOR_EACH: Final = 16
"""A connection may open so many shards in its life for each that it may have open at once; more if that is a small
number."""
_LEAST_NUMBERS: Final = 65_536

SERVED_BY_FOLLOWERS: Final = frozenset(
    (
        Op.HELLO,
        Op.PING,
        Op.OPEN_SHARD,
        Op.CLOSE_SHARD,
        Op.LIST_SHARDS,
        Op.DESCRIBE_SHARD,
        Op.FETCH,
        Op.FIND_OFFSET,
        Op.FETCH_INDEXED,
        Op.SUBSCRIBE,
        Op.UNSUBSCRIBE,
        Op.CREDIT,
        Op.ACKNOWLEDGE,
    )
)
"""Operations that a server carries out while it follows the owner of its store. It refuses all others, and groups."""

_CHANGES_NOTHING: Final = SERVED_BY_FOLLOWERS - {Op.ACKNOWLEDGE} | {
    Op.STATUS,
    Op.STATE_GET,
    Op.STATE_SCAN,
    Op.CURSOR_GET,
    Op.CURSOR_LIST,
}
"""Operations that write nothing into the journal; OPEN_SHARD that creates a shard waits by itself."""


class ServerOperations:
    """The operations of one engine, for all its connections."""

    def __init__(
        self,
        engine: Engine,
        statistics: ServerStatistics,
        describe: Callable[[], dict[str, Any]],
        admission: Login,
        shards: ShardOperations,
        connections: OpenConnections,
    ) -> None:
        self._engine = engine
        self._connections = connections
        self._shards = shards
        self._admission = admission
        self._describe = describe
        self._server_name = server_name()
        self._cursors = CursorQuotas(engine)
        self._handlers: dict[int, RequestHandler] = {
            Op.HELLO: self._hello,
            Op.PING: self._ping,
            Op.STATUS: self._status,
            Op.SNAPSHOT: self._snapshot,
            Op.END_CLIENT: self._end_client,
            Op.CREATE_SHARD: self._create_shard,
            Op.OPEN_SHARD: self._open_shard,
            Op.CLOSE_SHARD: self._close_shard,
            Op.LIST_SHARDS: self._list_shards,
            Op.DESCRIBE_SHARD: self._describe_shard,
            Op.DELETE_SHARD: self._delete_shard,
            Op.SET_MODE: self._set_mode,
            Op.CONFIGURE_SHARD: self._configure_shard,
            Op.ROLL: self._roll,
            Op.TRIM: self._trim,
            Op.SUBSCRIBE: self._subscribe,
            Op.UNSUBSCRIBE: self._unsubscribe,
            Op.CREDIT: self._credit,
            Op.ACKNOWLEDGE: self._acknowledge,
            **ReadOperations(engine, statistics).handlers,
            **StateOperations(engine, shards, self._cursors).handlers,
        }

    def handle(self, connection: Connection, op: int, correlation: int, body: bytes) -> Awaitable[None] | None:
        """Carry out a request.

        Raises:
            UnknownOperationError: This version has no such operation.
            NotOwnerError: The server follows the owner of its store, and the operation is not one of those that read.
            BrokenFrameError: The body does not fit the operation.
        """
        handler = self._handlers.get(op)
        if handler is None:
            raise UnknownOperationError(
                f"operation {op} is unknown to this server, which has protocol version {PROTOCOL_VERSION}"
            )
        if self._engine.is_following and op not in SERVED_BY_FOLLOWERS:
            raise NotOwnerError(self._engine.owner)
        try:
            pending = handler(connection, correlation, body)
            return pending if pending is None else self._admission.audited(connection, op, body, pending)
        except struct.error as error:
            raise BrokenFrameError(f"{Op(op).name} body of {len(body)} bytes does not fit: {error}") from error

    def may_change(self, op: int) -> bool:
        return op not in _CHANGES_NOTHING

    def note_refused(self, connection: Connection, op: int, error: Exception) -> None:
        """Write a request that was refused for lack of rights into the audit log, unless `handle` does."""
        # Another error may be about an operation that is unknown and has no name.
        if isinstance(error, UseRefusedError) and op not in AUDITED:
            self._admission.note_refused(connection, Op(op).name.lower(), error)

    # Connection

    def _hello(self, connection: Connection, correlation: int, body: bytes) -> Awaitable[None] | None:
        request: messages.HelloRequest = decode_request(Op.HELLO, body)
        if connection.greeted:
            raise InvalidRequestError("HELLO was already sent on this connection")
        connection.expect_heartbeats(request.heartbeat_ms)
        if request.version != PROTOCOL_VERSION:
            raise FormatVersionError(other_version("the client", request.version, f"this server ({self._server_name})"))
        if self._engine.is_following and request.read != messages.READ_FOLLOWER:
            connection.turn_away(Op.HELLO, correlation, NotOwnerError(self._engine.owner))
            return None
        everybody = self._admission.everybody
        if everybody is None:
            connection.is_greeting = True
            return self._authenticate(connection, correlation, request)
        connection.greet(request.client, everybody)
        self._welcome(connection, correlation, request)
        return None

    async def _authenticate(self, connection: Connection, correlation: int, request: messages.HelloRequest) -> None:
        await self._admission.admit(connection, request.client, request.credentials)
        connection.producers = self._admission.producers_of(connection.principal)
        self._welcome(connection, correlation, request)

    def _welcome(self, connection: Connection, correlation: int, request: messages.HelloRequest) -> None:
        limits = self._engine.config.limits
        reply = messages.HelloReply(
            version=PROTOCOL_VERSION,
            server=self._server_name,
            node_id=self._engine.node_id,
            max_frame_bytes=limits.max_frame_bytes,
            max_batch_bytes=limits.max_batch_bytes,
            connection_id=connection.number,
            restores=self._engine.restores(),
            is_follower=self._engine.is_following,
        )
        connection.reply(build(Op.HELLO, correlation, encode(reply)))

    def _ping(self, connection: Connection, correlation: int, body: bytes) -> None:
        connection.reply(build(Op.PING, correlation))

    async def _end_client(self, connection: Connection, correlation: int, body: bytes) -> None:
        """End the connections of another client of the same principal; an administrator may end those of all clients.

        When it is answered, no request of these connections will be carried out any more.
        """
        request: messages.EndClientRequest = decode_request(Op.END_CLIENT, body)
        principal = connection.principal
        may_end_any = Use(Operation.END_ANY_CLIENT).is_allowed(principal)
        found = [
            one
            for one in self._connections
            if one is not connection
            and one.greeted
            and one.client == request.client
            and (one.principal.name == principal.name or may_end_any)
        ]
        ended = [one for one in found if one.refusal is None]
        for other in sorted({one.principal.name for one in ended} - {principal.name}):
            self._admission.record_ended(connection, other)
        for one in found:
            one.revoke(ShuttingDownError(f"client {connection.client!r} has ended this connection; connect again"))
        for one in found:
            await one.settle()
        connection.reply(build(Op.END_CLIENT, correlation, encode(messages.EndClientReply(len(ended)))))

    def _status(self, connection: Connection, correlation: int, body: bytes) -> None:
        Use(Operation.SEE_NODE).require(connection.principal)
        connection.reply(build(Op.STATUS, correlation, encode(self._describe())))

    async def _snapshot(self, connection: Connection, correlation: int, body: bytes) -> None:
        Use(Operation.TAKE_SNAPSHOT).require(connection.principal)
        held: Snapshot = await connection.nursery.start(self._hold_snapshot)
        connection.reply(build(Op.SNAPSHOT, correlation, encode(_told(held))))

    async def _hold_snapshot(self, *, task_status: trio.TaskStatus[Snapshot]) -> None:
        """Hold the snapshot until the connection is closed."""
        async with self._engine.take_snapshot() as snapshot:
            task_status.started(snapshot)
            await trio.sleep_forever()

    # Shards

    async def _create_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CreateShardRequest = decode_request(Op.CREATE_SHARD, body)
        info = await self._shards.create(connection, request.name, request.config, exist_ok=request.exist_ok)
        connection.reply(build(Op.CREATE_SHARD, correlation, encode(info)))

    def _open_shard(self, connection: Connection, correlation: int, body: bytes) -> Awaitable[None] | None:
        request: messages.OpenShardRequest = decode_request(Op.OPEN_SHARD, body)
        Use(Operation.OPEN_SHARD, shard=request.name).require(connection.principal)
        if self._engine.shard_id(request.name) is None and request.create is not None:
            self._check_room_for_handle(connection)
            # Before others that came with this one are looked at.
            connection.opening_count += 1
            return self._create_and_open(connection, correlation, request.name, request.create)
        self._open(connection, correlation, request.name)
        return None

    async def _create_and_open(self, connection: Connection, correlation: int, name: str, config: ShardConfig) -> None:
        try:
            await self._engine.wait_for_room()
            await self._shards.create_in_passing(connection, name, config)
        finally:
            connection.opening_count -= 1
        self._open(connection, correlation, name)

    def _open(self, connection: Connection, correlation: int, name: str) -> None:
        shard = self._engine.shard(name)
        shard.check_usable()
        handle = connection.handle_of.get(shard.shard_id)
        if handle is None:
            self._check_room_for_handle(connection)
            handle = connection.add_handle(shard)
        reply = messages.OpenShardReply(handle, shard.info(with_segments=False))
        connection.reply(build(Op.OPEN_SHARD, correlation, encode(reply)))

    def _check_room_for_handle(self, connection: Connection) -> None:
        """Refuse another handle over the limits; before a shard is created for it, too.

        Raises:
            LimitExceededError: The connection has as many open shards as it may have.
            ShuttingDownError: It has opened too many, one after the other. It is ended.
        """
        limit = self._engine.config.limits.max_handles_per_connection
        open_count = len(connection.handle_of) + connection.opening_count
        if open_count >= limit and not connection.close_deleted():
            raise LimitExceededError(
                f"this connection has {limit} open shards, the limit of limits.max_handles_per_connection; "
                f"close some, or use another connection"
            )
        if len(connection.shards) + connection.opening_count >= max(_NUMBERS_FOR_EACH * limit, _LEAST_NUMBERS):
            # The numbers of closed handles take memory, too.
            error = ShuttingDownError(
                f"this connection has opened {len(connection.shards)} shards one after the other; connect again"
            )
            connection.revoke(error)
            raise error

    def _close_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.HandleRequest = decode_request(Op.CLOSE_SHARD, body)
        connection.close_handle(request.handle)
        connection.reply(build(Op.CLOSE_SHARD, correlation))

    async def _list_shards(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.ListShardsRequest = decode_request(Op.LIST_SHARDS, body)
        output = connection.output
        # As for FETCH: without this, many pages could be made and held at once while little waits to be sent.
        reserved_bytes = self._shards.page_bytes(request.limit, request.segments)
        await output.reserve(reserved_bytes)
        try:
            page = await self._shards.list_shards(
                connection, request.filter, request.after, request.limit, most_segments=request.segments
            )
            reply = messages.ListShardsReply(page.shards, page.more)
            connection.reply(build(Op.LIST_SHARDS, correlation, encode(reply)))
        finally:
            output.unreserve(reserved_bytes)

    def _describe_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.DescribeShardRequest = decode_request(Op.DESCRIBE_SHARD, body)
        page = self._shards.describe_page(connection, request.name, request.from_offset, request.limit)
        described = messages.DescribedShard(**attrs.asdict(page.info, recurse=False), more=page.more)
        connection.reply(build(Op.DESCRIBE_SHARD, correlation, encode(described)))

    async def _delete_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.NameRequest = decode_request(Op.DELETE_SHARD, body)
        await self._shards.delete(connection, request.name)
        connection.reply(build(Op.DELETE_SHARD, correlation))

    async def _set_mode(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.SetModeRequest = decode_request(Op.SET_MODE, body)
        info = await self._shards.set_mode(connection, request.name, Mode(request.mode))
        self._info(connection, Op.SET_MODE, correlation, info)

    async def _configure_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.ConfigureShardRequest = decode_request(Op.CONFIGURE_SHARD, body)
        info = await self._shards.configure(
            connection, request.name, retention=request.retention, segment_bytes=request.segment_bytes
        )
        self._info(connection, Op.CONFIGURE_SHARD, correlation, info)

    async def _roll(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.RollRequest = decode_request(Op.ROLL, body)
        with trio.CancelScope() as waiting:
            connection.polls.add(waiting)
            try:
                info = await (self._shards.convert if request.wait else self._shards.roll)(connection, request.name)
            finally:
                connection.polls.discard(waiting)
        if waiting.cancelled_caught:
            raise ShuttingDownError(
                f"the server is stopping before all of shard {request.name!r} is converted; this continues at the next "
                f"start"
            )
        # All segments might not fit into a frame.
        newest = attrs.evolve(info, segments=info.segments[-self._shards.largest_segment_page :])
        self._info(connection, Op.ROLL, correlation, newest)

    async def _trim(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.TrimRequest = decode_request(Op.TRIM, body)
        info = await self._shards.trim(connection, request.name, request.before_offset)
        self._info(connection, Op.TRIM, correlation, info)

    def _info(self, connection: Connection, op: Op, correlation: int, info: ShardInfo) -> None:
        connection.reply(build(op, correlation, encode(info)))

    # Subscriptions

    def _subscribe(self, connection: Connection, correlation: int, body: bytes) -> Awaitable[None]:
        request: messages.SubscribeRequest = decode_request(Op.SUBSCRIBE, body)
        if request.group is not None and self._engine.is_following:
            raise NotOwnerError(self._engine.owner)
        use = subscription_use(request.shard, request.filter, request.group)
        use.require(connection.principal)
        limit = self._engine.config.limits.max_subscriptions_per_connection
        pushing = connection.pushing
        if len(pushing) >= limit:
            raise LimitExceededError(
                f"this connection has {limit} subscriptions, the limit of limits.max_subscriptions_per_connection; "
                f"subscribe by filter or use another connection"
            )
        target = request.filter or request.shard or ""
        # At once, because the next frame may end the subscription or give it credit.
        state = pushing.add(request.subscription, request.credit_bytes, target, use, connection.principal)
        return self._begin(connection, correlation, request, state)

    async def _begin(
        self, connection: Connection, correlation: int, request: messages.SubscribeRequest, state: PushState
    ) -> None:
        pushing = connection.pushing
        try:
            await self._wait_for_log(connection, request.seen_lsn)
            lsn = self._engine.committed_lsn
            start = _start_of(request, lsn)
            has_target = (request.shard is None) != (request.filter is None)
            if request.group is not None and has_target and (allowed := connection.allowance.cursors):
                await self._cursors.check_group(
                    connection.principal.name, allowed, request.group, request.shard, request.filter
                )
            subscription = await self._engine.subscribe(
                SubscriptionTarget(shard=request.shard, topic_filter=request.filter, group=request.group),
                start=start,
                until_lsn=request.until_lsn,
                common_lsn=request.common_lsn,
                on_ready=lambda: pushing.ready(state),
                credit_bytes=lambda: state.credit_bytes,
                may_deliver=state.may_deliver,
            )
        except BaseException:
            pushing.discard(state)
            raise
        connection.reply(build(Op.SUBSCRIBE, correlation, encode(messages.SubscribeReply(lsn))))
        pushing.begin(state, subscription)
        if request.group is not None:
            state.is_member = True
            connection.watch_members()

    async def _wait_for_log(self, connection: Connection, lsn: int) -> None:
        """Return when a follower has read the log up to an lsn that its client has seen elsewhere."""
        if not self._engine.is_following or self._engine.committed_lsn >= lsn:
            return
        with trio.CancelScope() as waiting:
            connection.polls.add(waiting)
            try:
                await self._engine.wait_to_have(lsn)
            finally:
                connection.polls.discard(waiting)
        if waiting.cancelled_caught:
            raise NotOwnerError(self._engine.owner)

    def _unsubscribe(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.UnsubscribeRequest = decode_request(Op.UNSUBSCRIBE, body)
        connection.pushing.end(request.subscription)
        connection.reply(build(Op.UNSUBSCRIBE, correlation))

    def _credit(self, connection: Connection, correlation: int, body: bytes) -> None:
        subscription, size_bytes = read_credit(body)
        connection.pushing.credit(subscription, size_bytes)

    def _acknowledge(self, connection: Connection, correlation: int, body: bytes) -> None:
        subscription, reference, first_offset, next_offset = read_acknowledge(body)
        connection.pushing.acknowledge(subscription, reference, first_offset, next_offset)


def _start_of(request: messages.SubscribeRequest, committed_lsn: int) -> Start:
    if request.start != "committed":
        return Start(request.start, request.value)
    if request.filter is None or request.group is not None:
        raise InvalidRequestError(
            "only a subscription by filter, and outside a group, can start after the newest committed lsn"
        )
    return Start.lsn(committed_lsn + 1)
