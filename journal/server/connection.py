"""One client's connection: frames in, replies, acknowledgements and pushes out.

`take_frames` is the hot loop: it works on everything that one receive brought. How bytes come and go (TCP, WebSocket)
is the business of `tcp` and `websocket`; what the operations do, of `operations`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import structlog
import trio
from structlog.contextvars import bound_contextvars

from journal.access.authorization import EVERYBODY, Action, Principal, SentAway, require
from journal.access.quotas import Meter
from journal.engine import Engine
from journal.net.protocol_sniffing import ENOUGH_BYTES, SniffedProtocol, spoken_in
from journal.protocol.errors import ProtocolError, RemoteProtocolError, UnknownHandleError, encode_error
from journal.protocol.frames import APPEND_HEAD, APPENDED_HEAD, HEADER, HELLO_MAX_FRAME_BYTES, Op
from journal.server.output import Output
from journal.server.pushing import FramedPushes, Pushing
from journal.server.receive_buffers import ReceiveBuffer
from journal.server.silence import MEMBER_PATIENCE_S, Silence, promised_s, reason_of
from journal.server.statistics import ServerStatistics
from journal.server.tls import speaks_no_tls
from shards.errors import OverloadedError, StorageError, StorageFailedError
from shards.segments.read_slices import Place
from shards.segments.shard import Shard

_REQUESTS_AT_ONCE = 1024
_TURN_S = 0.002
_APPEND = int(Op.APPEND)
_HELLO = int(Op.HELLO)

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class BrokenFrameError(RemoteProtocolError):
    """A frame whose fixed body has the wrong size: sender and receiver no longer mean the same, so this ends it."""


class Operations(Protocol):
    """What a connection does with every frame that is not an append."""

    def handle(self, connection: Connection, op: int, correlation: int, body: bytes) -> Awaitable[None] | None:
        """Carry a request out at once, or give what has to be awaited for it."""


RequestHandler: TypeAlias = Callable[["Connection", int, bytes], Awaitable[None] | None]
"""Carries out a request of one operation, given its correlation and body, as `Operations.handle` does."""


class Connection:
    """State of one connection.

    Attributes:
        number: Its number on this server.
        peer: Where the client is, ``HOST:PORT``.
        certificate_name: Common name of the certificate that it showed; empty for none.
        is_greeting: HELLO is being looked at.
        greeted: HELLO was accepted.
        refusal: Why it was not, if that was found out later.
        client: Name that the client gave itself.
        principal: Who the client is, once it is greeted.
        producers: How the names of its producers begin for the engine; see `Admission.producers_of`.
        meter: What its traffic is counted on; None if nothing bounds it.
        shards: Shard of each handle; None where one was closed.
        handles: The same without those to which the client may append nothing now.
        readable: The same without those that the client may not read.
        handle_of: Handle of each open shard, by shard id.
        places: Where the last fetch of a shard ended, by shard id.
        output: What goes out.
        pushing: Its subscriptions.
        inflight_bytes: Appended bytes that wait for their commit.
        is_paused: `take_frames` stopped before a whole frame: there is no room for its reply, or it is others' turn.
        polls: Waits that end when the server stops: of fetches for records, of seals for files.
        receiving: Ends the receiving when it is cancelled.
        silence: Whether the peer still sends something.
    """

    def __init__(
        self,
        number: int,
        engine: Engine,
        operations: Operations,
        output: Output,
        statistics: ServerStatistics,
        nursery: trio.Nursery,
        report: Callable[[Exception, int], None],
        *,
        peer: str = "",
        certificate_name: str = "",
        on_greeted: Callable[[], None] = lambda: None,
    ) -> None:
        self.number = number
        self.peer = peer
        self.certificate_name = certificate_name
        self.engine = engine
        self.output = output
        self.nursery = nursery
        self.statistics = statistics
        self.pushing = Pushing(output, FramedPushes(output, engine.config.limits.max_frame_bytes))
        self.shards: list[Shard | None] = []
        self.handles: list[Shard | None] = []
        self.readable: list[Shard | None] = []
        self.handle_of: dict[int, int] = {}
        self.places: dict[int, Place] = {}
        self.is_greeting = False
        self.greeted = False
        self.refusal: StorageError | None = None
        self.client = ""
        self.principal: Principal = EVERYBODY
        self.producers = ""
        self.meter: Meter | None = None
        self.inflight_bytes = 0
        self.is_paused = False
        self.polls: set[trio.CancelScope] = set()
        self.receiving = trio.CancelScope()
        self.silence = Silence()
        self._watches_silence = False
        self._operations = operations
        self._report = report
        self._on_greeted = on_greeted
        self._max_frame_bytes = HELLO_MAX_FRAME_BYTES
        self._requests = 0
        self._was_refused = False
        self._progress = trio.lowlevel.ParkingLot()
        self._limit = engine.config.limits.max_inflight_bytes_per_connection

    def expect_heartbeats(self, heartbeat_ms: int) -> None:
        """The client has promised to say something now and then."""
        if heartbeat_ms:
            silence_s = promised_s(heartbeat_ms)
            # A client that takes nothing keeps the server from listening, and is gone as well.
            self.output.expect_progress(silence_s)
            self._watch_silence(silence_s, lambda: True, is_promise=True)

    def greet(self, client: str, principal: Principal, meter: Meter | None = None) -> None:
        """HELLO was accepted: the real limits hold from here on."""
        self.is_greeting = False
        self.greeted = True
        self.client = client
        self.principal = principal
        self.meter = self.pushing.meter = meter
        self._on_greeted()
        self._max_frame_bytes = self.engine.config.limits.max_frame_bytes

    def revoke(self, error: StorageError) -> None:
        """The client may stay no longer: tell it why, and end the connection."""
        if self.refusal is not None:
            return
        self.refusal = error
        # The connection ends when it has been told; until then it gets nothing of what comes.
        self.renew(SentAway(self.principal.name))
        self.pushing.close()
        self.tell(error)
        self.receiving.cancel()

    def watch_members(self) -> None:
        """Close the connection if it has members of groups and the peer sends nothing any more."""
        self._watch_silence(MEMBER_PATIENCE_S, lambda: self.pushing.has_members, is_promise=False)

    def _watch_silence(self, silence_s: float, counts: Callable[[], bool], *, is_promise: bool) -> None:
        if not self._watches_silence:
            self._watches_silence = True
            reason = reason_of(silence_s, is_promise=is_promise)
            self.nursery.start_soon(self._end_when_silent, silence_s, counts, reason)

    async def _end_when_silent(self, silence_s: float, counts: Callable[[], bool], reason: str) -> None:
        await self.silence.wait(silence_s, counts)
        self.statistics.count_closed("silent")
        log.warning("connection closed", client=self.client, reason=reason)
        self.pushing.close()
        self.tell(ProtocolError(reason))
        self.receiving.cancel()

    # Handles

    def add_handle(self, shard: Shard) -> int:
        """Give the shard the next handle."""
        handle = self.handle_of[shard.shard_id] = len(self.shards)
        self.shards.append(shard)
        self.handles.append(None)
        self.readable.append(None)
        self._grant(handle)
        return handle

    def close_handle(self, handle: int) -> None:
        """Take a handle back.

        Raises:
            UnknownHandleError: It was not given, or was closed.
        """
        shard = self.shards[handle] if handle < len(self.shards) else None
        if shard is None:
            raise unknown_handle(handle)
        self.shards[handle] = self.handles[handle] = self.readable[handle] = None
        del self.handle_of[shard.shard_id]
        self.places.pop(shard.shard_id, None)

    def _grant(self, handle: int) -> None:
        """Find out once what may be done with a handle, and not for every batch."""
        shard = self.shards[handle]
        assert shard is not None  # closed ones are nobody's
        may_append = self.principal.may(Action.APPEND, shard.name)
        has_room = self.meter is None or self.meter.has_room(shard.name)
        self.handles[handle] = shard if may_append and has_room else None
        self.readable[handle] = shard if self.principal.may(Action.READ, shard.name) else None

    def grant_again(self) -> None:
        """What the client may do, or what is left of its quotas, has changed."""
        for handle in self.handle_of.values():
            self._grant(handle)

    def renew(self, principal: Principal) -> None:
        """Go on as the same principal with other rights."""
        self.principal = principal
        self.grant_again()

    def refused_handle(self, handle: int, action: Action) -> StorageError:
        """Why something cannot be done with a handle."""
        shard = self.shards[handle] if handle < len(self.shards) else None
        if shard is None or shard.deleted:
            return unknown_handle(handle)
        try:
            require(self.principal, shard.name, action)
            if self.meter is not None and action is Action.APPEND:
                self.meter.check_room(shard.name)
        except StorageError as error:
            return error
        # There is room again, which the handles will be told of in a moment.
        return OverloadedError(f"shard {shard.name!r} may be appended to again in a moment")

    # Acknowledgements (the connection is an AckSink)

    def acknowledge(self, acks: bytearray) -> None:
        """Send one combined acknowledgement."""
        size = APPENDED_HEAD.size + len(acks)
        self.statistics.appends += len(acks) >> 4
        if self.meter is not None:
            self.meter.spend(len(acks) >> 4, 0)
        self.output.send((APPENDED_HEAD.pack(size, Op.APPENDED, 0, 0) + acks,), size)

    def fail(self, error: StorageFailedError) -> None:
        """Outstanding appends will never be acknowledged: end the connection, so that the client asks again."""
        self.output.abandon()

    def tell(self, error: StorageError) -> None:
        """Say why the connection ends, unless a refused HELLO has said it."""
        if not self._was_refused:
            self.reply(encode_error(0, 0, error))

    def reply(self, frame: bytes) -> None:
        """Send one whole frame."""
        self.output.send((frame,), len(frame))

    # Receiving

    def take_frames(self, buffer: ReceiveBuffer, start: int, end: int) -> int:
        """Carry out the complete frames in ``buffer.view[start:end]``; gives where the first one left begins.

        That is the first incomplete one, or, when `is_paused` is set, the one to go on with once there is room and
        others have had their turn.

        Raises:
            RemoteProtocolError: The bytes are not frames. Nothing behind them is looked at.
        """
        view = buffer.view
        engine = self.engine
        unpack = APPEND_HEAD.unpack_from
        handles = self.handles
        appended = 0
        first = start
        turn_ends = time.perf_counter() + _TURN_S
        # Plain appends are taken many at a time; where they stop, one frame is looked at by itself.
        may_run = self.greeted
        self.is_paused = False
        appender = engine.begin_chunk()
        try:
            while end - start >= HEADER.size:
                if may_run:
                    taken = appender.append_run(view, start, end, handles, self)
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
                if op == _APPEND and self.greeted:
                    shard: Shard | None = None
                    if length < APPEND_HEAD.size:
                        raise BrokenFrameError(f"APPEND frame of {length} bytes: its head alone has {APPEND_HEAD.size}")
                    try:
                        shard = handles[handle] if handle < len(handles) else None
                        if shard is None:
                            raise self.refused_handle(handle, Action.APPEND)
                        # In memory mode every batch is looked at by itself.
                        may_run = not shard.in_memory_mode
                        appender.append(view, start, stop, handles, self)
                        appended += length
                    except StorageError as error:
                        self._refuse(
                            op, correlation, unknown_handle(handle) if shard is not None and shard.deleted else error
                        )
                else:
                    if not self._may_request(op) or time.perf_counter() > turn_ends:
                        self.is_paused = True
                        break
                    self._request(op, correlation, bytes(view[start + HEADER.size : stop]))
                    may_run = self.greeted
                start = stop
        finally:
            if appended:
                self._hold(buffer, appended)
            appender.finish()
            if self.meter is not None:
                self.meter.spend(0, start - first)
        return start

    def _no_frame(self, length: int, first: bytes) -> str:
        spoken = SniffedProtocol.OTHER if self.greeted else spoken_in(first)
        if spoken is SniffedProtocol.TLS:
            return speaks_no_tls("tcp")
        told = f"frame of {length} bytes: a frame has {HEADER.size} to {self._max_frame_bytes} bytes"
        if spoken is SniffedProtocol.HTTP:
            told += "; HTTP is spoken at listen.http, and WebSocket at listen.websocket"
        return told

    def _hold(self, buffer: ReceiveBuffer, size_bytes: int) -> None:
        """Keep the buffer until the group that now lies in it is committed."""
        buffer.hold()
        self.inflight_bytes += size_bytes
        self.statistics.append_bytes += size_bytes

        def committed() -> None:
            buffer.release()
            self.inflight_bytes -= size_bytes
            self._progress.unpark_all()

        self.engine.hold_until_committed(committed)

    def _may_request(self, op: int) -> bool:
        """Whether a request may be looked at now.

        Raises:
            RemoteProtocolError: It comes before HELLO.
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
        except Exception as error:  # noqa: BLE001 it ends this request or connection, no other
            self._refuse(op, correlation, error)
            if self.is_greeting:
                self._was_refused = True
                self.refusal = error if isinstance(error, StorageError) else None
                self.receiving.cancel()
        finally:
            self._requests -= 1
            self._progress.unpark_all()

    def _refuse(self, op: int, correlation: int, error: Exception) -> None:
        if isinstance(error, RemoteProtocolError):
            # The body made no sense; the frame was whole, so the connection can go on.
            self.statistics.count_error(error)
        elif isinstance(error, StorageError):
            self.statistics.count_error(error)
        else:
            with bound_contextvars(operation=Op(op).name, correlation=correlation):
                self._report(error, self.number)
        self.reply(encode_error(correlation, op, error))

    async def wait_for_room(self) -> None:
        """Return when the connection may be read from: its own limits and the engine's budgets allow more."""
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
            self.engine.has_room
            and self.output.has_room
            and self.inflight_bytes <= self._limit
            and self._requests < _REQUESTS_AT_ONCE
            and not self.is_greeting
            and (self.meter is None or not self.meter.has_overspent)
        )

    async def settle(self) -> None:
        """Nothing more is received: return when every request is answered; fetches wait no longer for records."""
        for poll in self.polls:
            poll.cancel()
        while self._requests or self.inflight_bytes:
            await self._progress.park()

    def close(self) -> None:
        """The client is gone: end its subscriptions."""
        self.pushing.close()
        self.output.abandon()
        self.engine.connection_closed(self.number)


def unknown_handle(handle: int) -> UnknownHandleError:
    """The error for a handle that was not given, was closed, or whose shard was deleted."""
    return UnknownHandleError(
        f"handle {handle} is not open on this connection, or its shard was deleted; open the shard"
    )
