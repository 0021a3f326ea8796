"""What each request does: one small function per operation, in a table.

A function that can answer at once returns None; one that has to wait (for the disk, for new records) is a coroutine,
which the connection runs beside its other requests.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attrs
import trio

from journal.access.principal import Action, require
from journal.atomic_changes import Delete, Put
from journal.engine import Engine
from journal.protocol import messages
from journal.protocol.errors import ShuttingDownError, UnknownOperationError
from journal.protocol.frames import (
    FETCH_REPLY,
    PROTOCOL_VERSION,
    Op,
    build,
    build_fetch_reply_head,
    read_acknowledge,
    read_credit,
    read_fetch,
)
from journal.protocol.messages import decode_request, encode
from journal.server.admission import Admission, scan_target, state_target
from journal.server.connection import BrokenFrameError, Connection
from journal.server.shard_operations import LARGEST_PAGE, ShardOperations
from journal.server.statistics import ServerStatistics
from journal.snapshots import Snapshot
from shards.errors import FormatVersionError, InvalidRequestError, LimitExceededError
from shards.extents import Extent
from shards.model import Mode, ShardConfig, ShardInfo
from shards.position import Start
from shards.shard import Shard

Handler = Callable[["ServerOperations", Connection, int, bytes], Awaitable[None] | None]


def _told(snapshot: Snapshot) -> messages.SnapshotReply:
    # Who copies it may stand in another directory than the server.
    return messages.SnapshotReply(os.path.abspath(snapshot.path), snapshot.lsn)


def server_version() -> str:
    """The version of the program; empty if it is not installed."""
    try:
        return version("journal-engine")
    except PackageNotFoundError:
        return ""


def server_name() -> str:
    """What the server calls itself."""
    return f"journal-engine {server_version()}".rstrip()


class ServerOperations:
    """The operations of one engine, for all its connections."""

    def __init__(
        self,
        engine: Engine,
        statistics: ServerStatistics,
        describe: Callable[[], dict[str, Any]],
        admission: Admission,
        shards: ShardOperations,
    ) -> None:
        self.engine = engine
        self.statistics = statistics
        self._shards = shards
        self._admission = admission
        self._describe = describe
        self._server_name = server_name()

    def handle(self, connection: Connection, op: int, correlation: int, body: bytes) -> Awaitable[None] | None:
        """Carry out a request.

        Raises:
            UnknownOperationError: Not an operation of this version.
            BrokenFrameError: The body does not fit the operation.
        """
        handler = _HANDLERS.get(op)
        if handler is None:
            raise UnknownOperationError(
                f"operation {op} is unknown to this server, which speaks version {PROTOCOL_VERSION}"
            )
        try:
            pending = handler(self, connection, correlation, body)
            return pending if pending is None else self._admission.audited(connection, op, body, pending)
        except struct.error as error:
            raise BrokenFrameError(f"{Op(op).name} body of {len(body)} bytes does not fit: {error}") from error

    # Connection

    def hello(self, connection: Connection, correlation: int, body: bytes) -> Awaitable[None] | None:
        request: messages.HelloRequest = decode_request(Op.HELLO, body)
        if connection.greeted:
            raise InvalidRequestError("HELLO was said already on this connection")
        if request.version < 1:
            raise FormatVersionError(
                f"protocol version {request.version} does not exist; this server speaks up to {PROTOCOL_VERSION}"
            )
        everybody = self._admission.everybody
        if everybody is None:
            connection.is_greeting = True
            return self._authenticate(connection, correlation, request)
        connection.greet(request.client, everybody)
        self._welcome(connection, correlation, request)
        return None

    async def _authenticate(self, connection: Connection, correlation: int, request: messages.HelloRequest) -> None:
        await self._admission.admit(connection, request.client, request.credentials)
        self._welcome(connection, correlation, request)

    def _welcome(self, connection: Connection, correlation: int, request: messages.HelloRequest) -> None:
        limits = self.engine.config.limits
        reply = messages.HelloReply(
            version=min(request.version, PROTOCOL_VERSION),
            server=self._server_name,
            node_id=self.engine.node_id,
            max_frame_bytes=limits.max_frame_bytes,
            max_batch_bytes=limits.max_batch_bytes,
            connection_id=connection.number,
        )
        connection.reply(build(Op.HELLO, correlation, encode(reply)))

    def ping(self, connection: Connection, correlation: int, body: bytes) -> None:
        connection.reply(build(Op.PING, correlation))

    def status(self, connection: Connection, correlation: int, body: bytes) -> None:
        require(connection.principal, "#", Action.ADMINISTER)
        connection.reply(build(Op.STATUS, correlation, encode(self._describe())))

    async def snapshot(self, connection: Connection, correlation: int, body: bytes) -> None:
        require(connection.principal, "#", Action.ADMINISTER)
        held: Snapshot = await connection.nursery.start(self._hold_snapshot)
        connection.reply(build(Op.SNAPSHOT, correlation, encode(_told(held))))

    async def _hold_snapshot(self, *, task_status: trio.TaskStatus[Snapshot]) -> None:
        """Hold it until the connection is gone."""
        async with self.engine.snapshots.take() as snapshot:
            task_status.started(snapshot)
            await trio.sleep_forever()

    # Shards

    async def create_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CreateShardRequest = decode_request(Op.CREATE_SHARD, body)
        info = await self._shards.create(connection, request.name, request.config, exist_ok=request.exist_ok)
        connection.reply(build(Op.CREATE_SHARD, correlation, encode(info)))

    def open_shard(self, connection: Connection, correlation: int, body: bytes) -> Awaitable[None] | None:
        request: messages.OpenShardRequest = decode_request(Op.OPEN_SHARD, body)
        require(connection.principal, request.name, Action.APPEND, Action.READ)
        if self.engine.table.catalogue.id_of(request.name) is None and request.create is not None:
            return self._create_and_open(connection, correlation, request.name, request.create)
        self._open(connection, correlation, request.name)
        return None

    async def _create_and_open(self, connection: Connection, correlation: int, name: str, config: ShardConfig) -> None:
        await self._shards.create_in_passing(connection, name, config)
        self._open(connection, correlation, name)

    def _open(self, connection: Connection, correlation: int, name: str) -> None:
        shard = self.engine.table.by_name(name)
        shard.check_usable()
        handle = connection.handle_of.get(shard.shard_id)
        if handle is None:
            handle = len(connection.shards)
            limit = self.engine.config.limits.max_handles_per_connection
            if handle >= limit:
                raise LimitExceededError(
                    f"this connection has opened {handle} shards, as many as limits.max_handles_per_connection allows; "
                    f"use another connection"
                )
            connection.add_handle(shard)
        reply = messages.OpenShardReply(handle, shard.info(with_segments=False))
        connection.reply(build(Op.OPEN_SHARD, correlation, encode(reply)))

    def close_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.HandleRequest = decode_request(Op.CLOSE_SHARD, body)
        connection.close_handle(request.handle)
        connection.reply(build(Op.CLOSE_SHARD, correlation))

    def _shard(self, connection: Connection, handle: int) -> Shard:
        shard = connection.readable[handle] if handle < len(connection.readable) else None
        if shard is None or shard.deleted:
            raise connection.refused_handle(handle, Action.READ)
        return shard

    def list_shards(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.ListShardsRequest = decode_request(Op.LIST_SHARDS, body)
        page = self._shards.list_shards(connection, request.filter, request.after, request.limit)
        connection.reply(build(Op.LIST_SHARDS, correlation, encode(messages.ListShardsReply(page.shards, page.more))))

    def describe_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.NameRequest = decode_request(Op.DESCRIBE_SHARD, body)
        info = self._shards.describe(connection, request.name)
        connection.reply(build(Op.DESCRIBE_SHARD, correlation, encode(info)))

    async def delete_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.NameRequest = decode_request(Op.DELETE_SHARD, body)
        await self._shards.delete(connection, request.name)
        connection.reply(build(Op.DELETE_SHARD, correlation))

    async def set_mode(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.SetModeRequest = decode_request(Op.SET_MODE, body)
        info = await self._shards.set_mode(connection, request.name, Mode(request.mode))
        self._info(connection, Op.SET_MODE, correlation, info)

    async def configure_shard(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.ConfigureShardRequest = decode_request(Op.CONFIGURE_SHARD, body)
        info = await self._shards.configure(
            connection, request.name, retention=request.retention, segment_bytes=request.segment_bytes
        )
        self._info(connection, Op.CONFIGURE_SHARD, correlation, info)

    async def seal(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.SealRequest = decode_request(Op.SEAL, body)
        with trio.CancelScope() as waiting:
            connection.polls.add(waiting)
            try:
                info = await self._shards.seal(connection, request.name, wait=request.wait)
            finally:
                connection.polls.discard(waiting)
        if waiting.cancelled_caught:
            raise ShuttingDownError(
                f"the server is stopping before all of shard {request.name!r} is sealed; it goes on at the next start"
            )
        self._info(connection, Op.SEAL, correlation, info)

    async def trim(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.TrimRequest = decode_request(Op.TRIM, body)
        info = await self._shards.trim(connection, request.name, request.before_offset)
        self._info(connection, Op.TRIM, correlation, info)

    def _info(self, connection: Connection, op: Op, correlation: int, info: ShardInfo) -> None:
        connection.reply(build(op, correlation, encode(info)))

    # Reading

    def fetch(self, connection: Connection, correlation: int, body: bytes) -> Awaitable[None] | None:
        handle, max_bytes, offset, max_wait_ms = read_fetch(body)
        shard = self._shard(connection, handle)
        max_bytes = self._bounded(max_bytes)
        if connection.output.has_room:
            extent = self.engine.reader.read_nowait(shard, offset, max_bytes, connection.places.get(shard.shard_id))
            if extent is not None and (extent.size_bytes or not max_wait_ms):
                self._send_extent(connection, Op.FETCH, correlation, shard, extent)
                self._remember(connection, shard, extent)
                return None
        return self._fetch_later(connection, correlation, shard, offset, max_bytes, max_wait_ms)

    def _bounded(self, max_bytes: int) -> int:
        # A read from a file may give an index block more than asked, and the frame has to hold it.
        return min(max_bytes, self.engine.config.limits.max_frame_bytes // 2 - FETCH_REPLY.size)

    async def _fetch_later(
        self, connection: Connection, correlation: int, shard: Shard, offset: int, max_bytes: int, max_wait_ms: int
    ) -> None:
        reader = self.engine.reader
        wait_s = min(max_wait_ms, self.engine.config.limits.max_wait_ms) / 1000
        with trio.CancelScope() as poll:
            connection.polls.add(poll)
            try:
                await reader.wait_beyond(shard, offset, wait_s)
            finally:
                connection.polls.discard(poll)
        output = connection.output
        await output.reserve(max_bytes)
        try:
            extent = await reader.read(shard, offset, max_bytes, connection.places.get(shard.shard_id))
            self._send_extent(connection, Op.FETCH, correlation, shard, extent)
        finally:
            output.unreserve(max_bytes)
        self._remember(connection, shard, extent)

    def _remember(self, connection: Connection, shard: Shard, extent: Extent) -> None:
        """Spare the next fetch of a reader that goes on where this one ended the search."""
        if extent.place is not None and shard.shard_id in connection.handle_of:
            connection.places[shard.shard_id] = extent.place

    def _send_extent(self, connection: Connection, op: Op, correlation: int, shard: Shard, extent: Extent) -> None:
        head = build_fetch_reply_head(correlation, shard.start_offset, extent.next_offset, extent.size_bytes, op=op)
        self.statistics.fetched_bytes += extent.size_bytes
        if connection.meter is not None:
            connection.meter.spend(0, extent.size_bytes)
        connection.output.send([head, *extent.buffers], len(head) + extent.size_bytes)

    async def find_offset(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.FindOffsetRequest = decode_request(Op.FIND_OFFSET, body)
        shard = self._shard(connection, request.handle)
        offset = await self.engine.reader.find_offset(shard, Start(request.at, request.value))
        connection.reply(build(Op.FIND_OFFSET, correlation, encode(messages.FindOffsetReply(offset))))

    async def fetch_indexed(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.FetchIndexedRequest = decode_request(Op.FETCH_INDEXED, body)
        shard = self._shard(connection, request.handle)
        max_bytes = self._bounded(request.max_bytes)
        output = connection.output
        await output.reserve(max_bytes)
        try:
            extent = await self.engine.reader.read_indexed(
                shard, request.by, request.word, request.from_offset, max_bytes, latest=request.latest
            )
            self._send_extent(connection, Op.FETCH_INDEXED, correlation, shard, extent)
        finally:
            output.unreserve(max_bytes)

    # Subscriptions

    async def subscribe(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.SubscribeRequest = decode_request(Op.SUBSCRIBE, body)
        target = request.filter or request.shard or ""
        require(connection.principal, target, Action.SUBSCRIBE)
        limit = self.engine.config.limits.max_subscriptions_per_connection
        pushing = connection.pushing
        if len(pushing) >= limit:
            raise LimitExceededError(
                f"this connection has {limit} subscriptions, all that limits.max_subscriptions_per_connection allows; "
                f"subscribe by filter or use another connection"
            )
        lsn = self.engine.committer.committed_lsn
        if request.start == "committed":
            if request.filter is None or request.group is not None:
                raise InvalidRequestError(
                    "only a subscription by filter, and outside a group, can start behind the newest committed lsn"
                )
            start = Start.lsn(lsn + 1)
        else:
            start = Start(request.start, request.value)
        state = pushing.add(request.subscription, request.credit_bytes, target)
        try:
            subscription = await self.engine.subscriptions.subscribe(
                shard=request.shard,
                topic_filter=request.filter,
                start=start,
                until_lsn=request.until_lsn,
                group=request.group,
                on_ready=lambda: pushing.ready(state),
                credit_bytes=lambda: state.credit_bytes,
            )
        except BaseException:
            pushing.discard(state)
            raise
        connection.reply(build(Op.SUBSCRIBE, correlation, encode(messages.SubscribeReply(lsn))))
        pushing.begin(state, subscription)

    def unsubscribe(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.UnsubscribeRequest = decode_request(Op.UNSUBSCRIBE, body)
        connection.pushing.end(request.subscription)
        connection.reply(build(Op.UNSUBSCRIBE, correlation))

    def credit(self, connection: Connection, correlation: int, body: bytes) -> None:
        subscription, size_bytes = read_credit(body)
        connection.pushing.credit(subscription, size_bytes)

    def acknowledge(self, connection: Connection, correlation: int, body: bytes) -> None:
        subscription, reference, first_offset, next_offset = read_acknowledge(body)
        connection.pushing.acknowledge(subscription, reference, first_offset, next_offset)

    # Cursors

    def get_cursor(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorRequest = decode_request(Op.CURSOR_GET, body)
        require(connection.principal, request.shard, Action.READ, Action.ADMINISTER)
        cursor = self.engine.control.get_cursor(request.shard, request.name)
        connection.reply(build(Op.CURSOR_GET, correlation, encode(messages.CursorReply(cursor))))

    def list_cursors(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorListRequest = decode_request(Op.CURSOR_LIST, body)
        require(connection.principal, request.shard, Action.READ, Action.ADMINISTER)
        cursors = self.engine.control.list_cursors(request.shard)
        connection.reply(build(Op.CURSOR_LIST, correlation, encode(messages.CursorListReply(cursors))))

    async def commit_cursor(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorCommitRequest = decode_request(Op.CURSOR_COMMIT, body)
        require(connection.principal, request.shard, Action.READ, Action.ADMINISTER)
        cursor = await self.engine.control.commit_cursor(
            request.shard, request.name, request.offset, request.expected_version
        )
        connection.reply(build(Op.CURSOR_COMMIT, correlation, encode(cursor)))

    async def delete_cursor(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorDeleteRequest = decode_request(Op.CURSOR_DELETE, body)
        require(connection.principal, request.shard, Action.READ, Action.ADMINISTER)
        await self.engine.control.delete_cursor(request.shard, request.name, request.expected_version)
        connection.reply(build(Op.CURSOR_DELETE, correlation))

    # State and producers

    def get_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StateGetRequest = decode_request(Op.STATE_GET, body)
        require(connection.principal, state_target(request.key), Action.READ)
        value = self.engine.control.get_state(request.key)
        connection.reply(build(Op.STATE_GET, correlation, encode(messages.StateGetReply(value))))

    async def put_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StatePutRequest = decode_request(Op.STATE_PUT, body)
        require(connection.principal, state_target(request.key), Action.APPEND)
        value = await self.engine.control.put_state(
            request.key, request.value, request.expected_version, request.expires_at_us
        )
        connection.reply(build(Op.STATE_PUT, correlation, encode(value)))

    async def delete_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StateDeleteRequest = decode_request(Op.STATE_DELETE, body)
        require(connection.principal, state_target(request.key), Action.APPEND)
        await self.engine.control.delete_state(request.key, request.expected_version)
        connection.reply(build(Op.STATE_DELETE, correlation))

    async def commit(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CommitRequest = decode_request(Op.COMMIT, body)
        for append in request.appends:
            require(connection.principal, append.shard, Action.APPEND)
            if connection.meter is not None:
                connection.meter.check_room(append.shard)
        for key in (*(put.key for put in request.puts), *(delete.key for delete in request.deletes)):
            require(connection.principal, state_target(key), Action.APPEND)
        appended, values = await self.engine.atomic.commit(
            [(one.shard, one.batch) for one in request.appends],
            [Put(one.key, one.value, one.expected_version, one.expires_at_us) for one in request.puts],
            [Delete(one.key, one.expected_version) for one in request.deletes],
        )
        reply = messages.CommitReply(
            [messages.BatchAppended(one.level, one.base_offset) for one in appended],
            # The values are the client's own: only their versions are news.
            [attrs.evolve(one, value=b"") for one in values],
        )
        connection.reply(build(Op.COMMIT, correlation, encode(reply)))

    def scan_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StateScanRequest = decode_request(Op.STATE_SCAN, body)
        require(connection.principal, scan_target(request.prefix), Action.READ)
        limit = max(1, min(request.limit, LARGEST_PAGE))
        values = self.engine.control.scan_state(request.prefix, request.after, limit + 1)
        page, more = self._fit(values[:limit]), len(values) > limit
        reply = messages.StateScanReply(page, more or len(page) < min(len(values), limit))
        connection.reply(build(Op.STATE_SCAN, correlation, encode(reply)))

    def _fit(self, values: list[Any]) -> list[Any]:
        """As many values as a frame holds comfortably, at least one."""
        room = self.engine.config.limits.max_frame_bytes // 2
        for at, value in enumerate(values):
            room -= len(value.key) + len(value.value) + 64
            if room < 0 and at:
                return values[:at]
        return values

    async def open_producer(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.ProducerOpenRequest = decode_request(Op.PRODUCER_OPEN, body)
        identity = await self.engine.control.open_producer(self._admission.producer_name(connection, request.name))
        connection.reply(build(Op.PRODUCER_OPEN, correlation, encode(identity)))


_HANDLERS: dict[int, Handler] = {
    Op.HELLO: ServerOperations.hello,
    Op.PING: ServerOperations.ping,
    Op.STATUS: ServerOperations.status,
    Op.SNAPSHOT: ServerOperations.snapshot,
    Op.CREATE_SHARD: ServerOperations.create_shard,
    Op.OPEN_SHARD: ServerOperations.open_shard,
    Op.CLOSE_SHARD: ServerOperations.close_shard,
    Op.LIST_SHARDS: ServerOperations.list_shards,
    Op.DESCRIBE_SHARD: ServerOperations.describe_shard,
    Op.DELETE_SHARD: ServerOperations.delete_shard,
    Op.SET_MODE: ServerOperations.set_mode,
    Op.CONFIGURE_SHARD: ServerOperations.configure_shard,
    Op.SEAL: ServerOperations.seal,
    Op.TRIM: ServerOperations.trim,
    Op.FETCH: ServerOperations.fetch,
    Op.FIND_OFFSET: ServerOperations.find_offset,
    Op.FETCH_INDEXED: ServerOperations.fetch_indexed,
    Op.SUBSCRIBE: ServerOperations.subscribe,
    Op.UNSUBSCRIBE: ServerOperations.unsubscribe,
    Op.CREDIT: ServerOperations.credit,
    Op.ACKNOWLEDGE: ServerOperations.acknowledge,
    Op.CURSOR_GET: ServerOperations.get_cursor,
    Op.CURSOR_LIST: ServerOperations.list_cursors,
    Op.CURSOR_COMMIT: ServerOperations.commit_cursor,
    Op.CURSOR_DELETE: ServerOperations.delete_cursor,
    Op.STATE_GET: ServerOperations.get_state,
    Op.STATE_PUT: ServerOperations.put_state,
    Op.STATE_DELETE: ServerOperations.delete_state,
    Op.STATE_SCAN: ServerOperations.scan_state,
    Op.COMMIT: ServerOperations.commit,
    Op.PRODUCER_OPEN: ServerOperations.open_producer,
}
