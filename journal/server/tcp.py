"""Connections over TCP: bytes are received into the buffers in which they become journal entries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import trio

from journal.protocol.errors import RemoteProtocolError
from journal.protocol.frames import HEADER
from journal.server.connection import Connection
from journal.server.receive_buffers import BufferPool, ReceiveBuffer

_LEAST_ROOM_BYTES = 64 * 1024
_PATIENCE_S = 60.0
_SLOWEST_BYTES_PER_S = 64 * 1024


class Receivable(Protocol):
    """A non-blocking socket, encrypted or not."""

    def fileno(self) -> int: ...

    def recv_into(self, view: memoryview, /) -> int: ...


async def receive(
    connection: Connection,
    sock: Receivable,
    pool: BufferPool,
    hello_timeout_s: float,
    *,
    holds_some: bool = False,
    is_plain: bool = False,
) -> None:
    """Receive frames until the peer closes, breaks the rules, or the task is cancelled.

    Args:
        connection: Processes the frames.
        sock: The socket.
        pool: Buffers for the frames.
        hello_timeout_s: The first frame must arrive within this time.
        holds_some: Bytes were received already, for which the socket does not become readable.
        is_plain: After a read that did not fill its buffer, the socket becomes readable as soon as more arrives.

    Raises:
        RemoteProtocolError: The peer broke the rules.
        OSError: The connection has broken.
    """
    with trio.move_on_after(hello_timeout_s) as greeting:
        if not holds_some:
            await trio.lowlevel.wait_readable(sock)
        receiver = _Receiver(connection, sock, pool, greeting, is_plain=is_plain)
        await receiver.run()
    if greeting.cancelled_caught:
        raise RemoteProtocolError(f"no HELLO within {hello_timeout_s:.0f} s")


class _Receiver:
    """The state of receiving: a buffer, its received bytes, and the incomplete frame at their end."""

    def __init__(
        self,
        connection: Connection,
        sock: Receivable,
        pool: BufferPool,
        greeting: trio.CancelScope,
        *,
        is_plain: bool,
    ) -> None:
        self._connection = connection
        self._socket = sock
        self._pool = pool
        self._greeting: trio.CancelScope | None = greeting
        self._is_plain = is_plain
        self._buffer: ReceiveBuffer | None = None
        self._start = 0
        self._end = 0
        # Bytes that were moved here because another connection needed the buffer.
        self._aside = b""
        # How long the peer may still take for the rest of its frame; None until the rest is waited for.
        self._patience_s: float | None = None

    async def run(self) -> None:
        connection = self._connection
        try:
            while True:
                if not connection.has_room:
                    with self._waiting():
                        await connection.wait_for_room()
                buffer = self._buffer
                if buffer is None:
                    buffer = await self._take_buffer()
                if connection.is_paused:
                    self._take_frames(buffer)
                    await trio.lowlevel.checkpoint()
                    continue
                room = buffer.size_bytes - self._end
                try:
                    received = self._socket.recv_into(buffer.view[self._end : buffer.size_bytes])
                except BlockingIOError:
                    is_drained = True
                else:
                    if not received:
                        return
                    self._end += received
                    self._take_frames(buffer)
                    # A client that waits for each reply has sent nothing more: another read would find nothing.
                    is_drained = self._is_plain and received < room and self._start == self._end
                if not is_drained:
                    await trio.lowlevel.checkpoint()
                elif self._start != self._end:
                    await self._wait_for_rest(buffer)
                else:
                    # An idle connection holds no buffer.
                    if self._buffer is not None:
                        self._buffer.release()
                        self._buffer = None
                    # Like `_wait_for_more`, but without another call: every request of a client that waits for each
                    # reply passes here.
                    silence = connection.silence
                    silence.since_s = trio.current_time()
                    await trio.lowlevel.wait_readable(self._socket)
                    silence.since_s = None
        finally:
            if self._buffer is not None:
                self._buffer.release()
                self._buffer = None

    def _take_frames(self, buffer: ReceiveBuffer) -> None:
        connection = self._connection
        start = self._start
        self._start = connection.take_frames(buffer, start, self._end)
        if self._start != start:
            self._patience_s = None
        if self._greeting is not None and (connection.greeted or connection.is_greeting):
            # Only once: setting a deadline costs eight calls in trio, for every request.
            self._greeting.deadline = float("inf")
            self._greeting = None
        if not connection.is_paused:
            self._make_room(buffer)

    async def _wait_for_more(self) -> None:
        """Wait until the peer sends something."""
        silence = self._connection.silence
        silence.since_s = trio.current_time()
        await trio.lowlevel.wait_readable(self._socket)
        silence.since_s = None

    async def _wait_for_rest(self, buffer: ReceiveBuffer) -> None:
        """Wait for the rest of a frame. An incomplete frame holds memory, so the peer has a time limit.

        Only the wait for the peer counts, not the time that the server needs before it reads on.

        Raises:
            RemoteProtocolError: The limit was exceeded, over all waits for this frame.
        """
        left = self._end - self._start
        frame_bytes = HEADER.unpack_from(buffer.view, self._start)[0] if left >= HEADER.size else HEADER.size
        allowed_s = _PATIENCE_S + frame_bytes / _SLOWEST_BYTES_PER_S
        if self._patience_s is None:
            self._patience_s = allowed_s
        began = trio.current_time()
        # Bytes may have come in the same moment in which the time was over. Then nothing is left of it.
        with trio.move_on_after(max(0.0, self._patience_s)) as patience, self._waiting():
            await self._wait_for_more()
        if patience.cancelled_caught:
            raise RemoteProtocolError(
                f"{left} bytes of a frame of {frame_bytes} came within {allowed_s:.0f} s; send whole frames"
            )
        self._patience_s -= trio.current_time() - began

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """While the connection waits for its peer: lend its buffer."""
        if self._buffer is None or not self._buffer.is_pooled:
            yield
            return
        evacuate = self._evacuate
        self._pool.lend(evacuate)
        try:
            yield
        finally:
            self._pool.end_loan(evacuate)

    def _evacuate(self) -> None:
        buffer = self._buffer
        assert buffer is not None  # only a held buffer is lent
        self._aside = bytes(buffer.view[self._start : self._end])
        self._buffer = None
        buffer.release()

    async def _take_buffer(self) -> ReceiveBuffer:
        """A buffer that begins with the bytes that were moved aside, and has room for the rest of their frame."""
        aside, self._aside = self._aside, b""
        needed = len(aside) + _LEAST_ROOM_BYTES if aside else 0
        if len(aside) >= HEADER.size:
            needed = max(needed, self._room_for(HEADER.unpack_from(aside)[0], len(aside)))
        buffer = ReceiveBuffer(None, needed) if needed > self._pool.size_bytes else await self._pool.take()
        buffer.view[: len(aside)] = aside
        self._start, self._end = 0, len(aside)
        self._buffer = buffer
        return buffer

    def _make_room(self, buffer: ReceiveBuffer) -> None:
        """Continue in the same buffer, in a new one, or in one that is large enough for the frame being received."""
        start, end = self._start, self._end
        left = end - start
        if not left and buffer.users == 1:
            self._start = self._end = 0
            return
        free = buffer.size_bytes - end
        room = left + _LEAST_ROOM_BYTES
        if left >= HEADER.size:
            frame_bytes = HEADER.unpack_from(buffer.view, start)[0]
            if frame_bytes > self._pool.size_bytes and free >= self._pool.size_bytes // 4:
                return
            room = self._room_for(frame_bytes, left)
        if free >= room - left:
            return
        following = self._following(room)
        if following is None:
            if buffer.users > 1 or not left or buffer.size_bytes < room:
                # All buffers wait for the disk: wait for one, holding only the incomplete frame.
                following = ReceiveBuffer(None, max(room, _LEAST_ROOM_BYTES))
            else:
                buffer.view[:left] = bytes(buffer.view[start:end])
                self._start, self._end = 0, left
                return
        following.view[:left] = buffer.view[start:end]
        buffer.release()
        self._buffer = following
        self._start, self._end = 0, left

    def _room_for(self, frame_bytes: int, received_bytes: int) -> int:
        """Size of the buffer in which a frame is continued.

        A frame larger than the pool's buffers gets a buffer of its own, which grows with the received bytes, since a
        peer may never send the frame that it announced. limits.max_frame_bytes bounds it.
        """
        return min(frame_bytes, max(self._pool.size_bytes, 2 * received_bytes))

    def _following(self, needed_bytes: int) -> ReceiveBuffer | None:
        if needed_bytes > self._pool.size_bytes:
            return ReceiveBuffer(None, needed_bytes)
        return self._pool.take_nowait()
