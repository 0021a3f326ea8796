"""Connections over TCP: bytes are received straight into the buffers in which they become journal entries."""

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


class Receivable(Protocol):
    """A non-blocking socket, encrypted or not."""

    def fileno(self) -> int: ...

    def recv_into(self, view: memoryview, /) -> int: ...


async def receive(connection: Connection, sock: Receivable, pool: BufferPool, hello_timeout_s: float) -> None:
    """Receive frames until the peer closes, breaks the rules, or the task is cancelled.

    Raises:
        RemoteProtocolError: The peer broke the rules.
        OSError: The connection is broken.
    """
    with trio.move_on_after(hello_timeout_s) as greeting:
        await trio.lowlevel.wait_readable(sock)
        receiver = _Receiver(connection, sock, pool, greeting)
        await receiver.run()
    if greeting.cancelled_caught:
        raise RemoteProtocolError(f"no HELLO within {hello_timeout_s:.0f} s")


class _Receiver:
    """The state of receiving: a buffer, what is in it, and what of that is not a whole frame yet."""

    def __init__(self, connection: Connection, sock: Receivable, pool: BufferPool, greeting: trio.CancelScope) -> None:
        self._connection = connection
        self._socket = sock
        self._pool = pool
        self._greeting = greeting
        self._buffer: ReceiveBuffer | None = None
        self._start = 0
        self._end = 0
        # What was received while another connection needed the buffer more.
        self._aside = b""

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
                    continue
                try:
                    received = self._socket.recv_into(buffer.view[self._end : buffer.size_bytes])
                except BlockingIOError:
                    if self._start == self._end:
                        # An idle connection holds no buffer.
                        buffer.release()
                        self._buffer = None
                        await trio.lowlevel.wait_readable(self._socket)
                    else:
                        with self._waiting():
                            await trio.lowlevel.wait_readable(self._socket)
                    continue
                if not received:
                    return
                self._end += received
                self._take_frames(buffer)
                await trio.lowlevel.checkpoint()
        finally:
            if self._buffer is not None:
                self._buffer.release()
                self._buffer = None

    def _take_frames(self, buffer: ReceiveBuffer) -> None:
        connection = self._connection
        self._start = connection.take_frames(buffer, self._start, self._end)
        if connection.greeted or connection.is_greeting:
            self._greeting.deadline = float("inf")
        if not connection.is_paused:
            self._make_room(buffer)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """The connection waits for its peer: others may have the buffer meanwhile."""
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
        """A buffer with what was set aside in it, and room for the rest of the frame that it begins with."""
        aside, self._aside = self._aside, b""
        needed = len(aside) + _LEAST_ROOM_BYTES if aside else 0
        if len(aside) >= HEADER.size:
            needed = max(needed, HEADER.unpack_from(aside)[0])
        # A frame larger than the pool's buffers gets one of its own; limits.max_frame_bytes bounds it.
        buffer = ReceiveBuffer(None, needed) if needed > self._pool.size_bytes else await self._pool.take()
        buffer.view[: len(aside)] = aside
        self._start, self._end = 0, len(aside)
        self._buffer = buffer
        return buffer

    def _make_room(self, buffer: ReceiveBuffer) -> None:
        """Go on in the same buffer, in a new one, or in one large enough for a frame that is on its way."""
        start, end = self._start, self._end
        left = end - start
        if not left and buffer.users == 1:
            self._start = self._end = 0
            return
        needed = _LEAST_ROOM_BYTES
        if left >= HEADER.size:
            needed = HEADER.unpack_from(buffer.view, start)[0] - left
        if buffer.size_bytes - end >= needed:
            return
        following = self._following(left + needed)
        if following is None:
            if buffer.users > 1 or not left:
                # All buffers wait for the disk: wait for one with nothing but the incomplete frame in hand.
                following = ReceiveBuffer(None, max(left + needed, _LEAST_ROOM_BYTES))
            else:
                buffer.view[:left] = bytes(buffer.view[start:end])
                self._start, self._end = 0, left
                return
        following.view[:left] = buffer.view[start:end]
        buffer.release()
        self._buffer = following
        self._start, self._end = 0, left

    def _following(self, needed_bytes: int) -> ReceiveBuffer | None:
        if needed_bytes > self._pool.size_bytes:
            # A frame larger than the pool's buffers gets one of its own; limits.max_frame_bytes bounds it.
            return ReceiveBuffer(None, needed_bytes)
        return self._pool.take_nowait()
