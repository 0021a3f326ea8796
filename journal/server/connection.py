"""One client's connection: frames in; replies, acknowledgements and pushes out.

`take_frames` is the hot loop: it processes everything that one receive returned. `tcp` and `websocket` move the bytes;
`operations` carries out the requests.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import structlog
from structlog.contextvars import bound_contextvars

from journal.access.authorization import Principal
from journal.access.quotas import Meter
from journal.access.rights import Operation, Use
from journal.engine.write.appender import Appender
from journal.engine.write.no_appends import NoAppends
from journal.net.protocol_sniffing import ENOUGH_BYTES, SniffedProtocol, spoken_in
from journal.protocol.errors import ProtocolError, RemoteProtocolError, UnknownHandleError, encode_error
from journal.protocol.frames import APPEND_HEAD, APPENDED_HEAD, HEADER, HELLO_MAX_FRAME_BYTES, Op
from journal.server.client_connection import Accepted, ClientConnection
from journal.server.pushing import FramedPushes, Pushing
from journal.server.receive_buffers import ReceiveBuffer
from journal.server.silence import MEMBER_PATIENCE_S, Silence, promised_s, reason_of
from journal.server.tls import speaks_no_tls
from shards.errors import NotOwnerError, OverloadedError, StorageError, StorageFailedError
from shards.segments.read_slices import Place
from shards.segments.shard import Shard

_REQUESTS_AT_ONCE = 1024
_TURN_S = 0.002
_LOOK_PAUSE = 20
_APPEND = int(Op.APPEND)
_HELLO = int(Op.HELLO)

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class BrokenFrameError(RemoteProtocolError):
    """A frame whose fixed body has the wrong size: the two sides disagree about the format, so the connection ends."""


class Operations(Protocol):
    """Handles every frame of a connection that is not an append."""

    def handle(self, connection: Connection, op: int, correlation: int, body: bytes) -> Awaitable[None] | None:
        """Carry out a request at once, or return what has to be awaited for it."""

    def may_change(self, op: int) -> bool:
        """Whether an operation may write something into the journal."""

    def note_refused(self, connection: Connection, op: int, error: Exception) -> None:
        """Record that a request was refused for lack of rights, if that is the error."""


RequestHandler: TypeAlias = Callable[["Connection", int, bytes], Awaitable[None] | None]
"""Carries out a request of one operation, given its correlation and body, as `Operations.handle` does."""


class Connection(ClientConnection):
    """State of one connection.

    Attributes:
        is_greeting: HELLO is being processed.
        producers: Prefix of the names of its producers in the engine; see `Login.producers_of`.
        shards: Shard of each handle; None where one was closed.
        handles: The same without those to which the client may not append now.
        readable: The same without those that the client may not read.
        handle_of: Handle of each open shard, by shard id.
        opening_count: Shards that are being created, and get a handle then.
        has_written: The client has appended, or asked for another change. From then on, nothing more is received of it
            while the engine accepts no appends. Others go on, since a long checkpoint must not end reads.
        places: Where the last fetch of a shard ended, by shard id.
        is_paused: `take_frames` stopped before a complete frame: there is no room for its reply, or other tasks must
            run.
        silence: Measures how long the client has sent nothing.
    """

    def __init__(self, accepted: Accepted, operations: Operations) -> None:
        limits = accepted.engine.config.limits
        super().__init__(accepted, Pushing(accepted.output, FramedPushes(accepted.output, limits.max_frame_bytes)))
        self.shards: list[Shard | None] = []
        self.handles: list[Shard | None] = []
        self.readable: list[Shard | None] = []
        self.handle_of: dict[int, int] = {}
        self.places: dict[int, Place] = {}
        self.opening_count = 0
        self.has_written = False
        self.is_greeting = False
        self.producers = ""
        self.is_paused = False
        self.silence = Silence()
        self._watches_silence = False
        self._next_look_s = 0.0
        self._operations = operations
        self._max_frame_bytes = HELLO_MAX_FRAME_BYTES
        self._limit = limits.max_inflight_bytes_per_connection

    def expect_heartbeats(self, heartbeat_ms: int) -> None:
        """Note that the client has promised to send heartbeats."""
        if heartbeat_ms:
            silence_s = promised_s(heartbeat_ms)
            # A client that reads nothing blocks the server from reading, and is treated as gone, too.
            self.output.expect_progress(silence_s)
            self._watch_silence(silence_s, lambda: True, is_promise=True)

    def greet(self, client: str, principal: Principal, meter: Meter | None = None) -> None:
        """Note that HELLO was accepted: from now on the configured limits apply."""
        self.is_greeting = False
        super().greet(client, principal, meter)
        self._max_frame_bytes = self.engine.config.limits.max_frame_bytes

    def watch_members(self) -> None:
        """Close the connection if it has members of groups and the client sends nothing any more."""
        self._watch_silence(MEMBER_PATIENCE_S, lambda: self.pushing.has_members, is_promise=False)

    def _watch_silence(self, silence_s: float, counts: Callable[[], bool], *, is_promise: bool) -> None:
        if not self._watches_silence:
            self._watches_silence = True
            reason = reason_of(silence_s, is_promise=is_promise)
            self.nursery.start_soon(self._end_when_silent, silence_s, counts, reason)

    async def _end_when_silent(self, silence_s: float, counts: Callable[[], bool], reason: str) -> None:
        await self.silence.wait(silence_s, counts)
        self.statistics.count_closed("silent")
        log.warning("connection closed", **self.named, reason=reason)
        self.pushing.close()
        self.tell(ProtocolError(reason))
        self.receiving.cancel()

    # Handles

    def add_handle(self, shard: Shard) -> int:
        """Assign the next handle to the shard.

        No number is given out twice: a request with one that was closed must not reach another shard.
        """
        handle = self.handle_of[shard.shard_id] = len(self.shards)
        self.shards.append(shard)
        self.handles.append(None)
        self.readable.append(None)
        self._grant(handle)
        return handle

    def close_handle(self, handle: int) -> None:
        """Close a handle.

        Raises:
            UnknownHandleError: It does not exist, or was closed.
        """
        shard = self.shards[handle] if handle < len(self.shards) else None
        if shard is None:
            raise unknown_handle(handle)
        self.shards[handle] = self.handles[handle] = self.readable[handle] = None
        del self.handle_of[shard.shard_id]
        self.places.pop(shard.shard_id, None)

    def close_deleted(self) -> int:
        """Close the handles of shards that were deleted; returns how many were found.

        After a look it does nothing for 20 times as long as the look took: a connection may have very many handles, and
        a client may send request after request.
        """
        began_s = time.perf_counter()
        if began_s < self._next_look_s:
            return 0
        deleted = [handle for handle in self.handle_of.values() if (shard := self.shards[handle]) and shard.deleted]
        for handle in deleted:
            self.close_handle(handle)
        ended_s = time.perf_counter()
        self._next_look_s = ended_s + _LOOK_PAUSE * (ended_s - began_s)
        return len(deleted)

    def _grant(self, handle: int) -> None:
        """Check the client's rights to a handle once, rather than for every batch."""
        shard = self.shards[handle]
        assert shard is not None  # the handle is open
        # A follower takes no appends; the handles are granted again when it becomes the owner.
        may_append = not self.engine.is_following and Use(Operation.APPEND, shard=shard.name).is_allowed(self.principal)
        may_read = Use(Operation.READ, shard=shard.name).is_allowed(self.principal)
        has_room = self.meter is None or self.meter.has_room(shard.name)
        self.handles[handle] = shard if may_append and has_room else None
        self.readable[handle] = shard if may_read else None

    def grant_again(self) -> None:
        """Check the rights to all handles again: the rights, or the quotas, have changed."""
        for handle in self.handle_of.values():
            self._grant(handle)

    def renew(self, principal: Principal) -> None:
        super().renew(principal)
        self.grant_again()

    def refused_handle(self, handle: int, operation: Operation) -> StorageError:
        """The error for an operation, to append or to read, that a handle does not permit."""
        shard = self.shards[handle] if handle < len(self.shards) else None
        if shard is None or shard.deleted:
            return unknown_handle(handle)
        try:
            Use(operation, shard=shard.name).require(self.principal)
            if self.meter is not None and operation is Operation.APPEND:
                self.meter.check_room(shard.name)
        except StorageError as error:
            return error
        if operation is Operation.APPEND and self.engine.is_following:
            return NotOwnerError(self.engine.owner)
        # There is room again; the handles are updated in a moment.
        return OverloadedError(f"shard {shard.name!r} can be appended to again in a moment")

    # Acknowledgements (the connection is an AckSink)

    def acknowledge(self, acks: bytearray) -> None:
        """Send one combined acknowledgement."""
        size = APPENDED_HEAD.size + len(acks)
        self.statistics.appends += len(acks) >> 4
        if self.meter is not None:
            self.meter.spend(len(acks) >> 4, 0)
        self.output.send((APPENDED_HEAD.pack(size, Op.APPENDED, 0, 0) + acks,), size)

    def fail(self, error: StorageFailedError) -> None:
        """End the connection: outstanding appends will never be acknowledged, so the client has to send them again."""
        self.output.abandon()

    def turn_away(self, op: int, correlation: int, error: StorageError) -> None:
        """Refuse the greeting of a client that has to connect to another server. That is no fault of its."""
        self._was_refused = True
        self.reply(encode_error(correlation, op, error))
        self.receiving.cancel()

    def tell(self, error: StorageError) -> None:
        if not self._was_refused:
            self.reply(encode_error(0, 0, error))

    def reply(self, frame: bytes) -> None:
        """Send one complete frame."""
        self.output.send((frame,), len(frame))

    # Receiving

    def take_frames(self, buffer: ReceiveBuffer, start: int, end: int) -> int:
        """Carry out the complete frames in ``buffer.view[start:end]``; returns the position of the first remaining one.

        That is the first incomplete frame or, with `is_paused`, the next frame to process once there is room and other
        tasks have run.

        Raises:
            RemoteProtocolError: The bytes are not frames. The bytes after them are not processed.
        """
        view = buffer.view
        engine = self.engine
        unpack = APPEND_HEAD.unpack_from
        handles = self.handles
        appended = 0
        first = start
        turn_ends = time.perf_counter() + _TURN_S
        # While the engine accepts no appends, the reads of a client that has only read so far are carried out, up to
        # its first change.
        is_held = not self.has_written and not engine.has_room
        # Plain appends are processed in runs; other frames one at a time.
        may_run = self.greeted and not is_held
        self.is_paused = False
        appender = engine.begin_chunk(self.allowance.memory)
        try:
            while end - start >= HEADER.size:
                if may_run:
                    try:
                        taken = appender.append_run(view, start, end, handles, self)
                    except BaseException:
                        # What was appended before is written from the buffer nevertheless.
                        appended += max(0, appender.run_end - start)
                        raise
                    appended += taken - start
                    start = taken
                    if end - start < HEADER.size:
                        break
                length, op, _, correlation, handle, _, _ = unpack(view, start)
                if not HEADER.size <= length <= self._max_frame_bytes:
                    raise RemoteProtocolError(self._no_frame(length, bytes(view[start : start + ENOUGH_BYTES])))
                stop = start + length
                if stop > end:
                    break
                if not self.has_written and self._holds_back(op, is_held=is_held):
                    break
                if op == _APPEND and self.greeted:
                    shard = self._append_one(appender, view, start, stop, correlation, handle)
                    if shard is not None:
                        appended += length
                        # In memory mode every batch is processed alone.
                        may_run = not shard.in_memory_mode
                else:
                    if not self._may_request(op) or time.perf_counter() > turn_ends:
                        self.is_paused = True
                        break
                    self._request(op, correlation, bytes(view[start + HEADER.size : stop]))
                    may_run = self.greeted and not is_held
                start = stop
        finally:
            if appended:
                self._hold(buffer, appended)
            appender.finish()
            if self.meter is not None:
                self.meter.spend(0, start - first)
        return start

    def _append_one(
        self,
        appender: Appender | NoAppends,
        view: memoryview,
        start: int,
        stop: int,
        correlation: int,
        handle: int,
    ) -> Shard | None:
        """Carry out the append in one frame; returns its shard, or None if it was refused.

        Raises:
            BrokenFrameError: It is shorter than its head.
        """
        if stop - start < APPEND_HEAD.size:
            raise BrokenFrameError(f"APPEND frame of {stop - start} bytes: its head alone has {APPEND_HEAD.size}")
        handles = self.handles
        shard = handles[handle] if handle < len(handles) else None
        try:
            if shard is None:
                raise self.refused_handle(handle, Operation.APPEND)
            appender.append(view, start, stop, handles, self)
        except StorageError as error:
            is_gone = shard is not None and shard.deleted
            self._refuse(_APPEND, correlation, unknown_handle(handle) if is_gone else error)
            return None
        return shard

    def _holds_back(self, op: int, *, is_held: bool) -> bool:
        """Note the first change of a client; returns whether it has to wait, as the engine accepts none."""
        self.has_written = op == _APPEND or self._operations.may_change(op)
        self.is_paused = is_held and self.has_written
        return self.is_paused

    def _no_frame(self, length: int, first: bytes) -> str:
        spoken = SniffedProtocol.OTHER if self.greeted else spoken_in(first)
        if spoken is SniffedProtocol.TLS:
            return speaks_no_tls("tcp")
        if spoken is SniffedProtocol.MQTT:
            return "an MQTT client has connected to the journal server; it must connect to a broker (`journal-broker`)"
        told = f"frame of {length} bytes: a frame has {HEADER.size} to {self._max_frame_bytes} bytes"
        if spoken is SniffedProtocol.HTTP:
            told += "; use listen.http for HTTP and listen.websocket for WebSocket"
        return told

    def _hold(self, buffer: ReceiveBuffer, size_bytes: int) -> None:
        """Keep the buffer until the group that is partly stored in it is committed, or copied out of it."""
        buffer.hold()
        self.has_written = True
        self.inflight_bytes += size_bytes
        self.statistics.append_bytes += size_bytes

        def committed() -> None:
            self.inflight_bytes -= size_bytes
            self._progress.unpark_all()

        self.engine.hold_until_committed(committed, buffer.release)

    def _may_request(self, op: int) -> bool:
        """Whether a request may be carried out now.

        Raises:
            RemoteProtocolError: It came before HELLO.
        """
        if op != _HELLO and not self.greeted and not self.is_greeting:
            raise RemoteProtocolError(f"the first frame must be HELLO, not operation {op}")
        return not self.is_greeting and self._requests < _REQUESTS_AT_ONCE and self.output.has_room

    def _request(self, op: int, correlation: int, body: bytes) -> None:
        if self.meter is not None:
            self.meter.spend(1, 0)
        try:
            pending = self._operations.handle(self, op, correlation, body)
        except BrokenFrameError:
            raise
        except Exception as error:
            self._refuse(op, correlation, error)
            if not self.greeted:
                self._was_refused = True
                raise RemoteProtocolError(f"HELLO was refused: {error}") from error
            return
        if pending is not None:
            self._requests += 1
            self.nursery.start_soon(self._finish_request, op, correlation, pending)

    async def _finish_request(self, op: int, correlation: int, pending: Awaitable[None]) -> None:
        try:
            await pending
        except Exception as error:  # noqa: BLE001 it ends this request or connection only
            self._refuse(op, correlation, error)
            if self.is_greeting:
                self._was_refused = True
                self.refusal = error if isinstance(error, StorageError) else None
                self.receiving.cancel()
        finally:
            self._requests -= 1
            self._progress.unpark_all()

    def _refuse(self, op: int, correlation: int, error: Exception) -> None:
        if isinstance(error, NotOwnerError) and not self.engine.is_following:
            # Whether it was carried out is known to the next owner alone, as after a broken connection.
            self.output.abandon()
            return
        if isinstance(error, RemoteProtocolError):
            # The body is invalid; the frame was complete, so the connection can continue.
            self.statistics.count_error(error)
        elif isinstance(error, StorageError):
            self.statistics.count_error(error)
            self._operations.note_refused(self, op, error)
        else:
            with bound_contextvars(operation=Op(op).name, correlation=correlation):
                self._report(error, self.number)
        self.reply(encode_error(correlation, op, error))

    async def wait_for_room(self) -> None:
        """Return when more may be received: the connection's own limits and the engine's budgets allow it."""
        if self.has_written:
            await self.engine.wait_for_room()
        await self.output.wait_for_room()
        if self.meter is not None:
            await self.meter.wait()
        while self.inflight_bytes > self._limit or self._requests >= _REQUESTS_AT_ONCE or self.is_greeting:
            await self._progress.park()

    @property
    def has_room(self) -> bool:
        """Whether `wait_for_room` would return at once."""
        return (
            (not self.has_written or self.engine.has_room)
            and self.output.has_room
            and self.inflight_bytes <= self._limit
            and self._requests < _REQUESTS_AT_ONCE
            and not self.is_greeting
            and (self.meter is None or not self.meter.has_overspent)
        )

    async def settle(self) -> None:
        """After the last receive: return when every request is answered. Fetches do not wait for records any more."""
        for poll in self.polls:
            poll.cancel()
        while self._requests or self.inflight_bytes:
            await self._progress.park()

    def close(self) -> None:
        """End the subscriptions: the client has disconnected."""
        self.pushing.close()
        self.output.abandon()
        self.engine.connection_closed(self.number)


def unknown_handle(handle: int) -> UnknownHandleError:
    """The error for a handle that does not exist, was closed, or whose shard was deleted."""
    return UnknownHandleError(
        f"handle {handle} is not open on this connection, or its shard was deleted; open the shard"
    )
