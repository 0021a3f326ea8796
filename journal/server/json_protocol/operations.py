"""The operations of the JSON sub-protocol: one small function for each, in a table.

The rules and limits are those of the native protocol, from the same modules: `journal.server.shard_operations` and the
engine. Credit and page sizes count bytes of the JSON that a client receives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from journal.access.rights import Operation, Use, subscription_use
from journal.engine import Engine, SubscriptionTarget
from journal.engine.wal.pending_ack import PendingAck
from journal.server.heartbeat import INTERVAL_S
from journal.server.json_protocol import messages
from journal.server.json_protocol.connection import JsonConnection, Later
from journal.server.json_protocol.pushes import Opener, page_fields
from journal.server.json_protocol.records import encode_batch, item_count
from journal.server.login import Login
from journal.server.pushing import PushState
from journal.server.shard_operations import ShardOperations
from journal.server.statistics import ServerStatistics
from shards.errors import InvalidRequestError, LimitExceededError
from shards.model import AckLevel, ShardConfig
from shards.subscriptions.events import Push

Handler = Callable[["JsonOperations", JsonConnection, Any], Awaitable[object]]

_VERSION = 1
_ON_THE_LOOP_ITEMS = 1_000
_MOST_ITEMS = 100_000
_LARGEST_READ_BYTES = 64 * 1024


class JsonOperations:
    """The operations of one engine, for all its JSON connections.

    Attributes:
        opener: Decodes the batches that are read.
        converting: Limits how many appends are converted at the same time.
    """

    def __init__(
        self,
        engine: Engine,
        shards: ShardOperations,
        admission: Login,
        statistics: ServerStatistics,
        server_name: str,
    ) -> None:
        self.opener = Opener(engine)
        # Each converting thread takes the interpreter from all other tasks.
        self.converting = trio.CapacityLimiter(1)
        self._engine = engine
        self._shards = shards
        self._admission = admission
        self._statistics = statistics
        self._server_name = server_name

    async def handle(self, connection: JsonConnection, request: messages.AnyRequest) -> object:
        """Carry out a request, or begin it: returns its result or what is still to be awaited."""
        return await _HANDLERS[type(request)](self, connection, request)

    def note_refused(self, connection: JsonConnection, act: str, error: Exception) -> None:
        """Write a request that was refused for lack of rights into the audit log."""
        self._admission.note_refused(connection, act, error)

    # Connection

    async def hello(self, connection: JsonConnection, request: messages.Hello) -> object:
        if connection.greeted:
            raise InvalidRequestError("hello was already sent on this connection")
        everybody = self._admission.everybody
        if everybody is not None:
            connection.greet(request.client, everybody)
        else:
            await self._admission.admit(connection, request.client, request.credentials)
        limits = self._engine.config.limits
        return {
            "version": _VERSION,
            "server": self._server_name,
            "node_id": self._engine.node_id,
            "connection_id": connection.number,
            "principal": connection.principal.name,
            "max_message_bytes": limits.max_frame_bytes,
            "max_batch_bytes": limits.max_batch_bytes,
            "heartbeat_s": INTERVAL_S,
        }

    async def ping(self, connection: JsonConnection, request: messages.Ping) -> object:
        return {}

    # Shards

    async def list(self, connection: JsonConnection, request: messages.List) -> object:
        return await self._shards.list_shards(connection, request.filter, request.after, request.limit)

    async def describe(self, connection: JsonConnection, request: messages.Describe) -> object:
        return self._shards.describe(connection, request.shard)

    # Records

    async def append(self, connection: JsonConnection, request: messages.Append) -> object:
        engine = self._engine
        Use(Operation.APPEND, shard=request.shard).require(connection.principal)
        await engine.wait_for_room()
        if request.create is not None and engine.shard_id(request.shard) is None:
            config = ShardConfig() if request.create.mode is None else ShardConfig(mode=request.create.mode)
            await self._shards.create_in_passing(connection, request.shard, config)
        shard = engine.shard(request.shard)
        if connection.meter is not None:
            connection.meter.check_room(shard.name)
        items = item_count(request)
        if items > _MOST_ITEMS:
            raise LimitExceededError(
                f"an append of {items} records, headers and tags is over the limit of {_MOST_ITEMS}; send fewer at once"
            )
        if items > _ON_THE_LOOP_ITEMS:
            batch = await trio.to_thread.run_sync(encode_batch, request, engine.now_us(), limiter=self.converting)
        else:
            batch = encode_batch(request, engine.now_us())
        waiter = PendingAck()
        engine.append_nowait(
            shard,
            batch,
            waiter,
            ack=AckLevel[request.ack.upper()],
            expected_offset=request.expected_offset,
            account=connection.allowance.memory,
        )
        self._statistics.append_bytes += len(batch)
        connection.inflight_bytes += len(batch)
        return Later(self._appended(connection, waiter, len(batch)))

    async def _appended(self, connection: JsonConnection, waiter: PendingAck, size_bytes: int) -> object:
        try:
            appended = await waiter.wait()
        finally:
            connection.inflight_bytes -= size_bytes
            connection.made_progress()
        self._statistics.appends += 1
        return {
            "base_offset": appended.base_offset,
            "level": appended.level.name.lower(),
        }

    async def read(self, connection: JsonConnection, request: messages.Read) -> object:
        Use(Operation.READ, shard=request.shard).require(connection.principal)
        return Later(self._read(connection, request))

    async def _read(self, connection: JsonConnection, request: messages.Read) -> object:
        engine, limits = self._engine, self._engine.config.limits
        shard = engine.shard(request.shard)
        offset = await engine.find_offset(shard, request.start.start())
        wait_s = min(request.wait_ms, limits.max_wait_ms) / 1000
        with trio.CancelScope() as poll:
            connection.polls.add(poll)
            try:
                await engine.wait_beyond(shard, offset, wait_s)
            finally:
                connection.polls.discard(poll)
        max_bytes = min(request.max_bytes, limits.max_frame_bytes // 2)
        output = connection.output
        await output.reserve(max_bytes)
        try:
            # It may have waited for long.
            Use(Operation.READ, shard=shard.name).require(connection.principal)
            # A small batch may be large as JSON: read no more than the first page is likely to need.
            extent = await engine.read(shard, offset, min(max_bytes, _LARGEST_READ_BYTES))
            push = Push(0, max(offset, extent.start_offset), extent.next_offset, extent.buffers, extent.size_bytes)
            page = await self.opener.open(shard.name, push, max_bytes).next()
            if connection.meter is not None and page is not None:
                connection.meter.spend(0, page.size_bytes)
        finally:
            output.unreserve(max_bytes)
        bounds = {"start_offset": shard.start_offset, "end_offset": shard.published_offset}
        if page is None:
            return {"records": [], "gaps": [], "next_offset": extent.next_offset, **bounds}
        if page.error is not None and not page.records and not page.gaps:
            raise page.error
        return {**page_fields(page), **bounds}

    # Tails

    async def tail(self, connection: JsonConnection, request: messages.Tail) -> object:
        target = request.shard if request.shard is not None else request.filter
        if target is None or (request.shard is not None and request.filter is not None):
            raise InvalidRequestError("a tail names either a shard or a filter")
        use = subscription_use(request.shard, request.filter, group=None)
        use.require(connection.principal)
        limit = self._engine.config.limits.max_subscriptions_per_connection
        if len(connection.pushing) >= limit:
            raise LimitExceededError(
                f"this connection has {limit} tails, the limit of limits.max_subscriptions_per_connection; "
                f"tail by filter or use another connection"
            )
        state = connection.pushing.add(request.tail, request.credit_bytes, target, use, connection.principal)
        return Later(self._begin(connection, request, state))

    async def _begin(self, connection: JsonConnection, request: messages.Tail, state: PushState) -> object:
        pushing = connection.pushing
        lsn = self._engine.committed_lsn
        try:
            subscription = await self._engine.subscribe(
                SubscriptionTarget(shard=request.shard, topic_filter=request.filter),
                start=request.start.start(),
                on_ready=lambda: pushing.ready(state),
                credit_bytes=lambda: state.credit_bytes,
                may_deliver=state.may_deliver,
            )
        except BaseException:
            pushing.discard(state)
            raise
        # Pushes are sent by another task, so after the reply to this request.
        pushing.begin(state, subscription)
        return {"tail": request.tail, "lsn": lsn}

    async def credit(self, connection: JsonConnection, request: messages.Credit) -> object:
        connection.pushing.credit(request.tail, request.bytes)
        return {}

    async def untail(self, connection: JsonConnection, request: messages.Untail) -> object:
        connection.pushing.end(request.tail)
        connection.pushes.forget(request.tail)
        return {}


_HANDLERS: dict[type[messages.Request], Handler] = {
    messages.Hello: JsonOperations.hello,
    messages.Ping: JsonOperations.ping,
    messages.List: JsonOperations.list,
    messages.Describe: JsonOperations.describe,
    messages.Append: JsonOperations.append,
    messages.Read: JsonOperations.read,
    messages.Tail: JsonOperations.tail,
    messages.Credit: JsonOperations.credit,
    messages.Untail: JsonOperations.untail,
}
