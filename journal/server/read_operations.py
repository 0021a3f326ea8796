"""The operations that read records: from a handle, an offset or a word to batches.

A fetch that can be answered at once returns None; one that has to wait is a coroutine, as in
`journal.server.operations`.
"""

from __future__ import annotations

from collections.abc import Awaitable

import trio

from journal.access.rights import Operation, Use
from journal.engine import Engine
from journal.protocol import messages
from journal.protocol.frames import FETCH_REPLY, Op, build, build_fetch_reply_head, read_fetch
from journal.protocol.message_codec import decode_request, encode
from journal.server.connection import Connection, RequestHandler
from journal.server.statistics import ServerStatistics
from shards.position import Start
from shards.segments.read_slices import ReadSlice
from shards.segments.shard import Shard


class ReadOperations:
    """Reads the shards of one engine, for all its connections.

    Attributes:
        handlers: Functions by operation.
    """

    def __init__(self, engine: Engine, statistics: ServerStatistics) -> None:
        self._engine = engine
        self._statistics = statistics
        self.handlers: dict[int, RequestHandler] = {
            Op.FETCH: self._fetch,
            Op.FIND_OFFSET: self._find_offset,
            Op.FETCH_INDEXED: self._fetch_indexed,
        }

    def _fetch(self, connection: Connection, correlation: int, body: bytes) -> Awaitable[None] | None:
        handle, max_bytes, offset, max_wait_ms = read_fetch(body)
        shard = self._shard(connection, handle)
        max_bytes = self._bounded(max_bytes)
        if connection.output.has_room and not self._is_ahead(shard, offset):
            extent = self._engine.read_nowait(shard, offset, max_bytes, connection.places.get(shard.shard_id))
            if extent is not None and (extent.size_bytes or not max_wait_ms):
                self._send_extent(connection, Op.FETCH, correlation, shard, extent)
                self._remember(connection, shard, extent)
                return None
        return self._fetch_later(connection, correlation, shard, offset, max_bytes, max_wait_ms)

    def _bounded(self, max_bytes: int) -> int:
        # A read from a file may return an index block more than requested, which must fit into the frame.
        return min(max_bytes, self._engine.config.limits.max_frame_bytes // 2 - FETCH_REPLY.size)

    async def _fetch_later(
        self, connection: Connection, correlation: int, shard: Shard, offset: int, max_bytes: int, max_wait_ms: int
    ) -> None:
        wait_s = min(max_wait_ms, self._engine.config.limits.max_wait_ms) / 1000
        with trio.CancelScope() as poll:
            connection.polls.add(poll)
            try:
                await self._engine.wait_beyond(shard, offset, wait_s)
            finally:
                connection.polls.discard(poll)
        output = connection.output
        await output.reserve(max_bytes)
        try:
            # It may have waited for long.
            Use(Operation.READ, shard=shard.name).require(connection.principal)
            if self._is_ahead(shard, offset):
                shard.check_usable()
                extent = ReadSlice(offset, offset, [], 0, None)
            else:
                extent = await self._engine.read(shard, offset, max_bytes, connection.places.get(shard.shard_id))
            self._send_extent(connection, Op.FETCH, correlation, shard, extent)
        finally:
            output.unreserve(max_bytes)
        self._remember(connection, shard, extent)

    def _is_ahead(self, shard: Shard, offset: int) -> bool:
        """Whether an offset is after what a follower has of a shard: the owner may have it, so it is no error."""
        return self._engine.is_following and offset > shard.published_offset

    def _remember(self, connection: Connection, shard: Shard, extent: ReadSlice) -> None:
        """Save the position for the next fetch, which then needs no search if it continues here."""
        if extent.place is not None and shard.shard_id in connection.handle_of:
            connection.places[shard.shard_id] = extent.place

    def _send_extent(self, connection: Connection, op: Op, correlation: int, shard: Shard, extent: ReadSlice) -> None:
        head = build_fetch_reply_head(correlation, shard.start_offset, extent.next_offset, extent.size_bytes, op=op)
        self._statistics.fetched_bytes += extent.size_bytes
        if connection.meter is not None:
            connection.meter.spend(0, extent.size_bytes)
        connection.output.send([head, *extent.buffers], len(head) + extent.size_bytes)

    async def _find_offset(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.FindOffsetRequest = decode_request(Op.FIND_OFFSET, body)
        shard = self._shard(connection, request.handle)
        offset = await self._engine.find_offset(shard, Start(request.at, request.value))
        connection.reply(build(Op.FIND_OFFSET, correlation, encode(messages.FindOffsetReply(offset))))

    async def _fetch_indexed(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.FetchIndexedRequest = decode_request(Op.FETCH_INDEXED, body)
        shard = self._shard(connection, request.handle)
        max_bytes = self._bounded(request.max_bytes)
        output = connection.output
        await output.reserve(max_bytes)
        try:
            Use(Operation.READ, shard=shard.name).require(connection.principal)
            extent = await self._engine.read_indexed(
                shard, request.by, request.word, request.from_offset, max_bytes, latest=request.latest
            )
            self._send_extent(connection, Op.FETCH_INDEXED, correlation, shard, extent)
        finally:
            output.unreserve(max_bytes)

    def _shard(self, connection: Connection, handle: int) -> Shard:
        shard = connection.readable[handle] if handle < len(connection.readable) else None
        if shard is None or shard.deleted:
            raise connection.refused_handle(handle, Operation.READ)
        return shard
