"""One session over one transport: HELLO, calls by correlation id, one writer, one reader. It ends with its transport.

Reconnecting and subscribing again are in `journal.client.client`, appends in `journal.client.appends`. Cancelling a
caller never affects the stream: only the writer task sends, and a reply for which no caller waits any more is dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import trio

from journal.client.transport import Transport
from journal.protocol import Frame, FrameParser, Op, RemoteProtocolError, decode_error, decode_reply, encode, frames
from journal.protocol.errors import ConnectionLostError
from journal.protocol.messages import HelloReply, HelloRequest, ShardEvent, other_version
from shards.errors import FormatVersionError, LimitExceededError, StorageError

RECEIVE_BYTES: Final = 256 * 1024
SEND_BYTES: Final = 1 << 20
MAX_FRAME_BYTES: Final = 256 << 20

HEARTBEAT_S: Final = 5.0
"""How often a client sends something at least. The server waits three times as long."""

# Called with the error, or with None and the body of the reply.
Done = Callable[[StorageError | None, bytes | memoryview], None]


class Listener(Protocol):
    """Receives what the server sends without a request, and provides appends to send. No method may block or raise."""

    def appended(self, acks: Iterator[tuple[int, int, int, int, int]]) -> None:
        """Called when appends were acknowledged: (correlation, level, flags, reserved, base_offset) each."""

    def append_refused(self, correlation: int, error: StorageError) -> None:
        """Called when one append was refused."""

    def pushed(self, push: frames.Push) -> None:
        """Called with batches of a subscription."""

    def shard_event(self, event: ShardEvent) -> None:
        """Called when the set of shards of a subscription has changed."""

    def fill(self, parts: list[bytes], limit_bytes: int) -> None:
        """Add frames to send, up to about ``limit_bytes``; called whenever the writer has nothing else to send."""


class Connection:
    """A session. `run` it in a task; `hello` first, then anything else.

    Args:
        transport: A connected transport; the connection closes it.
        listener: Receives what is not a reply to a call.
        max_outgoing_bytes: Bound on the frames of calls that wait to be sent; callers wait for room.
    """

    def __init__(self, transport: Transport, listener: Listener, *, max_outgoing_bytes: int = 8 << 20) -> None:
        self.hello_reply: HelloReply | None = None
        self._transport = transport
        self._listener = listener
        self._parser = FrameParser(frames.HELLO_MAX_FRAME_BYTES)
        self._calls: dict[int, tuple[int, Done]] = {}
        self._correlation = 0
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._max_outgoing_bytes = max_outgoing_bytes
        self._room = trio.Event()
        self._work = trio.Event()
        self._is_idle = False
        self._reason: StorageError | None = None
        self._scope = trio.CancelScope()
        self._heard = 0
        self._sent = 0
        self._is_pinging = False

    @property
    def reason(self) -> StorageError | None:
        """Why the session has ended; None while it has not. After that every call fails at once."""
        return self._reason

    async def run(self, *, ping_interval_s: float = 15.0, heartbeat_s: float = HEARTBEAT_S) -> StorageError:
        """Run the session until it ends, close the transport, fail waiting calls. Returns why it ended.

        Args:
            ping_interval_s: Silence of the server after which it must answer a PING.
            heartbeat_s: How often something is sent at least, as promised in `hello`.
        """
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._guard, self._read)
                    nursery.start_soon(self._guard, self._write)
                    nursery.start_soon(self._guard, self._watch, ping_interval_s)
                    nursery.start_soon(self._guard, self._keep_promise, heartbeat_s)
        finally:
            reason = self._end(ConnectionLostError("the connection was closed by this side"))
            with trio.CancelScope(shield=True):
                await self._transport.aclose()
        return reason

    def close(self) -> None:
        """End the session: `run` returns soon, calls fail at once."""
        self._end(ConnectionLostError("the connection was closed by this side"))
        self._scope.cancel()

    async def hello(
        self,
        client: str,
        credentials: dict[str, str] | None = None,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        read: str = "",
    ) -> HelloReply:
        """Send HELLO with the promise of heartbeats, and read the server's limits.

        Args:
            client: Name for the server's logs and statistics.
            credentials: Credentials that the server's configuration requires.
            heartbeat_s: The promise.
            read: See `HelloRequest.read`.

        Raises:
            AuthenticationError, FormatVersionError: Another attempt will not help.
            ConnectionLostError, ProtocolError: No journal server answered.
        """
        request = HelloRequest(frames.PROTOCOL_VERSION, client, credentials, round(heartbeat_s * 1000), read)
        reply: HelloReply = await self.call(Op.HELLO, request)
        if reply.version != frames.PROTOCOL_VERSION:
            raise FormatVersionError(other_version(f"the server ({reply.server})", reply.version, "this client"))
        self._parser.max_frame_bytes = min(reply.max_frame_bytes, MAX_FRAME_BYTES)
        self.hello_reply = reply
        return reply

    async def call(self, op: Op, message: object) -> Any:
        """Send a MessagePack request and return its decoded reply. If it is cancelled, its result is not known."""
        return decode_reply(op, await self.exchange(op, encode(message)))

    async def exchange(self, op: Op, body: bytes) -> bytes | memoryview:
        """Send a request with an encoded body and return the reply's body; see `call`.

        Raises:
            LimitExceededError: The frame would be too long for the server, which would close the connection.
        """
        limit = self.hello_reply.max_frame_bytes if self.hello_reply else frames.HELLO_MAX_FRAME_BYTES
        if frames.HEADER.size + len(body) > limit:
            raise LimitExceededError(
                f"a {op.name} request of {len(body)} bytes is longer than the server's max_frame_bytes of {limit}"
            )
        while self._outgoing_bytes > self._max_outgoing_bytes and self._reason is None:
            await self._room.wait()
        replied = trio.Event()
        outcome: list[tuple[StorageError | None, bytes | memoryview]] = []

        def done(error: StorageError | None, reply: bytes | memoryview) -> None:
            outcome.append((error, reply))
            replied.set()

        correlation = self.call_nowait(op, body, done)
        try:
            await replied.wait()
        finally:
            self._calls.pop(correlation, None)
        error, reply = outcome[0]
        if error is not None:
            raise error
        return reply

    def call_nowait(self, op: Op, body: bytes, done: Done) -> int:
        """Queue a request; ``done`` is called with its error or reply body, at once if the session has ended."""
        if self._reason is not None:
            done(self._lost(), b"")
            return 0
        correlation = self.next_correlation()
        self._calls[correlation] = (op, done)
        self.send_nowait(frames.build(op, correlation, body))
        return correlation

    def send_nowait(self, frame: bytes) -> None:
        """Queue a frame that has no reply. The caller limits their number."""
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)
        self._work.set()

    def wake(self) -> None:
        """Wake the writer: the listener may have something to send."""
        self._work.set()

    def send_pending_nowait(self) -> None:
        """Send frames of the listener directly, if the writer is idle and the stream accepts them.

        This saves a single append a task switch.
        """
        if not self._is_idle or self._work.is_set() or self._reason is not None:
            self._work.set()
            return
        parts: list[bytes] = []
        self._listener.fill(parts, SEND_BYTES)
        data = b"".join(parts)
        sent_bytes = self._transport.send_nowait(data) if data else 0
        self._sent += bool(sent_bytes)
        if sent_bytes < len(data):
            # The writer continues with the rest, before anything else.
            self._outgoing.insert(0, data[sent_bytes:])
            self._outgoing_bytes += len(data) - sent_bytes
        if sent_bytes < len(data) or len(data) >= SEND_BYTES:
            self._work.set()

    def next_correlation(self) -> int:
        """Return a correlation id, from 1 to 2^32-1, then again from 1."""
        self._correlation = self._correlation % frames.MAX_CORRELATION + 1
        return self._correlation

    async def _write(self) -> None:
        send = self._transport.send
        fill = self._listener.fill
        while True:
            parts, self._outgoing = self._outgoing, []
            fill(parts, SEND_BYTES)
            if parts:
                await send(parts)
                self._sent += 1
                self._outgoing_bytes = sum(map(len, self._outgoing))
                self._room.set()
                self._room = trio.Event()
            else:
                self._is_idle = True
                await self._work.wait()
                self._is_idle = False
                self._work = trio.Event()

    async def _read(self) -> None:
        parser = self._parser
        receive_into = self._transport.receive_into
        buffer = memoryview(bytearray(RECEIVE_BYTES))
        while True:
            direct = parser.missing()
            size_bytes = await receive_into(buffer if direct is None else direct)
            if not size_bytes:
                raise ConnectionLostError("the server closed the connection")
            self._heard += 1
            if direct is None:
                parser.feed(buffer[:size_bytes])
            else:
                parser.filled(size_bytes)
            for frame in parser:
                self._dispatch(frame)

    def _dispatch(self, frame: Frame) -> None:
        op, status, correlation, body = frame
        try:
            if op == Op.APPENDED:
                self._listener.appended(frames.read_acks(body))
            elif op == Op.PUSH:
                self._listener.pushed(frames.read_push(body))
            elif op == Op.APPEND:
                if not status:
                    raise RemoteProtocolError("an append is acknowledged in APPENDED frames, not by a reply")
                self._listener.append_refused(correlation, decode_error(status, body))
            elif op == Op.SHARD_EVENT:
                self._listener.shard_event(decode_reply(Op.SHARD_EVENT, body))
            else:
                self._reply(op, status, correlation, body)
        except struct.error as fault:
            raise RemoteProtocolError(f"frame of operation {op} is malformed: {fault}") from fault

    def _reply(self, op: int, status: int, correlation: int, body: bytes | memoryview) -> None:
        if correlation == 0 and status:
            # An error frame without a request: the server tells why it will close the connection.
            raise decode_error(status, body)
        call = self._calls.pop(correlation, None)
        if call is None:
            return
        expected, done = call
        if expected != op:
            done(self._lost(), b"")
            raise RemoteProtocolError(f"reply {correlation} is of operation {op}, its request was of {expected}")
        done(decode_error(status, body) if status else None, body)

    async def _watch(self, interval_s: float) -> None:
        """Send PING after an interval in which nothing was received or nothing was sent.

        A silent server must answer within another interval, or the session ends. A client that only receives must send
        something too: the server ends the group memberships of a client that sends nothing.
        """
        while True:
            heard, sent = self._heard, self._sent
            await trio.sleep(interval_s)
            if (heard == self._heard or sent == self._sent) and self.hello_reply is not None:
                with trio.move_on_after(interval_s):
                    await self.exchange(Op.PING, b"")
                if heard == self._heard:
                    raise ConnectionLostError(f"the server was silent for {2 * interval_s:g} s and answered no PING")

    async def _keep_promise(self, heartbeat_s: float) -> None:
        """Send a PING when nothing else was sent for a while, since the server disconnects silent clients."""

        def answered(_error: StorageError | None, _reply: bytes | memoryview) -> None:
            self._is_pinging = False

        while True:
            sent = self._sent
            await trio.sleep(heartbeat_s / 2)
            if sent == self._sent and self.hello_reply is not None and not self._is_pinging:
                self._is_pinging = True
                self.call_nowait(Op.PING, b"", answered)

    async def _guard(self, task: Callable[..., Any], *args: object) -> None:
        try:
            await task(*args)
        except StorageError as reason:
            self._end(reason)
            self._scope.cancel()

    def _end(self, reason: StorageError) -> StorageError:
        if self._reason is None:
            self._reason = reason
            calls, self._calls = self._calls, {}
            for _, done in calls.values():
                done(self._lost(), b"")
            self._room.set()
        return self._reason

    def _lost(self) -> StorageError:
        reason = self._reason
        error = ConnectionLostError(f"the connection ended before the reply came: {reason}")
        error.__cause__ = reason
        return error
