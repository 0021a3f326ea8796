"""The operations on cursors, state and producers: data that clients store in addition to records.

COMMIT, which changes records and state in one step, is here, too.
"""

from __future__ import annotations

import attrs

from journal.access.rights import Operation, Use
from journal.engine import Engine
from journal.engine.write.transactions import CursorCheck, Delete, Put
from journal.protocol import messages
from journal.protocol.frames import Op, build
from journal.protocol.message_codec import decode_request, encode
from journal.server.connection import Connection, RequestHandler
from journal.server.cursor_quotas import CursorQuotas
from journal.server.shard_operations import LARGEST_PAGE, ShardOperations
from shards.model import StateValue

_BESIDES_BYTES = 64
"""Size of a value in a reply in addition to its key and its bytes."""


class StateOperations:
    """The cursors, state and producers of one engine, for all its connections.

    Attributes:
        handlers: Functions by operation.
    """

    def __init__(self, engine: Engine, shards: ShardOperations, cursors: CursorQuotas) -> None:
        self._engine = engine
        self._cursors = cursors
        self._shards = shards
        self.handlers: dict[int, RequestHandler] = {
            Op.CURSOR_GET: self._get_cursor,
            Op.CURSOR_LIST: self._list_cursors,
            Op.CURSOR_COMMIT: self._commit_cursor,
            Op.CURSOR_DELETE: self._delete_cursor,
            Op.STATE_GET: self._get_state,
            Op.STATE_PUT: self._put_state,
            Op.STATE_DELETE: self._delete_state,
            Op.STATE_SCAN: self._scan_state,
            Op.COMMIT: self._commit,
            Op.PRODUCER_OPEN: self._open_producer,
        }

    # Cursors

    def _get_cursor(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorRequest = decode_request(Op.CURSOR_GET, body)
        Use(Operation.GET_CURSOR, shard=request.shard).require(connection.principal)
        cursor = self._engine.get_cursor(request.shard, request.name)
        connection.reply(build(Op.CURSOR_GET, correlation, encode(messages.CursorReply(cursor))))

    def _list_cursors(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorListRequest = decode_request(Op.CURSOR_LIST, body)
        cursors, more = self._shards.cursor_page(connection, request.shard, request.after, request.limit)
        connection.reply(build(Op.CURSOR_LIST, correlation, encode(messages.CursorListReply(cursors, more))))

    async def _commit_cursor(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorCommitRequest = decode_request(Op.CURSOR_COMMIT, body)
        principal = connection.principal
        Use(Operation.CHANGE_CURSOR, shard=request.shard, cursor=request.name).require(principal)
        if limit := connection.allowance.cursors:
            await self._cursors.check_cursor(principal.name, limit, request.shard, request.name)
        cursor = await self._engine.commit_cursor(request.shard, request.name, request.offset, request.expected_version)
        connection.reply(build(Op.CURSOR_COMMIT, correlation, encode(cursor)))

    async def _delete_cursor(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CursorDeleteRequest = decode_request(Op.CURSOR_DELETE, body)
        await self._shards.delete_cursor(connection, request.shard, request.name, request.expected_version)
        connection.reply(build(Op.CURSOR_DELETE, correlation))

    # State and producers

    def _get_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StateGetRequest = decode_request(Op.STATE_GET, body)
        Use(Operation.GET_STATE, key=request.key).require(connection.principal)
        value = self._engine.get_state(request.key)
        connection.reply(build(Op.STATE_GET, correlation, encode(messages.StateGetReply(value))))

    async def _put_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StatePutRequest = decode_request(Op.STATE_PUT, body)
        Use(Operation.CHANGE_STATE, key=request.key).require(connection.principal)
        value = await self._engine.put_state(
            request.key, request.value, request.expected_version, request.expires_at_us
        )
        connection.reply(build(Op.STATE_PUT, correlation, encode(value)))

    async def _delete_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StateDeleteRequest = decode_request(Op.STATE_DELETE, body)
        Use(Operation.CHANGE_STATE, key=request.key).require(connection.principal)
        await self._engine.delete_state(request.key, request.expected_version)
        connection.reply(build(Op.STATE_DELETE, correlation))

    async def _commit(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.CommitRequest = decode_request(Op.COMMIT, body)
        for append in request.appends:
            Use(Operation.APPEND, shard=append.shard).require(connection.principal)
            if connection.meter is not None:
                connection.meter.check_room(append.shard)
        for key in (*(put.key for put in request.puts), *(delete.key for delete in request.deletes)):
            Use(Operation.CHANGE_STATE, key=key).require(connection.principal)
        for check in request.cursors:
            Use(Operation.GET_CURSOR, shard=check.shard).require(connection.principal)
        appended, values = await self._engine.commit(
            [(one.shard, one.batch) for one in request.appends],
            [Put(one.key, one.value, one.expected_version, one.expires_at_us) for one in request.puts],
            [Delete(one.key, one.expected_version) for one in request.deletes],
            [CursorCheck(one.shard, one.name, one.max_offset) for one in request.cursors],
            connection.allowance.memory,
        )
        reply = messages.CommitReply(
            [messages.BatchAppended(one.level, one.base_offset) for one in appended],
            # The client knows the values: only their versions are new.
            [attrs.evolve(one, value=b"") for one in values],
        )
        connection.reply(build(Op.COMMIT, correlation, encode(reply)))

    async def _scan_state(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.StateScanRequest = decode_request(Op.STATE_SCAN, body)
        Use(Operation.SCAN_STATE, prefix=request.prefix).require(connection.principal)
        limit = max(1, min(request.limit, LARGEST_PAGE))
        # No more is read than fits into a reply; the value that exceeds this bound is removed again if it does not fit.
        room = self._engine.config.limits.max_frame_bytes // 2
        output = connection.output
        await output.reserve(room)
        try:
            values, more = await self._engine.scan_state(request.prefix, request.after, limit, room)
            page = self._fit(values)
            reply = messages.StateScanReply(page, more or len(page) < len(values))
            connection.reply(build(Op.STATE_SCAN, correlation, encode(reply)))
        finally:
            output.unreserve(room)

    def _fit(self, values: list[StateValue]) -> list[StateValue]:
        """As many values as fit into a frame, at least one."""
        room = self._engine.config.limits.max_frame_bytes // 2
        for at, value in enumerate(values):
            room -= len(value.key) + len(value.value) + _BESIDES_BYTES
            if room < 0 and at:
                return values[:at]
        return values

    async def _open_producer(self, connection: Connection, correlation: int, body: bytes) -> None:
        request: messages.ProducerOpenRequest = decode_request(Op.PRODUCER_OPEN, body)
        Use(Operation.OPEN_PRODUCER).require(connection.principal)
        name = connection.producers + request.name
        if connection.meter is not None or connection.allowance.producers:
            counts = self._engine.new_producers(name, connection.producers)
            if counts is not None:
                connection.allowance.check_new_producer(counts[0])
                if connection.meter is not None:
                    connection.meter.check_new_producer(*counts)
        identity = await self._engine.open_producer(name)
        self._engine.producer_opened(identity, connection.number)
        connection.reply(build(Op.PRODUCER_OPEN, correlation, encode(identity)))
